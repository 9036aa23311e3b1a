from __future__ import annotations

import sys

import pytest

from logpolar.distributed import LOCAL, Workers, cores, work
from logpolar.distributed.work import Job, on_workers, open_engine
from logpolar.errors import LogpolarError, MissingExtraError


class Death(Exception):
    pass


class Cut(Exception):
    pass


class Batch:
    def __init__(self, engine, tasks):
        self.engine, self.tasks = engine, tasks

    def result(self):
        return self.engine.run(self.tasks)


class Mortal:
    """An engine whose workers die of some tasks, and take down all batches that are under way."""

    lost, cut = (Death,), (Cut,)

    def __init__(self, deadly=(), deaths=0, batches=4):
        self.deadly, self.deaths, self.batches = set(deadly), deaths, batches
        self.down, self.log, self.closed = False, [], None

    def capacity(self):
        return self.batches

    def submit(self, tasks):
        if self.down:
            raise Death
        return Batch(self, list(tasks))

    def run(self, tasks):
        self.log.append(tasks)
        accident = self.deaths > 0 and 7 in tasks
        self.deaths -= accident
        if self.down or accident or self.deadly & set(tasks):
            self.down = True
            raise Death
        return [-task for task in tasks]

    def recover(self):
        self.down = False

    def close(self, done):
        self.closed = done


@pytest.fixture
def mortal(monkeypatch):
    def use(**options):
        engine = Mortal(**options)
        monkeypatch.setattr(work, "open_engine", lambda workers, job: engine)
        return engine

    return use


def lost(task):
    return f"lost {task}"


class TestLosses:
    @pytest.mark.parametrize("size", [1, 3, 8])
    @pytest.mark.parametrize("deadly", [(), (0,), (19,), (4, 5), (3, 11, 17)])
    def test_each_deadly_task_is_found_and_nothing_is_lost_or_done_twice(self, mortal, size, deadly):
        engine = mortal(deadly=deadly)
        found = list(on_workers(abs, range(20), Workers(2, batch=size), if_lost=lost))
        assert found == [(task, lost(task) if task in deadly else -task) for task in range(20)]
        assert engine.closed is True

    def test_a_batch_whose_worker_dies_by_accident_is_done_again(self, mortal):
        engine = mortal(deaths=1)
        assert list(on_workers(abs, range(20), Workers(2, batch=3), if_lost=lost)) == [(n, -n) for n in range(20)]
        assert engine.log.count([6, 7, 8]) == 2

    def test_a_task_is_not_lost_by_one_more_accident(self, mortal):
        engine = mortal(deaths=2)
        assert list(on_workers(abs, range(20), Workers(2), if_lost=lost)) == [(n, -n) for n in range(20)]
        assert engine.log.count([7]) == 3

    def test_without_a_substitute_it_is_an_error(self, mortal):
        engine = mortal(deadly=[3])
        with pytest.raises(LogpolarError, match="worker process was killed"):
            list(on_workers(abs, range(20), Workers(2)))
        assert engine.closed is False

    def test_if_all_tasks_kill_it_is_none_of_them(self, mortal):
        engine = mortal(deadly=range(1000))
        with pytest.raises(LogpolarError, match="worker process was killed"):
            list(on_workers(abs, range(1000), Workers(2), if_lost=lost))
        assert len(engine.log) < 50


class TestWorkers:
    def test_divide_the_cores_of_this_machine_only(self):
        assert Workers(1).threads == cores()
        assert Workers(2 * cores()).threads == Workers(executor="dask:x").threads == 1

    def test_are_no_more_than_tasks(self):
        assert [Workers(8).at_most(tasks).jobs for tasks in (0, 3, 20)] == [1, 3, 8]

    @pytest.mark.parametrize(
        ("workers", "here"), [(Workers(), True), (Workers(2), False), (Workers(1, "ray:x"), False)]
    )
    def test_may_be_this_process(self, workers, here):
        assert workers.is_here == here

    @pytest.mark.parametrize("executor", ["", "dask", "dask:", "slurm:x", LOCAL + ":2"])
    def test_of_unknown_kinds_are_refused(self, executor):
        with pytest.raises(LogpolarError, match="is no executor; use one of: local, dask:ADDRESS, ray:ADDRESS"):
            open_engine(Workers(2, executor), Job(abs, None, ()))

    @pytest.mark.parametrize(("executor", "package"), [("dask:x", "distributed"), ("ray:x", "ray")])
    def test_whose_package_is_not_installed_name_the_extra(self, monkeypatch, executor, package):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(sys.modules, f"logpolar.distributed.{executor[:-2]}_cluster", raising=False)
        with pytest.raises(MissingExtraError, match=rf"pip install 'logpolar\[{executor[:-2]}\]'"):
            open_engine(Workers(2, executor), Job(abs, None, ()))


class Unreliable:
    """An engine whose connection is cut some times; then everything that was under way has to be sent again."""

    lost, cut = (Death,), (Cut,)

    def __init__(self, cuts):
        self.cuts, self.connection, self.sent = cuts, 0, []

    def capacity(self):
        return 3

    def submit(self, tasks):
        self.sent.append(list(tasks))
        return Sent(self, self.connection, tasks)

    def recover(self):
        self.connection += 1

    def close(self, done):
        pass


class Sent:
    def __init__(self, engine, connection, tasks):
        self.engine, self.connection, self.tasks = engine, connection, tasks

    def result(self):
        if self.connection != self.engine.connection or (5 in self.tasks and self.engine.connection < self.engine.cuts):
            raise Cut
        return [-task for task in self.tasks]


class TestCuts:
    @pytest.fixture
    def engine(self, monkeypatch):
        def use(cuts):
            engine = Unreliable(cuts)
            monkeypatch.setattr(work, "open_engine", lambda workers, job: engine)
            return engine

        return use

    @pytest.mark.parametrize("cuts", [0, 1, 3])
    def test_batches_under_way_are_sent_again_and_none_is_suspected(self, engine, cuts):
        used = engine(cuts)
        found = list(on_workers(abs, range(12), Workers(2, batch=2), if_lost=lost))
        assert found == [(task, -task) for task in range(12)]
        assert used.sent.count([4, 5]) == cuts + 1
        assert all(len(batch) == 2 for batch in used.sent)

    def test_again_and_again_end_the_run(self, engine):
        engine(10**9)
        with pytest.raises(LogpolarError, match="is cut again and again"):
            list(on_workers(abs, range(12), Workers(2)))


class TestCapacity:
    def test_is_asked_for_now_and_then(self, mortal, monkeypatch):
        """Of a cluster that is a message to its scheduler, and workers come and go."""
        now, asked, most = [0.0], [], []
        monkeypatch.setattr(work.time, "monotonic", lambda: now[0])
        engine = mortal(batches=3)
        monkeypatch.setattr(engine, "capacity", lambda: asked.append(now[0]) or engine.batches)

        def tasks():
            for task in range(40):
                now[0] += 0.25
                engine.batches = 3 if task < 20 else 8
                most.append(task)
                yield task

        furthest = [most[-1] - task for task, _ in on_workers(abs, tasks(), Workers(2))]
        assert 5 < len(asked) < 12
        assert max(furthest[:12]) == 2 and max(furthest) == 7
