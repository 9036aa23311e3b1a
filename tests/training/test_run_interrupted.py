"""Runs that are stopped, or fail on the way, and are gone on with: to the bit what an undisturbed run gives."""

from __future__ import annotations

import _thread
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from logpolar import load_model
from logpolar.cli import main
from logpolar.errors import LogpolarError
from logpolar.training import loop, run, stopping
from logpolar.training.config import read_config
from logpolar.training.loop import Trainer
from logpolar.training.run import train
from logpolar.training.stopping import Stopped
from training_runs import assert_same_records, assert_same_training, read_rows, state_of, without_graphs

pytestmark = pytest.mark.usefixtures("quick")
PATIENCE = 120  # seconds; only a broken test waits that long


@pytest.fixture(scope="module")
def undisturbed(place, tmp_path_factory):
    """The folder of a run in one piece; not to be changed."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        without_graphs(monkeypatch)
        folder = tmp_path_factory.mktemp("undisturbed")
        train(read_config(place / "tiny.toml"), folder)
        return folder


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def after_step(monkeypatch):
    """Have something done once, right after a step was made and before anything comes of it."""

    def arrange(step, act):
        original, done = Trainer.advance, []

        def advance(self):
            loss = original(self)
            if self.step == step and not done:
                done.append(True)
                loss = act(self, loss)
            return loss

        monkeypatch.setattr(Trainer, "advance", advance)

    return arrange


def press_ctrl_c(trainer, loss):
    # To this very thread: what is sent to the process may reach another one, after the test has ended.
    _thread.interrupt_main()
    return loss


def cut_the_power(*arguments):
    raise RuntimeError("power cut")


def assert_same_run(folder, undisturbed):
    assert_same_training(folder, undisturbed)
    assert_same_records(folder, undisturbed)
    ours, theirs = (load_model(each / "tiny.safetensors") for each in (folder, undisturbed))
    assert all(np.array_equal(ours.weights[name], theirs.weights[name]) for name in theirs.weights)
    assert ours.card.figures == theirs.card.figures
    assert not [each.name for each in folder.iterdir() if each.name.endswith(".half")]


class TestCtrlC:
    @pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 6])
    def test_at_any_step(self, tiny, folder, undisturbed, after_step, step):
        after_step(step, press_ctrl_c)
        with pytest.raises(Stopped, match=f"stopped after step {step}; rerun the command to resume"):
            train(tiny(), folder)
        assert state_of(folder)["step"] == state_of(folder)["trainer"]["step"] == step
        assert not (folder / "tiny.safetensors").exists()
        report = train(tiny(), folder)
        assert (report.continued_from, report.was_complete) == (step, False)
        assert_same_run(folder, undisturbed)

    def test_does_not_wait_for_a_step_that_takes_long(self, tiny, folder, undisturbed, monkeypatch):
        """Given up at its end, before the weights change: all but that has changed by then."""
        original, goes_on = loop.descriptor_loss, threading.Event()

        def slow(*arguments):
            if len(called) == 3:
                _thread.interrupt_main()
                goes_on.wait(PATIENCE)
            called.append(1)
            return original(*arguments)

        called: list[int] = []
        with monkeypatch.context() as context:
            context.setattr(stopping, "PATIENCE", 0.0)
            context.setattr(loop, "descriptor_loss", slow)
            with pytest.raises(Stopped, match="stopped after step 3; rerun"):
                train(tiny("run.checkpoint_every=100"), folder)
            goes_on.set()
        assert state_of(folder)["step"] == 3
        assert train(tiny(), folder).continued_from == 3
        assert_same_run(folder, undisturbed)

    def test_several_times(self, tiny, folder, undisturbed, after_step):
        for step in (2, 5):
            after_step(step, press_ctrl_c)
            with pytest.raises(Stopped):
                train(tiny(), folder)
        train(tiny(), folder)
        assert_same_run(folder, undisturbed)

    def test_while_validating(self, tiny, folder, undisturbed, monkeypatch):
        """The step it names is one that has a checkpoint."""
        original, calls = run.validate, []

        def validate(*arguments):
            calls.append(arguments)
            if len(calls) == 1:
                _thread.interrupt_main()
            return original(*arguments)

        monkeypatch.setattr(run, "validate", validate)
        with pytest.raises(Stopped) as caught:
            train(tiny("run.checkpoint_every=100"), folder)
        assert f"after step {state_of(folder)['step']};" in str(caught.value)
        train(tiny(), folder)
        assert_same_run(folder, undisturbed)

    def test_after_starting_anew_only_the_model_is_left_of_the_former_run(self, tiny, folder, undisturbed, after_step):
        shutil.copytree(undisturbed, folder)
        after_step(1, press_ctrl_c)
        with pytest.raises(Stopped):
            train(tiny(), folder, overwrite=True)
        # The model stays until there is another: it may be the only copy.
        assert (folder / "tiny.safetensors").read_bytes() == (undisturbed / "tiny.safetensors").read_bytes()
        assert [row["step"] for row in read_rows(folder / "log.csv")] == ["1"]
        assert train(tiny(), folder).continued_from == 1
        assert_same_run(folder, undisturbed)

    def test_twice_stops_at_once(self, tiny, folder, after_step):
        def press_twice(trainer, loss):
            press_ctrl_c(trainer, loss)
            time.sleep(0.5)  # until the main thread has noticed
            return press_ctrl_c(trainer, loss)

        after_step(5, press_twice)
        with pytest.raises(KeyboardInterrupt):
            train(tiny(), folder)
        assert state_of(folder)["step"] == 4

    def test_has_its_usual_meaning_again_afterwards(self, tiny, folder, after_step):
        before = signal.getsignal(signal.SIGINT)
        after_step(1, press_ctrl_c)
        with pytest.raises(Stopped):
            train(tiny(), folder)
        assert signal.getsignal(signal.SIGINT) is before

    def test_other_threads_can_train_without_it(self, tiny, folder, undisturbed):
        thread = threading.Thread(target=train, args=(tiny(), folder))
        thread.start()
        thread.join(PATIENCE)
        assert_same_run(folder, undisturbed)

    def test_seconds_are_those_of_all_pieces(self, tiny, folder, after_step, monkeypatch):
        clock = iter(range(0, 10**6, 100))
        monkeypatch.setattr(run.time, "perf_counter", lambda: next(clock))
        after_step(3, press_ctrl_c)
        with pytest.raises(Stopped):
            train(tiny(), folder)
        assert state_of(folder)["seconds"] == 300  # a tick of 100 s a step
        report = train(tiny(), folder)
        assert state_of(folder)["seconds"] == load_model(report.model).card.training["seconds"] == 600
        assert [float(row["seconds"]) for row in read_rows(folder / "log.csv")] == [100, 200, 300, 400, 500, 600]
        assert {float(row["steps_per_second"]) for row in read_rows(folder / "log.csv")} == {0.01}


class TestFailure:
    def test_power_cut_costs_what_came_after_the_checkpoint(self, tiny, folder, undisturbed, after_step):
        after_step(6, cut_the_power)
        with pytest.raises(RuntimeError, match="power cut"):
            train(tiny(), folder)
        assert [row["step"] for row in read_rows(folder / "log.csv")] == ["1", "2", "3", "4", "5"]
        assert train(tiny(), folder).continued_from == 4
        assert_same_run(folder, undisturbed)

    def test_power_cut_before_any_checkpoint(self, tiny, folder, undisturbed, after_step):
        after_step(3, cut_the_power)
        with pytest.raises(RuntimeError, match="power cut"):
            train(tiny(), folder)
        assert train(tiny(), folder).continued_from == 0
        assert_same_run(folder, undisturbed)

    @pytest.mark.parametrize("name", ["save_model", "network_file"])
    def test_power_cut_at_the_end(self, tiny, folder, undisturbed, monkeypatch, name):
        """The run is not taken for complete before all of its files are there."""
        with monkeypatch.context() as context:
            context.setattr(run, name, cut_the_power)
            with pytest.raises(RuntimeError, match="power cut"):
                train(tiny(), folder)
        assert not train(tiny(), folder).was_complete
        assert (folder / "tiny.onnx").exists()
        assert (folder / "card.json").exists()
        assert_same_run(folder, undisturbed)

    def test_loss_that_is_not_a_number(self, tiny, folder, undisturbed, monkeypatch):
        original, calls = loop.descriptor_loss, []

        def spoilt(*arguments):
            calls.append(arguments)
            return original(*arguments) * (float("nan") if len(calls) == 6 else 1)

        with monkeypatch.context() as context:
            context.setattr(loop, "descriptor_loss", spoilt)
            with pytest.raises(LogpolarError) as caught:
                train(tiny(), folder)
        words = "the loss diverged at step 6 (the last good checkpoint is kept); try a lower learning rate"
        assert str(caught.value) == words
        state = state_of(folder)
        assert state["step"] == 4
        assert all(values.isfinite().all() for values in state["trainer"]["network"].values())
        train(tiny(), folder)
        assert_same_run(folder, undisturbed)

    def test_not_a_number_from_the_start(self, tiny, folder, after_step):
        after_step(1, lambda trainer, loss: loss * float("inf"))
        with pytest.raises(LogpolarError, match=r"at step 1 \(there is no checkpoint yet\)"):
            train(tiny(), folder)

    def test_weights_that_are_not_numbers_are_not_kept(self, tiny, folder, after_step):
        """The loss of a step is that before its change of the weights."""

        def spoil(trainer, loss):
            with torch.no_grad():
                next(trainer.result.parameters()).view(-1)[0] = float("nan")
            return loss

        after_step(4, spoil)
        with pytest.raises(LogpolarError, match="diverged at step 4"):
            train(tiny("run.checkpoint_every=2"), folder)
        assert state_of(folder)["step"] == 3

    def test_full_disk(self, tiny, folder, undisturbed, monkeypatch):
        original, former = run.save_checkpoint, []

        def save(path, state):
            if state["step"] == 4:
                former.append(path.read_bytes())
                context.setattr(os, "fsync", full)
            original(path, state)

        def full(handle):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as context:
            context.setattr(run, "save_checkpoint", save)
            with pytest.raises(OSError, match="No space left") as caught:
                train(tiny("run.checkpoint_every=2"), folder)
        assert caught.value.filename == str(folder / "checkpoint.pt")
        assert [(folder / "checkpoint.pt").read_bytes()] == former
        assert sorted(each.name for each in folder.iterdir()) == [
            "checkpoint.pt",
            "config.toml",
            "log.csv",
            "validation.csv",
        ]
        assert train(tiny(), folder).continued_from == 3  # before it was validated
        assert_same_run(folder, undisturbed)

    def test_damaged_checkpoint(self, tiny, folder, undisturbed):
        shutil.copytree(undisturbed, folder)
        data = (folder / "checkpoint.pt").read_bytes()
        (folder / "checkpoint.pt").write_bytes(data[: len(data) // 2])
        with pytest.raises(
            LogpolarError, match=r"checkpoint\.pt: not a checkpoint, or a damaged one; delete it or --overwrite$"
        ):
            train(tiny(), folder)
        train(tiny(), folder, overwrite=True)
        assert_same_run(folder, undisturbed)

    @pytest.mark.parametrize("change", [{"scores": {"a": 1}}, {"step": 1, "trainer": {}}, {"step": 1, "data": [None]}])
    def test_a_checkpoint_with_other_content(self, tiny, folder, undisturbed, change):
        shutil.copytree(undisturbed, folder)
        torch.save({**torch.load(folder / "checkpoint.pt", weights_only=True), **change}, folder / "checkpoint.pt")
        with pytest.raises(LogpolarError, match=r"checkpoint\.pt: this checkpoint is damaged; delete it"):
            train(tiny(), folder)


WAITING = """
import pathlib, time
from logpolar.training import loop

advance, place = loop.Trainer.advance, pathlib.Path({place!r})

def wait_at_second(self):
    if self.step == 1:
        (place / "here").touch()
        while not (place / "go").exists():
            time.sleep(0.01)
    return advance(self)

loop.Trainer.advance = wait_at_second
"""
"""Python runs this before anything else: the second step begins, and then waits for a file."""


def test_ctrl_c_of_a_real_process(place, tmp_path, undisturbed):
    (tmp_path / "sitecustomize.py").write_text(WAITING.format(place=str(tmp_path)))
    command = ["train", str(place / "tiny.toml"), "-o", str(tmp_path / "run")]
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-m", "logpolar", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while not (tmp_path / "here").exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline, "waited in vain for another process"
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        (tmp_path / "go").touch()
        stdout, stderr = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert stdout.startswith("training tiny on ")
    assert len(stdout.splitlines()) == 1
    assert stderr == "logpolar: stopped after step 2; rerun the command to resume\n"
    assert state_of(tmp_path / "run")["step"] == 2
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert_same_run(tmp_path / "run", undisturbed)
