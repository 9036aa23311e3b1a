from __future__ import annotations

import pickle

import pytest

from logpolar.distributed.clusters import ClusterRun, own_versions, run_pickled
from logpolar.distributed.work import Job
from logpolar.errors import LogpolarError

opened = []


def start(word):
    opened.append(word)
    return word


def join(word, task):
    return f"{word} {task}"


class TestClusterRun:
    def test_starts_once_in_a_process_and_runs_do_not_mix(self):
        opened.clear()
        one, two = (ClusterRun(Job(join, start, (word,))) for word in ("one", "two"))
        assert [run([1, 2]) for run in (one, two, one)] == [["one 1", "one 2"], ["two 1", "two 2"], ["one 1", "one 2"]]
        assert opened == ["one", "two"]

    def test_travels_by_name(self):
        assert run_pickled(pickle.dumps(ClusterRun(Job(abs, None, ()))), pickle.dumps([-3, 4])) == [3, 4]

    @pytest.mark.parametrize("package", ["logpolar", "numpy", "opencv"])
    def test_other_versions_are_refused(self, package):
        assert package in own_versions()
        run = ClusterRun(Job(abs, None, ()), versions={**own_versions(), package: "0.0"})
        with pytest.raises(LogpolarError, match=rf"the worker on .* has {package} .*, this machine 0\.0; install"):
            run([1])
