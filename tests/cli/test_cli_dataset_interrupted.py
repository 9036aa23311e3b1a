from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dataset_commands import COMMANDS, IMAGES, PATIENCE, SCENE, run
from helpers import assert_same_content
from logpolar.datasets import homographies, scenes
from logpolar.datasets.files import CorrespondenceFile


class TestInterrupted:
    """Ctrl-C, in this process."""

    @pytest.mark.parametrize("command", COMMANDS)
    def test_says_where_things_are_and_continues(self, places, scene_file, photo_file, tmp_path, monkeypatch, command):
        module, name = {"colmap": (scenes, "link_views"), "homographies": (homographies, "make_view_pair")}[command]
        whole = {"colmap": scene_file, "homographies": photo_file}[command]
        original, calls = getattr(module, name), []

        def stop_at_fourth(*arguments):
            calls.append(arguments)
            if len(calls) == 4:
                raise KeyboardInterrupt
            return original(*arguments)

        monkeypatch.setattr(module, name, stop_at_fourth)
        path, settings = COMMANDS[command]
        output = tmp_path / "out.h5"
        result = run(command, places / path, "-o", output, *settings)
        assert result.exit_code == 130
        assert result.stderr == f"logpolar: stopped; finished work is in {output}; rerun the command to resume\n"
        assert result.stdout == ""
        with CorrespondenceFile(output) as file:
            assert (len(file), file.complete) == (3, False)
        shown = run("show", output)
        assert shown.exit_code == 0
        assert "INCOMPLETE" in shown.stdout
        assert run(command, places / path, "-o", output, *settings).exit_code == 0
        assert len(calls) == 4 + 3
        assert_same_content(output, whole)
        assert [each.name for each in tmp_path.iterdir()] == ["out.h5"]

    def test_before_anything_is_done_nothing_is_promised(self, places, tmp_path, monkeypatch):
        def stop(task):
            raise KeyboardInterrupt

        monkeypatch.setattr(scenes, "prepare_view", stop)
        result = run("colmap", places / "one", "-o", tmp_path / "out.h5", *SCENE)
        assert (result.exit_code, result.stderr) == (130, "logpolar: stopped\n")
        assert not (tmp_path / "out.h5").exists()

    def test_while_images_are_prepared(self, places, scene_file, tmp_path, monkeypatch):
        original, calls = scenes.prepare_view, []

        def stop_at_third(task):
            calls.append(task)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return original(task)

        monkeypatch.setattr(scenes, "prepare_view", stop_at_third)
        assert run("colmap", places / "one", "-o", tmp_path / "out.h5", *SCENE).exit_code == 130
        with CorrespondenceFile(tmp_path / "out.h5") as file:
            assert [entry.name for entry in file.images] == IMAGES[:2]
        assert run("colmap", places / "one", "-o", tmp_path / "out.h5", *SCENE).exit_code == 0
        assert len(calls) == 3 + 2
        assert_same_content(tmp_path / "out.h5", scene_file)


SLOW = """
import time
from logpolar.storage import hdf5
from logpolar.cli import main
from logpolar.datasets import building, scenes

flush, in_batches = hdf5.flush, building.in_batches

def flush_slowly(path):
    time.sleep(0.02)
    flush(path)

def one_by_one(items, size, store):
    in_batches(items, 1, store)

hdf5.flush = flush_slowly
building.in_batches = scenes.in_batches = one_by_one
main()
"""
"""The command line with a transaction for each image and each pair, which takes its time."""


def start(command: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, "dataset", command, *map(str, arguments), "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextlib.contextmanager
def started(*arguments: object):
    """A process that takes all its workers with it should the test fail."""
    process = start(*arguments)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def identity(path: Path) -> int | None:
    """Changes whenever the file is replaced."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def wait_for_change(path: Path, before: int | None, process: subprocess.Popen[str]) -> None:
    """Until the file is replaced or the process ends."""
    deadline = time.monotonic() + PATIENCE
    while identity(path) == before and process.poll() is None:
        assert time.monotonic() < deadline, "waited in vain for another process"
        time.sleep(0.002)


@pytest.mark.parametrize("command", COMMANDS)
class TestRealProcesses:
    """With two workers, which hold the pipes too: ``communicate`` returns when the last of them has ended."""

    def test_ctrl_c_is_one_line_and_the_file_continues(self, places, scene_file, photo_file, tmp_path, command):
        path, settings = COMMANDS[command]
        output = tmp_path / "out.h5"
        with started(command, places / path, "-o", output, *settings) as process:
            wait_for_change(output, None, process)
            wait_for_change(output, identity(output), process)  # so there is a worker that made something
            os.killpg(process.pid, signal.SIGINT)  # to all of them, as a terminal sends it
            stdout, stderr = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        assert stdout == ""
        lines = [line for line in stderr.splitlines() if "more memory" not in line]  # which a single core makes it say
        assert lines == [f"logpolar: stopped; finished work is in {output}; rerun the command to resume"]
        with CorrespondenceFile(output) as file:
            assert not file.complete
        assert run(command, places / path, "-o", output, *settings).exit_code == 0
        assert_same_content(output, {"colmap": scene_file, "homographies": photo_file}[command])
        assert [each.name for each in tmp_path.iterdir()] == ["out.h5"]

    def test_killed_at_any_moment_the_file_is_whole_and_can_be_continued(
        self, places, scene_file, photo_file, tmp_path, command
    ):
        path, settings = COMMANDS[command]
        output, moment = tmp_path / "out.h5", random.Random(7)
        for attempt, additions in enumerate((2, 3)):
            before = identity(output)
            with started(command, places / path, "-o", output, *settings) as process:
                for _ in range(additions):
                    wait_for_change(output, before, process)
                    before = identity(output)
                time.sleep(moment.uniform(0, 0.06))
                process.kill()
                process.communicate(timeout=PATIENCE)
            assert process.returncode == -signal.SIGKILL or attempt > 0, "the first must not end before it is killed"
            with CorrespondenceFile(output) as file:
                for pair in file.pairs():
                    file.read(pair)
        assert run(command, places / path, "-o", output, *settings).exit_code == 0
        assert_same_content(output, {"colmap": scene_file, "homographies": photo_file}[command])
        assert [each.name for each in tmp_path.iterdir()] == ["out.h5"]


def test_a_real_process_has_the_exit_code_and_one_line_of_error(tmp_path):
    program = "from logpolar.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "dataset", "colmap", "nowhere", "-o", "out.h5"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "logpolar: error: nowhere: no such folder\n"
