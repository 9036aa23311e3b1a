from __future__ import annotations

import contextlib
import logging
import socket
import threading
from functools import partial
from types import SimpleNamespace

import cv2
import pytest

from helpers import assert_same_content
from logpolar.cli.options import open_extractor
from logpolar.distributed import Workers, on_workers
from logpolar.errors import LogpolarError, LogpolarWarning
from logpolar.features.batch import extract_images
from logpolar.matching.merging import merge_sources
from process_tasks import die_at_five, refuse_five, slow_at_first

distributed = pytest.importorskip("distributed", reason="needs the extra 'dask'")
dask = pytest.importorskip("dask")

from logpolar.distributed.dask_cluster import DaskBatch, DaskCluster  # noqa: E402
from logpolar.distributed.work import Job  # noqa: E402


@pytest.fixture(scope="module")
def address():
    once = {"distributed.scheduler.allowed-failures": 0}  # a death is enough: each takes a second
    with (
        dask.config.set(once),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
    ):
        yield cluster.scheduler_address


class Proxy:
    """Forwards connections to the scheduler; ``cut`` drops those that are open."""

    def __init__(self, address):
        self.target, self.open = int(address.rpartition(":")[2]), []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"dask:tcp://127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                ends = self.server.accept()[0], socket.create_connection(("127.0.0.1", self.target))
                self.open += ends
                for one, other in (ends, ends[::-1]):
                    threading.Thread(target=self.forward, args=(one, other), daemon=True).start()

    def forward(self, one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        self.cut(one, other)

    def cut(self, *ends):
        for each in ends or self.open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class TestDaskCluster:
    def test_results_come_in_order_and_the_task_that_kills_its_worker_is_found(self, address):
        workers = Workers(1, f"dask:{address}", batch=2)
        found = list(on_workers(die_at_five, range(7), workers, if_lost=lambda task: "lost"))
        assert found == [(task, "lost" if task == 5 else -task) for task in range(7)]

    def test_errors_of_the_work_reach_the_caller(self, address):
        with pytest.raises(ValueError, match="number 5 is odd"):
            list(on_workers(refuse_five, range(12), Workers(1, f"dask:{address}")))

    @pytest.mark.parametrize("wrong", ["nonsense", "tcp://127.0.0.1:1"])
    def test_a_wrong_address_is_an_error_in_words(self, monkeypatch, capfd, wrong):
        monkeypatch.setattr("logpolar.distributed.dask_cluster._PATIENCE", 1)
        with pytest.raises(LogpolarError, match="no scheduler with workers answers there"):
            list(on_workers(abs, [1, 2], Workers(1, f"dask:{wrong}")))
        left = [each for each in list(distributed.Client._instances) if each.status not in ("running", "closed")]
        assert left == []  # the collector would close it while another one starts, which waits for ever
        logging.getLogger("distributed.client").error("Failed to reconnect")  # with a traceback, minutes later
        assert capfd.readouterr() == ("", "")

    def test_a_connection_that_is_cut_is_made_again(self, address):
        proxy, found = Proxy(address), []
        for number, result in enumerate(on_workers(slow_at_first, range(40), Workers(1, proxy.address, batch=2))):
            found.append(result)
            if number == 5:
                before = len(proxy.open)
                proxy.cut()
        assert found == [(task, task**2) for task in range(40)]
        assert len(proxy.open) > before
        proxy.server.close()

    def test_batches_sent_before_the_connection_was_made_again_count_as_cut(self, address):
        """Also those that nobody has asked for until then: a worker had died, and others were run alone."""
        engine = DaskCluster(address, Job(slow_at_first, None, ()))
        pending = engine.submit([0, 1])
        engine._client.close()
        engine.recover()
        with pytest.raises(engine.cut):
            pending.result()
        assert engine.submit([2, 3]).result() == [4, 9]
        engine.close(done=True)

    def test_without_workers_it_says_so_and_waits_for_new_ones(self, monkeypatch):
        monkeypatch.setattr("logpolar.distributed.dask_cluster._PATIENCE", 2)
        quietly = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50}
        with distributed.LocalCluster(processes=False, protocol="tcp", **quietly) as cluster:
            found = on_workers(abs, range(-20, 0), Workers(1, f"dask:{cluster.scheduler_address}"))
            assert next(found) == (-20, 20)
            cluster.scale(0)
            threading.Timer(5, cluster.scale, [1]).start()
            with pytest.warns(LogpolarWarning, match="no workers left; waiting for new ones"):
                assert list(found) == [(task, -task) for task in range(-19, 0)]

    def test_workers_write_shards_with_the_bits_of_a_file(self, address, photo, tmp_path):
        images = {f"{number}.png": tmp_path / f"{number}.png" for number in range(5)}
        for number, path in enumerate(images.values()):
            cv2.imwrite(str(path), photo[30 * number : 30 * number + 120, :160])
        opener = partial(open_extractor, model="logpolar-96-small", max_keypoints=20, max_size=0, fixed_threads=1)
        extract_images(images, tmp_path / "file.h5", opener)
        report = extract_images(images, tmp_path / "shards", opener, Workers(1, f"dask:{address}"), shard_size=2)
        assert report.done == 5
        merge_sources([tmp_path / "shards"], tmp_path / "merged.h5")
        assert_same_content(tmp_path / "merged.h5", tmp_path / "file.h5")

    def test_a_batch_that_ends_as_its_time_is_over_has_its_result(self):
        answers = iter([distributed.TimeoutError("timed out after 30 s."), [7]])

        def result(timeout):
            if isinstance(answer := next(answers), Exception):
                raise answer
            return answer

        future, client = SimpleNamespace(result=result, done=lambda: True), SimpleNamespace(status="running")
        assert DaskBatch(future, client).result() == [7]
