from __future__ import annotations

import os
import sys

import pytest

from logpolar.distributed import Workers, on_workers
from logpolar.errors import LogpolarError
from process_tasks import die_at_five, own_gpu, refuse_five, start

pytest.importorskip("ray", reason="needs the extra 'ray'")


@pytest.fixture(scope="module")
def cluster():
    import ray

    found = {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}}  # workers must be able to import the tests' work
    ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, logging_level=50, log_to_driver=False, runtime_env=found)
    yield
    ray.shutdown()


@pytest.mark.parametrize("wrong", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999", "nonsense", "a:b"])
def test_a_wrong_address_is_an_error_in_words(wrong):
    with pytest.raises(LogpolarError, match="no cluster answers there; start one with `ray start --head`"):
        list(on_workers(abs, [1, 2], Workers(1, f"ray:{wrong}")))


@pytest.mark.usefixtures("cluster")
class TestRayCluster:
    def test_results_come_in_order_and_the_task_that_kills_its_worker_is_found(self):
        found = list(on_workers(die_at_five, range(12), Workers(1, "ray:auto", 3), if_lost=lambda task: "lost"))
        assert found == [(task, "lost" if task == 5 else -task) for task in range(12)]

    def test_errors_of_the_work_reach_the_caller(self):
        with pytest.raises(ValueError, match="number 5 is odd"):
            list(on_workers(refuse_five, range(12), Workers(1, "ray:auto")))

    def test_without_gpus_it_says_so(self, monkeypatch):
        monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 2.0})
        with pytest.raises(LogpolarError, match="no machine of this cluster has a GPU; leave out --device"):
            list(on_workers(abs, [1], Workers(1, "ray:auto", gpu=True)))

    def test_a_worker_keeps_its_gpu_and_what_it_has_loaded(self, tmp_path):
        """Ray only counts GPUs, and needs none for this."""
        workers = Workers(1, "ray:auto", 1, gpu=True)
        found = dict(on_workers(own_gpu, range(12), workers, start, (str(tmp_path / "died"),)))
        assert list(found) == list(range(12)) and (tmp_path / "died").exists()
        gpus: dict[int, list[str]] = {}
        for process, _, gpu in found.values():
            gpus.setdefault(process, []).append(gpu)
        assert len(gpus) == 3  # two, and the one after the death
        assert all(len(set(each)) == 1 for each in gpus.values())
        assert {each[0] for each in gpus.values()} == {"0", "1"}
        assert max(count for _, count, _ in found.values()) > 3  # started once
