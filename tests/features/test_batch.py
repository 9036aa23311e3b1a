from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

from logpolar.cli.options import open_extractor
from logpolar.errors import StorageError
from logpolar.features.batch import GivenKeypoints, extract_images
from logpolar.features.extractor import Extractor, Features
from logpolar.features.files import FeatureFile
from logpolar.images import find_images
from logpolar.keypoints import Keypoints

PATIENCE = 60  # seconds after which a test that waits for another process gives up

open_small = partial(open_extractor, model="logpolar-96-small", max_keypoints=10, max_size=0, runtime="onnxruntime")
open_slow = partial(open_small, model="paper-cartesian-12", max_keypoints=60)  # as ``start_extraction``


@pytest.fixture
def folder(tmp_path, photo):
    """Six images, the last in a folder of its own."""
    place = tmp_path / "photos"
    (place / "deep").mkdir(parents=True)
    for number, name in enumerate(("0.png", "1.png", "2.png", "3.png", "4.png", "deep/5.png")):
        corner = 40 * number
        cv2.imwrite(str(place / name), photo[corner : corner + 160, corner : corner + 200])
    return place


def content_of(path: Path) -> dict[str, Features]:
    with FeatureFile(path) as file:
        return {name: file.read(name) for name in file.names()}


def assert_same_content(first: Path, second: Path) -> None:
    ours, theirs = content_of(first), content_of(second)
    assert list(ours) == list(theirs)
    for name in ours:
        assert ours[name].image_size == theirs[name].image_size
        np.testing.assert_array_equal(ours[name].keypoints.xy, theirs[name].keypoints.xy)
        np.testing.assert_allclose(ours[name].descriptors, theirs[name].descriptors, atol=1e-5)


def start_extraction(folder: Path, output: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from logpolar.cli import main; main()", "extract", str(folder), "-o", str(output)]
    return subprocess.Popen(
        [*command, "--max-keypoints", "60", "--model", "paper-cartesian-12", "--max-size", "0", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def wait_until(condition, process: subprocess.Popen[bytes] | None = None) -> None:
    """Until the condition holds or the process ends."""
    deadline = time.monotonic() + PATIENCE
    while not condition() and (process is None or process.poll() is None):
        if time.monotonic() > deadline:
            raise TimeoutError("waited in vain for another process")
        time.sleep(0.005)


class TestReport:
    def test_every_image_is_in_the_file_under_its_name(self, folder, tmp_path):
        images = find_images([folder])
        report = extract_images(images, tmp_path / "out.h5", open_small)
        assert (report.done, report.skipped, report.failed) == (6, 0, {})
        with FeatureFile(tmp_path / "out.h5") as file:
            assert file.names() == list(images)
            assert sum(len(file.read(name)) for name in images) == report.keypoints > 0
            assert file.read("0.png").image_size == (200, 160)

    def test_second_run_skips_what_is_there(self, folder, tmp_path):
        output = tmp_path / "out.h5"
        images = find_images([folder])
        some = {name: images[name] for name in ("1.png", "deep/5.png")}
        extract_images(some, output, open_small)
        with FeatureFile(output) as file:
            before = file.read("1.png")
        images["1.png"].unlink()  # proves that it is not read again
        report = extract_images(images, output, open_small)
        assert (report.done, report.skipped, report.failed) == (4, 2, {})
        with FeatureFile(output) as file:
            np.testing.assert_array_equal(file.read("1.png").descriptors, before.descriptors)

    def test_overwrite_starts_anew(self, folder, tmp_path):
        output = tmp_path / "out.h5"
        extract_images(find_images([folder]), output, open_small)
        report = extract_images(find_images([folder / "deep"]), output, open_small, overwrite=True)
        assert (report.done, report.skipped) == (1, 0)
        with FeatureFile(output) as file:
            assert file.names() == ["5.png"]

    def test_bad_image_is_reported_and_the_rest_done(self, folder, tmp_path):
        (folder / "2.png").write_text("no image")
        (folder / "3.png").write_bytes(b"")
        report = extract_images(find_images([folder]), tmp_path / "out.h5", open_small)
        assert report.done == 4
        assert sorted(report.failed) == ["2.png", "3.png"]
        assert "2.png: not an image" in report.failed["2.png"]
        assert "3.png: the file is empty" in report.failed["3.png"]
        with FeatureFile(tmp_path / "out.h5") as file:
            assert file.names() == ["0.png", "1.png", "4.png", "deep/5.png"]

    def test_bad_image_is_tried_again(self, folder, tmp_path, photo):
        output = tmp_path / "out.h5"
        (folder / "2.png").write_text("no image")
        extract_images(find_images([folder]), output, open_small)
        cv2.imwrite(str(folder / "2.png"), photo[:150, :150])
        report = extract_images(find_images([folder]), output, open_small)
        assert (report.done, report.skipped, report.failed) == (1, 5, {})

    def test_image_without_keypoints_is_done(self, folder, tmp_path):
        cv2.imwrite(str(folder / "2.png"), np.full((50, 50), 90, np.uint8))
        report = extract_images(find_images([folder]), tmp_path / "out.h5", open_small)
        assert report.done == 6
        with FeatureFile(tmp_path / "out.h5") as file:
            assert file.read("2.png").descriptors.shape == (0, 128)

    def test_progress_is_for_terminals_and_for_those_who_ask(self, folder, tmp_path, capfd, monkeypatch):
        images = find_images([folder / "deep"])
        extract_images(images, tmp_path / "a.h5", open_small, progress=True)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        extract_images(images, tmp_path / "b.h5", open_small)
        assert capfd.readouterr() == ("", "")
        extract_images(images, tmp_path / "c.h5", open_small, progress=True)
        assert "0/1" in capfd.readouterr().err  # and is cleared at the end


class TestProcesses:
    def test_parallel_equals_serial(self, folder, tmp_path):
        """Bad images are reported, too."""
        (folder / "2.png").write_text("no image")
        (folder / "3.png").write_bytes(b"")
        images = find_images([folder])
        serial = extract_images(images, tmp_path / "serial.h5", open_small)
        parallel = extract_images(images, tmp_path / "parallel.h5", open_small, workers=2)
        assert (serial.done, serial.keypoints, serial.failed) == (parallel.done, parallel.keypoints, parallel.failed)
        assert sorted(parallel.failed) == ["2.png", "3.png"]
        assert_same_content(tmp_path / "serial.h5", tmp_path / "parallel.h5")

    def test_more_jobs_than_images(self, folder, tmp_path):
        assert extract_images(find_images([folder / "deep"]), tmp_path / "out.h5", open_small, workers=50).done == 1

    def test_images_whose_workers_die_are_reported(self, folder, tmp_path):
        images = find_images([folder])
        report = extract_images(images, tmp_path / "out.h5", DiesInWorkers(os.getpid()), workers=2)
        assert sorted(report.failed) == sorted(images)
        assert all("was killed, perhaps out of memory" in reason for reason in report.failed.values())
        assert not (tmp_path / "out.h5").exists()

    @pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks for processes in /proc")
    def test_workers_die_with_a_killed_parent(self, tmp_path, photo):
        place = tmp_path / "photos"
        place.mkdir()
        for number in range(8):
            cv2.imwrite(str(place / f"{number}.png"), cv2.resize(photo, None, fx=2, fy=2))
        process = start_extraction(place, tmp_path / "out.h5", "--jobs", "2")
        try:
            wait_until(lambda: len(workers_of(process.pid)) == 2, process)
            workers = workers_of(process.pid)
        finally:
            process.kill()
        assert process.wait(PATIENCE) == -signal.SIGKILL
        assert len(workers) == 2
        try:
            wait_until(lambda: not any(is_alive(worker) for worker in workers))
        finally:
            for worker in filter(is_alive, workers):
                os.kill(worker, signal.SIGKILL)

    def test_killed_at_any_moment_the_file_is_whole_and_can_be_continued(self, folder, tmp_path):
        images = find_images([folder])
        extract_images(images, tmp_path / "undisturbed.h5", open_slow)
        output = tmp_path / "killed.h5"
        moment = random.Random(7)
        for attempt in range(3):
            before = identity(output)
            process = start_extraction(folder, output)
            wait_until(lambda before=before: identity(output) != before, process)
            time.sleep(moment.uniform(0, 0.1))
            process.kill()
            code = process.wait(PATIENCE)
            assert code == -signal.SIGKILL or attempt > 0, "the first run must not end before it is killed"
            with h5py.File(output) as file:
                assert file.attrs["format"] == "logpolar-features"
            for name, features in content_of(output).items():
                assert name in images
                assert len(features) == len(features.descriptors)
        already = len(content_of(output))
        report = extract_images(images, output, open_slow)
        assert (report.done, report.skipped) == (6 - already, already)
        assert_same_content(output, tmp_path / "undisturbed.h5")
        leftovers = sorted(path.name for path in tmp_path.glob("killed*"))
        assert leftovers == ["killed.h5"]


class DiesInWorkers:
    """Opens an extractor in the parent, and ends the process anywhere else."""

    def __init__(self, parent: int) -> None:
        self.parent = parent

    def __call__(self, threads: int):
        if os.getpid() != self.parent:
            os._exit(9)
        return open_small(threads=threads)


def identity(path: Path) -> int | None:
    """Changes whenever the file is replaced."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def workers_of(parent: int) -> list[int]:
    """Processes of the pool below a process; multiprocessing's resource tracker is not one of them."""
    found = []
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            try:
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(child)
            except FileNotFoundError:
                continue
    return found


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_name_that_is_not_utf8_is_left_out(tmp_path, photo):
    good, bad = tmp_path / "good.png", tmp_path / "latin\udce9.png"
    for path in (good, bad):
        path.write_bytes(cv2.imencode(".png", photo[:128, :128])[1].tobytes())
    report = extract_images({path.name: path for path in (good, bad)}, tmp_path / "f.h5", Extractor)
    assert (report.done, list(report.failed)) == (1, [bad.name])
    assert "UTF-8" in report.failed[bad.name]


@pytest.mark.parametrize("kind", [MemoryError, RuntimeError])
def test_an_image_too_much_for_the_machine_does_not_stop_the_rest(folder, tmp_path, kind):
    def detector(gray):
        if gray.max() == 0:
            raise kind("out of memory:\n1 TB wanted")
        return Keypoints.from_points([[5, 5]])

    cv2.imwrite(str(folder / "huge.png"), np.zeros((20, 20), np.uint8))
    report = extract_images(find_images([folder]), tmp_path / "f.h5", partial(Extractor, detector=detector))
    assert report.done == 6
    assert report.failed["huge.png"].endswith(f"({kind.__name__}: out of memory: 1 TB wanted)")


class TestGivenKeypoints:
    def given(self, source: str = "mine") -> GivenKeypoints:
        return GivenKeypoints(source, lambda name: Keypoints.from_points([[30, 40], [60, 20.5]], [5, 9], [10, 200]))

    @pytest.mark.parametrize("jobs", [1, 2])
    def test_are_described_and_nothing_is_detected(self, folder, tmp_path, jobs):
        images = find_images([folder / "1.png", folder / "2.png"])
        report = extract_images(images, tmp_path / "out.h5", open_small, jobs, given=self.given())
        assert (report.done, report.keypoints) == (2, 4)
        expected = open_small().extract(folder / "1.png", self.given().read("1.png"))
        found = content_of(tmp_path / "out.h5")["1.png"]
        np.testing.assert_array_equal(found.keypoints.table, expected.keypoints.table)
        np.testing.assert_allclose(found.descriptors, expected.descriptors, atol=1e-5)

    def test_of_another_source_are_not_mixed(self, folder, tmp_path):
        images = find_images([folder / "1.png"])
        extract_images(images, tmp_path / "out.h5", open_small, given=self.given())
        with pytest.raises(StorageError, match=r"detector\.name = mine, not yours"):
            extract_images(images, tmp_path / "out.h5", open_small, given=self.given("yours"))
