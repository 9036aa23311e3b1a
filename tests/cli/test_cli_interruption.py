"""Signals to real processes. Their work would take ten minutes: they end because they are told to."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest

from logpolar.features.files import FeatureFile

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

PATIENCE = 60  # seconds after which a test that waits for another process gives up

EXTRACTION = """
import os, pathlib, time
from logpolar.features import extractor
extract = extractor.Extractor.extract

def slowly(self, image, *more):
    if pathlib.Path(image).name != "0.png":
        pathlib.Path({place!r}, f"worker-{{os.getpid()}}").touch()
        while not pathlib.Path({place!r}, "go").exists():
            time.sleep(0.05)
    return extract(self, image, *more)

extractor.Extractor.extract = slowly
"""
"""Python runs this before anything else, in workers too: the first image is described, the others wait for a file."""

COMMAND = """
import hashlib, sys, time
from pathlib import Path
from logpolar.cli import main
from logpolar.distributed import in_processes
from logpolar.features.files import FeatureWriter
from logpolar.sfm.pycolmap_compat import import_pycolmap

@main.command()
def test():
    place = Path({place!r})
    {body}

main(["test"])
"""

LIBRARY_CALL = "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"
"""Takes minutes, and delays Python's signal handlers."""


@contextlib.contextmanager
def running(command, tmp_path, **more):
    """The process, in a group of its own, of which nothing remains."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, *command], **pipes, text=True, start_new_session=True, **more)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for(condition, process):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, "waited in vain for another process"
        time.sleep(0.05)


def assert_ended(process, code, *lines):
    """All processes hold its pipes: they end when the last of them does."""
    _, stderr = process.communicate(timeout=PATIENCE)
    said = [line for line in stderr.splitlines() if "jobs on 1 core" not in line]
    assert (process.returncode, said) == (code, list(lines))


@contextlib.contextmanager
def extraction(tmp_path, **more):
    """``extract`` with two workers, which has finished one image of three, and the output.

    The others wait for ``tmp_path / "hooks" / "go"``.
    """
    photos, hooks, output = tmp_path / "photos", tmp_path / "hooks", tmp_path / "output"
    for folder in (photos, hooks, output):
        folder.mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (64, 64), np.uint8)
        cv2.imwrite(str(photos / f"{number}.png"), pixels)
    (hooks / "sitecustomize.py").write_text(EXTRACTION.format(place=str(hooks)))
    paths = os.pathsep.join([str(hooks), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = ["-m", "logpolar", "extract", photos, "-o", output / "f.h5", "-j", 2]

    def half_done():
        if not (output / "f.h5").exists():
            return False
        with FeatureFile(output / "f.h5") as file:
            return file.names() == ["0.png"] and len(list(hooks.glob("worker-*"))) == 2

    more["env"] = {**os.environ, "PYTHONPATH": paths}
    with running([str(word) for word in command], tmp_path, **more) as process:
        wait_for(half_done, process)
        yield process, output / "f.h5"


@contextlib.contextmanager
def command(body, tmp_path, **more):
    """A command with this body, which touches ``place / "here"``."""
    program = COMMAND.format(place=str(tmp_path), body=body)
    with running(["-c", program], tmp_path, **more) as process:
        wait_for((tmp_path / "here").exists, process)
        yield process


class TestFirst:
    @pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGHUP", 129)])
    def test_stops_and_keeps_what_is_done(self, tmp_path, name, code):
        """To the process and to its group, as ``timeout`` sends it: that counts once."""
        with extraction(tmp_path) as (process, output):
            number = getattr(signal, name)
            process.send_signal(number)
            os.killpg(process.pid, number)
            line = f"logpolar: stopped; finished work is in {output}; rerun the command to resume"
            assert_ended(process, code, line)
        with FeatureFile(output) as file:
            assert file.names() == ["0.png"]
        assert [path.name for path in output.parent.iterdir()] == ["f.h5"]

    def test_does_not_wait_for_a_library(self, tmp_path):
        body = f"with FeatureWriter(place / 'f.h5', {{}}): (place / 'here').touch(); {LIBRARY_CALL}"
        with command(body, tmp_path) as process:
            process.send_signal(signal.SIGTERM)
            assert_ended(process, 143, "logpolar: stopped; finished work is kept")
        assert {path.name for path in tmp_path.iterdir()} == {"here", "f.h5"}

    def test_does_not_wait_for_what_is_slow_to_stop(self, tmp_path):
        """Workers included."""
        body = """
    try:
        for _ in in_processes(time.sleep, [0, *[600] * 9], 2):
            (place / 'here').touch()
            time.sleep(600)
    finally:
        time.sleep(600)"""
        with command(body, tmp_path) as process:
            process.send_signal(signal.SIGINT)
            assert_ended(process, 130, "logpolar: stopped; finished work is kept")

    def test_to_the_end_of_python_changes_nothing(self, tmp_path):
        """What a command did is done when Python ends, and so its exit code is that of a success."""
        body = """
    import os
    class Last:
        def __del__(self, sleep=time.sleep, mkdir=os.mkdir, here=str(place / 'here')):
            mkdir(here), sleep(2)
    global last
    last = Last()"""
        with command(body, tmp_path) as process:
            process.send_signal(signal.SIGTERM)
            assert_ended(process, 0)

    def test_is_ours_once_colmap_is_loaded(self, tmp_path):
        pytest.importorskip("pycolmap")
        with command("import_pycolmap('a'); (place / 'here').touch(); time.sleep(600)", tmp_path) as process:
            process.send_signal(signal.SIGTERM)
            assert_ended(process, 143, "logpolar: stopped")

    def test_is_recognised_behind_an_error_of_a_library(self, tmp_path):
        body = """
    try:
        (place / 'here').touch(); time.sleep(600)
    except KeyboardInterrupt as error:
        raise ImportError("initialization failed") from error"""
        with command(body, tmp_path) as process:
            process.send_signal(signal.SIGINT)
            assert_ended(process, 130, "logpolar: stopped")


def ignoring(*numbers):
    """What a caller does before it starts a process: ``nohup`` with SIGHUP, scripts with SIGINT of background jobs."""

    def ignore():
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    return ignore


class TestIgnored:
    """By the caller, as ``nohup`` and scripts do."""

    @pytest.mark.parametrize("name", ["SIGHUP", "SIGINT"])
    def test_it_changes_nothing(self, tmp_path, name):
        """To the group, as a terminal sends it that is closed: the workers go on, too."""
        number = getattr(signal, name)
        with extraction(tmp_path, preexec_fn=ignoring(number)) as (process, output):
            os.killpg(process.pid, number)
            (tmp_path / "hooks" / "go").touch()
            assert_ended(process, 0)
        with FeatureFile(output) as file:
            assert file.names() == ["0.png", "1.png", "2.png"]

    def test_others_stop_as_ever(self, tmp_path):
        pytest.importorskip("pycolmap")
        body = "import_pycolmap('a'); (place / 'here').touch(); time.sleep(600)"
        with command(body, tmp_path, preexec_fn=ignoring(signal.SIGHUP, signal.SIGINT)) as process:
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                process.send_signal(number)
            assert_ended(process, 143, "logpolar: stopped")


def test_while_python_loads_the_commands_nothing_is_said(tmp_path):
    """The hook waits where the command line would be imported."""
    (tmp_path / "sitecustomize.py").write_text(f"""
import builtins, pathlib, time
load = builtins.__import__

def slowly(name, *more, **options):
    if name == "logpolar.cli":
        pathlib.Path({str(tmp_path)!r}, "here").touch()
        time.sleep(600)
    return load(name, *more, **options)

builtins.__import__ = slowly
""")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        (tmp_path / "here").unlink(missing_ok=True)
        with running(["-m", "logpolar", "models"], tmp_path, env={**os.environ, "PYTHONPATH": paths}) as process:
            wait_for((tmp_path / "here").exists, process)
            process.send_signal(number)
            assert_ended(process, code)


def test_the_second_ends_at_once(tmp_path):
    """Even where the command has a handler of its own and waits for something, workers included."""
    body = """
    import signal
    signal.signal(signal.SIGINT, lambda number, frame: (place / 'stopping').touch())
    for _ in in_processes(time.sleep, [0, *[600] * 9], 2):
        (place / 'here').touch()
        time.sleep(600)"""
    with command(body, tmp_path) as process:
        process.send_signal(signal.SIGINT)
        wait_for((tmp_path / "stopping").exists, process)
        time.sleep(0.5)  # less is the same press
        process.send_signal(signal.SIGINT)
        assert_ended(process, 130)
