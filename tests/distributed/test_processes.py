from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys

import pytest

from logpolar.distributed import Workers, in_processes, on_workers
from logpolar.errors import LogpolarError
from process_tasks import die_at_five, look_around, process_of, refuse_five, slow_at_first, start

PATIENCE = 30  # seconds after which a test that waits for another process gives up


@pytest.fixture
def ctrl_c_counts():
    """Also where the tests run in the background, and shells turn it off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


class TestResults:
    @pytest.mark.parametrize("jobs", [1, 3])
    def test_come_in_the_order_of_the_tasks(self, jobs):
        assert list(in_processes(slow_at_first, range(20), jobs)) == [(task, task**2) for task in range(20)]

    @pytest.mark.parametrize("jobs", [1, 2])
    def test_of_fewer_tasks_than_processes(self, jobs):
        assert list(in_processes(abs, [-7], jobs)) == [(-7, 7)]

    @pytest.mark.parametrize("jobs", [1, 2])
    def test_of_nothing(self, jobs):
        assert list(in_processes(abs, [], jobs)) == []


class TestErrors:
    @pytest.mark.parametrize("jobs", [1, 2])
    def test_of_the_work_reach_the_caller_after_the_results_before(self, jobs):
        seen = []
        with pytest.raises(ValueError, match="number 5 is odd"):
            for task, result in in_processes(refuse_five, range(40), jobs):
                seen.append((task, result))
        assert seen == [(task, -task) for task in range(5)]

    @pytest.mark.parametrize("jobs", [1, 2])
    def test_of_the_tasks_reach_the_caller(self, jobs):
        def tasks():
            yield -1
            raise KeyError("no more")

        with pytest.raises(KeyError, match="no more"):
            list(in_processes(abs, tasks(), jobs))

    def test_a_killed_worker_is_an_error_in_words(self):
        with pytest.raises(LogpolarError, match=r"worker process was killed.*fewer jobs"):
            list(in_processes(die_at_five, range(40), 2))


class TestLosses:
    def test_the_task_that_kills_is_found_and_the_rest_done(self):
        """In a batch with others."""
        found = on_workers(die_at_five, range(20), Workers(2, batch=4), if_lost=lambda task: f"lost {task}")
        assert list(found) == [(task, "lost 5" if task == 5 else -task) for task in range(20)]


class TestQueue:
    @pytest.mark.parametrize(("jobs", "most"), [(1, 1), (2, 8)])
    def test_is_short(self, jobs, most):
        """There is no end to the tasks; only so many are taken before their results are."""
        taken = []

        def tasks():
            for task in itertools.count():
                taken.append(task)
                yield task

        results = in_processes(abs, tasks(), jobs)
        for done, _ in enumerate(itertools.islice(results, 30)):
            assert len(taken) - done <= most
        results.close()

    def test_is_dropped_by_who_stops_early_and_no_process_remains(self):
        results = in_processes(process_of, range(10**6), 2)
        workers = {process for _, process in itertools.islice(results, 20)}
        assert workers
        assert all(map(is_running, workers))
        results.close()
        assert not any(map(is_running, workers))


class TestProcesses:
    def test_are_started_as_told_and_leave_ctrl_c_to_the_caller(self, ctrl_c_counts):
        found = [seen for _, seen in in_processes(look_around, range(8), 2, start, ("one", "two"))]
        for seen in found:
            assert seen.pop("process") != os.getpid()
            assert seen == {
                "started": ["one", "two"],
                "threads": max(len(os.sched_getaffinity(0)) // 2, 1),
                "ignores Ctrl-C": True,
                "was born so": True,
            }
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def test_one_job_is_done_here(self):
        assert [seen for _, seen in in_processes(look_around, [0], 1, start, ("one",))] == [look_around(["one"], 0)]

    def test_end_with_a_caller_that_is_killed(self):
        """They hold the pipe too: it ends when the last of them does. Their work would take ten minutes."""
        program = (
            "import time; from logpolar.distributed import in_processes\n"
            "for task, _ in in_processes(time.sleep, [0, *[600] * 99], 2): print('under way', flush=True)"
        )
        caller = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
        try:
            assert caller.stdout.readline() == b"under way\n"
            caller.kill()
            assert caller.communicate(timeout=PATIENCE)[0] == b""
            assert caller.returncode == -signal.SIGKILL
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(caller.pid, signal.SIGKILL)

    @pytest.mark.parametrize("where", ["", "time.sleep(600)"])
    def test_end_with_a_caller_that_is_interrupted(self, where):
        """While it waits for a result, and while it uses one; tasks under way would take ten minutes."""
        program = (
            "import time; from logpolar.distributed import in_processes\n"
            "try:\n"
            "    for task, _ in in_processes(time.sleep, [0, *[600] * 99], 2):\n"
            f"        print('under way', flush=True); {where}\n"
            "except KeyboardInterrupt: print('interrupted')"
        )
        caller = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
        try:
            assert caller.stdout.readline() == b"under way\n"
            os.killpg(caller.pid, signal.SIGINT)
            assert caller.communicate(timeout=PATIENCE)[0] == b"interrupted\n"
            assert caller.returncode == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(caller.pid, signal.SIGKILL)
