"""Features and matches from every engine, with accidents: the same bits from all of them, nothing lost, nothing twice.

    PYTHONPATH=benchmarks python benchmarks/collection_engines.py equality PHOTOS WORK --engine dask --workers 4
    PYTHONPATH=benchmarks python benchmarks/collection_engines.py overhead PHOTOS WORK --images 40 [--small]

``equality`` extracts the first photos of a folder in this very process, then by an engine. In the middle of its run a
worker is killed by SIGKILL; the photo in the middle kills whoever describes it; Dask's client is connected through a
proxy that drops all connections once. Then pairs are matched.
``overhead`` times processes, Dask and Ray on the same photos, in turns, without the start of workers. On a busy machine
CPU time tells more than the wall clock.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil

from common import save_section
from logpolar.cli.options import open_extractor
from logpolar.distributed import Workers
from logpolar.features import batch
from logpolar.features.batch import AnyExtractor, extract_images
from logpolar.features.collections import FeatureCollectionWriter, open_features
from logpolar.features.features import Features
from logpolar.images import find_images
from logpolar.matching.batch import match_pairs
from logpolar.matching.collections import open_matches
from logpolar.matching.pairs import sequential_pairs
from logpolar.storage.collections import Item, Part

SHARD, PAIRS_IN_SHARD, OVERLAP = 8, 40, 4
OPTIONS = {"model": "logpolar-96-int8", "max_keypoints": 256, "max_size": 400, "min_size": 0}


class Deadly:
    """An extractor that kills its process at one photo, as a decoder with a fatal bug would."""

    def __init__(self, inner: AnyExtractor, poison: str, pids: Path) -> None:
        self._inner, self._poison, self.settings = inner, poison, inner.settings
        (pids / str(os.getpid())).touch()

    def extract(self, image: Any, keypoints: Any = None) -> Features:
        if Path(str(image)).name == self._poison:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._inner.extract(image, keypoints)


def open_deadly(poison: str, pids: Path, caller: int, threads: int) -> AnyExtractor:
    inner = open_extractor(threads=1, **OPTIONS)
    return inner if os.getpid() == caller else Deadly(inner, poison, pids)


class Proxy:
    """Forwards connections to a port; ``cut`` drops all that are open."""

    def __init__(self, port: int) -> None:
        self._target, self._open = port, list[socket.socket]()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            here, _ = self._server.accept()
            there = socket.create_connection(("127.0.0.1", self._target))
            self._open += [here, there]
            for one, other in ((here, there), (there, here)):
                threading.Thread(target=self._forward, args=(one, other), daemon=True).start()

    def _forward(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        dropped, self._open = self._open, []
        for each in dropped:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def dask_address(count: int) -> Iterator[tuple[str, Proxy]]:
    import dask
    from distributed import LocalCluster

    options = {
        "distributed.scheduler.allowed-failures": 1,  # a worker takes seconds to start again
        # A LocalCluster gives up a worker that is just starting again so long after an earlier death
        "distributed.deploy.lost-worker-timeout": "1 hour",
    }
    with (
        dask.config.set(options),
        LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
    ):
        proxy = Proxy(int(cluster.scheduler_address.rpartition(":")[2]))
        yield f"dask:tcp://127.0.0.1:{proxy.port}", proxy


@contextlib.contextmanager
def ray_address(count: int) -> Iterator[str]:
    import ray

    paths = {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}}
    ray.init(num_cpus=count, include_dashboard=False, logging_level=50, log_to_driver=False, runtime_env=paths)
    try:
        yield "ray:auto"
    finally:
        ray.shutdown()


def accidents(folder: Path, pids: Path, proxy: Proxy | None, log: dict[str, Any], shards: int) -> Callable[[], None]:
    """Kill a worker once a third of the shards is listed, cut the connection at two thirds; a call ends the watch."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            done = len(list(folder.glob("*.h5")))
            if done >= shards // 3 and "killed" not in log:
                for pid in sorted((int(each.name) for each in pids.iterdir()), reverse=True):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        log["killed"] = f"a worker, at {done} of {shards} shards"
                        break
            if done >= 2 * shards // 3 and "cut" not in log and proxy:
                log["cut"] = f"the client's connection, at {done} of {shards} shards"
                proxy.cut()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return over.set


def features_digest(path: Path) -> dict[str, str]:
    """By image, a hash of every bit that is stored."""
    found = {}
    with open_features(path) as source:
        for name in source.names():
            one = source.read(name)
            keys = one.keypoints
            arrays = keys.xy, keys.size, keys.angle, keys.response, one.descriptors, np.array(one.image_size)
            found[name] = hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()
    return found


def matches_digest(path: Path) -> dict[str, str]:
    found = {}
    with open_matches(path) as source:
        for pair in source.pairs():
            one = source.read(*pair)
            found[str(pair)] = hashlib.sha256(one.indices.tobytes() + one.distances.tobytes()).hexdigest()
    return found


def listed_twice(path: Path) -> int:
    """Entries that more than one shard lists."""
    with open_features(path) as source:
        items = [item for shard in source.shards for item in shard.items]
    return len(items) - len(set(items))


def run_engine(name: str, workers: Workers, proxy: Proxy | None, images: dict[str, Path], work: Path) -> dict[str, Any]:
    place, pids, log = work / name, work / f"{name}.pids", dict[str, Any]()
    for each in (place, pids):
        shutil.rmtree(each, ignore_errors=True)
    pids.mkdir()
    poison = list(images)[len(images) // 2]
    opener = partial(open_deadly, poison, pids, os.getpid())
    end = accidents(place, pids, proxy, log, len(images) // SHARD)
    began = time.perf_counter()
    report = extract_images(images, place, opener, workers, shard_size=SHARD)
    seconds = time.perf_counter() - began
    end()
    expected, found = features_digest(work / "reference.h5"), features_digest(place)
    expected.pop(poison)
    pairs = sequential_pairs(sorted(expected), OVERLAP)
    shutil.rmtree(work / f"{name}.matches", ignore_errors=True)
    match_pairs(place, work / f"{name}.matches", pairs, workers=workers, shard_size=PAIRS_IN_SHARD)
    matches, known = matches_digest(work / f"{name}.matches"), matches_digest(work / "reference.matches.h5")
    known = {key: value for key, value in known.items() if key in matches}
    print(name, f"{seconds:.0f} s", log, flush=True)
    return {
        "accidents": log,
        "failed": {key: reason.replace(str(images[key].parent), "PHOTOS") for key, reason in report.failed.items()},
        "poison": poison,
        "images": len(found),
        "lost": len(expected.keys() - found.keys()),
        "twice": listed_twice(place),
        "different": sum(found[key] != expected[key] for key in found.keys() & expected.keys()),
        "pairs": len(matches),
        "pairs_compared": len(known),
        "pairs_different": sum(matches[key] != known[key] for key in known),
        "seconds": round(seconds, 1),
    }


def make_reference(images: dict[str, Path], work: Path) -> None:
    """What this very process finds, in single files; kept for the next engine."""
    extract_images(images, work / "reference.h5", partial(open_extractor, **OPTIONS))
    poison = list(images)[len(images) // 2]
    pairs = sequential_pairs([name for name in sorted(images) if name != poison], OVERLAP)
    match_pairs(work / "reference.h5", work / "reference.matches.h5", pairs)


def equality(images: dict[str, Path], work: Path, engine: str, count: int) -> dict[str, Any]:
    make_reference(images, work)
    name = f"{engine}{count}"
    if engine == "processes":
        found = run_engine(name, Workers(count), None, images, work)
    elif engine == "dask":
        with dask_address(count) as (address, proxy):
            found = run_engine(name, Workers(1, address), proxy, images, work)
    else:
        with ray_address(count) as address:
            found = run_engine(name, Workers(1, address), None, images, work)
    return {"of_images": len(images), "shard_size": SHARD, "options": OPTIONS, **found}


def descendants() -> dict[int, psutil.Process]:
    return {each.pid: each for each in psutil.Process().children(recursive=True)}


class Stamped(FeatureCollectionWriter):
    """Notes wall-clock and CPU time whenever a shard is listed: of this process and of those not ``left_out``."""

    times: ClassVar[list[np.ndarray]] = []
    left_out: ClassVar[set[int]] = set()

    def add(self, part: Part, items: Iterable[Item]) -> None:
        super().add(part, items)
        own = [each for pid, each in descendants().items() if pid not in self.left_out]
        spent = 0.0
        for each in [psutil.Process(), *own]:
            with contextlib.suppress(psutil.NoSuchProcess):
                spent += sum(each.cpu_times()[:2])
        self.times.append(np.array([time.perf_counter(), spent]))


def timed(images: dict[str, Path], place: Path, workers: Workers, options: dict[str, Any], size: int) -> list[float]:
    """Seconds, and seconds of CPU, from the second shard to the last: workers have started, and loaded the model."""
    shutil.rmtree(place, ignore_errors=True)
    Stamped.times.clear()
    extract_images(images, place, partial(open_extractor, **options), workers, shard_size=size)
    return [round(float(each), 2) for each in Stamped.times[-1] - Stamped.times[1]]


def overhead(images: dict[str, Path], work: Path, turns: int, options: dict[str, Any], size: int) -> dict[str, Any]:
    """Of each engine over processes, with both clusters running; those of the others are not counted."""
    batch.FeatureCollectionWriter = Stamped  # type: ignore[misc]
    engines, found = {"processes": Workers(2)}, dict[str, list[list[float]]]()
    with dask_address(2) as (dask, _):
        of_dask = set(descendants())
        with ray_address(2) as ray:
            of_ray = set(descendants()) - of_dask
            engines |= {"Dask": Workers(1, dask), "Ray": Workers(1, ray)}
            left_out = {"processes": of_dask | of_ray, "Dask": of_ray, "Ray": of_dask}
            for turn in range(-1, turns):  # the first one starts workers, and does not count
                for name in list(engines) if turn % 2 else list(engines)[::-1]:
                    Stamped.left_out = left_out[name]
                    taken = timed(images, work / "timed", engines[name], options, size)
                    if turn >= 0:
                        found.setdefault(name, []).append(taken)
                print(turn, found, os.getloadavg()[0], flush=True)
    medians = {name: np.median(each, axis=0) for name, each in found.items()}
    ratios = {name: medians[name] / medians["processes"] - 1 for name in ("Dask", "Ray")}
    return {
        "images_counted": len(images) - 2 * size,
        "shard_size": size,
        "options": options,
        "seconds_and_cpu_seconds": found,
        "medians": {name: each.round(2).tolist() for name, each in medians.items()},
        "overhead_of_medians": {name: each.round(3).tolist() for name, each in ratios.items()},
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["equality", "overhead"])
    parser.add_argument("photos", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--engine", choices=["processes", "dask", "ray"], default="processes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--shard-size", type=int, default=SHARD)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, sys.path)])  # workers import this file
    import collection_engines as module  # not as __main__, which workers lack

    images = dict(list(find_images([given.photos]).items())[: given.images])
    if given.what == "equality":
        found = module.equality(images, given.work, given.engine, given.workers)
        save_section("collections", f"{given.engine}, {given.workers} workers", found)
    else:
        options = OPTIONS if given.small else {"model": OPTIONS["model"], "max_size": 1600}
        found = module.overhead(images, given.work, given.turns, options, given.shard_size)
        save_section("collections", f"overhead, {'small' if given.small else 'whole'} photos", found)


if __name__ == "__main__":
    main()
