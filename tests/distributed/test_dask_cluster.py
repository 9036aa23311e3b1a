from __future__ import annotations

import pytest

from logpolar.distributed import Workers, on_workers
from logpolar.errors import LogpolarError
from process_tasks import die_at_five, refuse_five

distributed = pytest.importorskip("distributed", reason="needs the extra 'dask'")
dask = pytest.importorskip("dask")


@pytest.fixture(scope="module")
def address():
    once = {"distributed.scheduler.allowed-failures": 0}  # a death is enough: each takes a second
    with (
        dask.config.set(once),
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
    ):
        yield cluster.scheduler_address


class TestDaskCluster:
    def test_results_come_in_order_and_the_task_that_kills_its_worker_is_found(self, address):
        workers = Workers(1, f"dask:{address}", batch=2)
        found = list(on_workers(die_at_five, range(7), workers, if_lost=lambda task: "lost"))
        assert found == [(task, "lost" if task == 5 else -task) for task in range(7)]

    def test_errors_of_the_work_reach_the_caller(self, address):
        with pytest.raises(ValueError, match="number 5 is odd"):
            list(on_workers(refuse_five, range(12), Workers(1, f"dask:{address}")))

    @pytest.mark.parametrize("wrong", ["nonsense", "tcp://127.0.0.1:1"])
    def test_a_wrong_address_is_an_error_in_words(self, monkeypatch, wrong):
        monkeypatch.setattr("logpolar.distributed.dask_cluster._PATIENCE", 1)
        with pytest.raises(LogpolarError, match="no scheduler with workers answers there"):
            list(on_workers(abs, [1, 2], Workers(1, f"dask:{wrong}")))
