"""What several tests share: one real photo, in gray and in the library's own form, and a world with known cameras."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import cv2
import numpy as np
import pytest

from logpolar.images import to_gray
from logpolar.models.runtimes.processor import CAP, has_amx, prepare_openvino
from synthetic_world import standard_world, write_workspace

# Set before torch is imported. Sums then have one order: runs are equal to the last bit. And the tensors of tests are
# small and every core has a process of its own, so that threads would take three times as long.
os.environ["OMP_NUM_THREADS"] = "1"

# Processes that tests start are to find the library compiled, and the next run of tests its modules, whatever the shell
# says: both would be compiled a hundred times.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Every process of pytest-xdist gets a core, so that libraries which count cores start one thread each: two processes
# with two busy threads on each of two cores wait for one another.
if hasattr(os, "sched_setaffinity") and (worker := os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")):
    available = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {available[int(worker) % len(available)]})

# Thousands of small files are flushed to the disk. In memory, where there is room, that takes no time.
if Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free > 4e9:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

# Scripts start background jobs with Ctrl-C ignored, nohup ignores SIGHUP, and processes that tests start would inherit
# that. They do not inherit handlers: one that does nothing protects the tests as before, and these have the defaults.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda number, frame: None)


@pytest.fixture(scope="session", autouse=True)
def safe_instruction_set(tmp_path_factory):
    """The highest instruction set that oneDNN survives here, None for any; child processes inherit it.

    It is set before any test loads OpenVINO, which keeps the one it finds. Probes are cached for this run of tests, in
    a folder that all of its processes share.
    """
    folder = tmp_path_factory.getbasetemp().parent / "cache"
    os.environ.setdefault("LOGPOLAR_CACHE", str(folder))
    if has_amx():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prepare_openvino("int8")
    return os.environ.get(CAP)


@pytest.fixture(scope="session")
def export_once(tmp_path_factory):
    """A context in which networks of the same options, all of which have the same graph, are exported only once.

    Exporting takes seconds: a folder that all processes of this run of tests share has the graphs.
    """
    folder = tmp_path_factory.getbasetemp().parent / "graphs"
    folder.mkdir(exist_ok=True)

    @contextmanager
    def context() -> Iterator[None]:
        from logpolar.models import export

        def export_graph(network, original=export.export_graph) -> bytes:
            path = folder / hashlib.sha256(network.options.to_json().encode()).hexdigest()
            with path.open("a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if not path.stat().st_size:
                    file.write(original(network))
                    file.flush()
            return path.read_bytes()

        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(export, "export_graph", export_graph)
            yield

    return context


@pytest.fixture(scope="session")
def photo() -> np.ndarray:
    """The shipped photo, BGR, 512 x 512."""
    data = (resources.files("logpolar") / "assets" / "astronaut.jpg").read_bytes()
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)


@pytest.fixture(scope="session")
def gray(photo: np.ndarray) -> np.ndarray:
    """The shipped photo, gray float32 in [0, 1]."""
    return to_gray(photo)


@pytest.fixture(scope="session")
def posed_world():
    """Six small views with exact cameras."""
    return standard_world(0, 6, 160, 120)


@pytest.fixture(scope="session")
def castle(posed_world, tmp_path_factory):
    """The world as a COLMAP model without depth maps: its folder, not to be changed, and its points."""
    folder = tmp_path_factory.mktemp("scenes") / "castle"
    points = write_workspace(posed_world, folder)
    shutil.rmtree(folder / "stereo")
    return folder, points


@pytest.fixture(scope="session")
def detector_file(tmp_path_factory) -> Path:
    """Model file of a small, untrained detector, whose batch normalisation is not that of a new one."""
    import torch

    from logpolar.models.cards import DetectorCard, DetectorOptions
    from logpolar.models.detector_export import save_detector
    from logpolar.models.detector_network import DetectorNetwork

    torch.manual_seed(1)
    network = DetectorNetwork(DetectorOptions((4, 6, 8), (1, 1, 0), window=4))
    for _ in range(3):
        network(torch.randn(2, 64, 64))
    path = tmp_path_factory.mktemp("detector") / "tiny-detector.safetensors"
    save_detector(
        path, network.eval(), DetectorCard("tiny-detector", "A test.", network.options, size=5.0, min_score=-100.0)
    )
    return path
