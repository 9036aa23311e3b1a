from __future__ import annotations

import _thread
import errno
import os
import shutil
import subprocess
import sys

import h5py
import pytest
from click.testing import CliRunner

from helpers import assert_one_error
from logpolar.cli import main
from logpolar.evaluation.report.runs import read_runs
from logpolar.models import load_model
from logpolar.training import run as running
from logpolar.training.config import read_config
from logpolar.training.loop import Trainer
from logpolar.training.recipes import RECIPES
from training_runs import build_set, read_rows, without_graphs


@pytest.fixture(scope="module")
def place(photo, tmp_path_factory):
    """A folder with ``one.h5``, ``two.h5`` and ``tiny.toml``; not to be changed."""
    folder = tmp_path_factory.mktemp("set")
    build_set(photo, folder)
    return folder


@pytest.fixture
def quick(monkeypatch):
    without_graphs(monkeypatch)


@pytest.fixture(scope="module")
def finished(place, tmp_path_factory):
    """What the command said, and the folder of its run; not to be changed."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        without_graphs(monkeypatch)
        folder = tmp_path_factory.mktemp("finished") / "run"
        return run("train", place / "tiny.toml", "-o", folder, "--set", "optimisation.steps=2"), folder


@pytest.fixture
def spoilt(place, tmp_path):
    """A copy of the config and its file, which may be changed."""
    for name in ("one.h5", "tiny.toml"):
        shutil.copy(place / name, tmp_path / name)
    return tmp_path / "tiny.toml"


def run(*arguments: object):
    return CliRunner().invoke(main, list(map(str, arguments)))


class TestTrain:
    def test_says_how_well_it_does_and_where_it_is(self, finished):
        result, folder = finished
        assert result.exit_code == 0, result.output
        score = load_model(folder / "tiny.safetensors").card.figures["validation"]["one"]
        words = f"FPR95 {100 * score['fpr95']:.2f} %, rank-1 {score['rank1']:.4f} (N = {score['correspondences']}), "
        lines = result.stdout.splitlines()
        assert words in lines[-2]
        assert lines[-2].startswith("one: ")
        assert lines[0].startswith("training tiny on ")
        assert lines[-1] == f"wrote {folder / 'tiny.safetensors'}"
        assert result.stderr == ""

    def test_again_it_is_complete(self, finished, place):
        first, folder = finished
        result = run("train", place / "tiny.toml", "-o", folder, "--set", "optimisation.steps=2")
        assert result.exit_code == 0
        lines = result.stdout.splitlines()
        assert lines[-1] == f"already complete: {folder / 'tiny.safetensors'}"
        assert lines[:-1] == first.stdout.splitlines()[-2:-1]

    def test_changes_and_device(self, place, tmp_path, quick):
        folder = tmp_path / "run"
        changes = ["--set", "optimisation.steps=1", "--set", "name=mine", "--set", "run.device=abacus"]
        result = run("train", place / "tiny.toml", "-o", folder, *changes, "--device", "cpu", "--precision", "float32")
        assert result.exit_code == 0, result.output
        config = read_config(folder / "config.toml")
        assert (config.optimisation.steps, config.name) == (1, "mine")
        assert (config.run.device, config.run.precision) == ("cpu", "float32")
        assert (folder / "mine.safetensors").exists()

    def test_other_config_needs_overwrite(self, finished, place, tmp_path, quick):
        folder = shutil.copytree(finished[1], tmp_path / "run")
        command = ["train", place / "tiny.toml", "-o", folder, "--set", "optimisation.steps=1"]
        assert_one_error(run(*command), "optimisation.steps: 2 before, 1 now", "--overwrite")
        assert run(*command, "--overwrite").exit_code == 0
        assert [row["step"] for row in read_rows(folder / "log.csv")] == ["1"]

    def test_ctrl_c_and_on(self, place, tmp_path, monkeypatch, quick):
        original = Trainer.advance

        def press_ctrl_c(self):
            _thread.interrupt_main()
            return original(self)

        command = ["train", place / "tiny.toml", "-o", tmp_path / "run", "--set", "optimisation.steps=2"]
        with monkeypatch.context() as context:
            context.setattr(Trainer, "advance", press_ctrl_c)
            result = run(*command)
        assert result.exit_code == 130
        assert result.stderr == "logpolar: stopped after step 1; rerun the command to resume\n"
        assert len(result.stdout.splitlines()) == 1
        assert run(*command).exit_code == 0
        assert [row["step"] for row in read_rows(tmp_path / "run" / "log.csv")] == ["1", "2"]

    def test_ctrl_c_before_the_first_step(self, place, tmp_path, monkeypatch):
        def press(*arguments, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr(running, "load_training_data", press)
        result = run("train", place / "tiny.toml", "-o", tmp_path / "run")
        assert result.exit_code == 130
        words = f"stopped; rerun the command to resume from the last checkpoint in {tmp_path / 'run'}"
        assert result.stderr == f"logpolar: {words}\n"


class TestTrainBadInput:
    def test_missing_config(self, tmp_path):
        result = run("train", tmp_path / "none.toml", "-o", tmp_path / "run")
        assert_one_error(result, "none.toml: no such file or directory")

    def test_wrong_key(self, place, tmp_path):
        result = run("train", place / "tiny.toml", "-o", tmp_path / "run", "--set", "loss.margn=1")
        assert_one_error(result, "tiny.toml: [loss] has no key 'margn' (did you mean 'margin'?)")
        assert not (tmp_path / "run").exists()

    def test_broken_toml(self, tmp_path):
        (tmp_path / "broken.toml").write_text("[loss")
        assert_one_error(run("train", tmp_path / "broken.toml", "-o", tmp_path / "run"), "broken.toml: not a TOML file")

    def test_missing_file(self, spoilt, tmp_path):
        (tmp_path / "one.h5").unlink()
        assert_one_error(run("train", spoilt, "-o", tmp_path / "run"), "one.h5: no such correspondence file")

    @pytest.mark.parametrize(
        ("attribute", "value", "words"), [("version", 77, "version 77"), ("complete", False, "incomplete")]
    )
    def test_file_that_does_not_do(self, spoilt, tmp_path, attribute, value, words):
        with h5py.File(tmp_path / "one.h5", "a") as file:
            file.attrs[attribute] = value
        assert_one_error(run("train", spoilt, "-o", tmp_path / "run"), "one.h5", words)

    def test_too_few_correspondences(self, place, tmp_path):
        result = run("train", place / "tiny.toml", "-o", tmp_path / "run", "--set", "batch.per_pair=999")
        assert_one_error(result, "one.h5", "no image pair to train on has 999 or more correspondences")

    def test_device(self, place, tmp_path):
        result = run("train", place / "tiny.toml", "-o", tmp_path / "run", "--device", "cuda:77")
        assert_one_error(result, "torch cannot use the device 'cuda:77'")

    def test_damaged_checkpoint(self, finished, place, tmp_path):
        folder = shutil.copytree(finished[1], tmp_path / "run")
        (folder / "checkpoint.pt").write_bytes(b"PK")
        result = run("train", place / "tiny.toml", "-o", folder, "--set", "optimisation.steps=2")
        assert_one_error(result, "checkpoint.pt: not a checkpoint, or a damaged one")

    def test_loss_that_is_not_a_number(self, place, tmp_path, monkeypatch):
        original = Trainer.advance
        monkeypatch.setattr(Trainer, "advance", lambda self: original(self) * float("nan"))
        result = run("train", place / "tiny.toml", "-o", tmp_path / "run")
        assert_one_error(result, "the loss diverged at step 1", "try a lower learning rate")

    def test_full_disk(self, place, tmp_path, monkeypatch):
        original = running.save_checkpoint

        def full(handle):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def save(*arguments):
            monkeypatch.setattr(os, "fsync", full)
            original(*arguments)

        monkeypatch.setattr(running, "save_checkpoint", save)
        result = run("train", place / "tiny.toml", "-o", tmp_path / "run", "--set", "run.validate_every=9")
        assert_one_error(result, "checkpoint.pt: no space left on device")
        assert not [each.name for each in (tmp_path / "run").iterdir() if "checkpoint" in each.name]

    def test_folder_that_cannot_be_made(self, place, tmp_path):
        (tmp_path / "file").touch()
        assert_one_error(run("train", place / "tiny.toml", "-o", tmp_path / "file" / "run"), "file", "not a directory")

    @pytest.mark.parametrize("command", ["train", "ablate"])
    @pytest.mark.parametrize("module", ["torch", "onnx", "onnxscript"])
    def test_without_the_extra(self, place, tmp_path, monkeypatch, command, module):
        monkeypatch.setitem(sys.modules, module, None)
        result = run(command, place / "tiny.toml", "-o", tmp_path / "run")
        assert_one_error(result, "training needs an optional dependency: pip install 'logpolar[train]'")
        assert not (tmp_path / "run").exists()


class TestAblate:
    def test_table(self, place, tmp_path, quick):
        command = ["ablate", place / "tiny.toml", "-o", tmp_path / "out", "--set", "optimisation.steps=1"]
        result = run(*command, "--lambdas", "12, 32", "--test", place / "two.h5", "--pairs", 1, "--device", "cpu")
        assert result.exit_code == 0, result.output
        table = (tmp_path / "out" / "table.md").read_text()
        assert table.startswith("| lambda | 12 | 32 |\n")
        assert table in result.stdout
        assert (
            result.stdout.splitlines()[-1]
            == f"wrote {tmp_path / 'out' / 'table.csv'} and {tmp_path / 'out' / 'table.md'}"
        )
        rows = read_rows(tmp_path / "out" / "table.csv")
        assert [(row["pattern"], row["lambda"]) for row in rows if row["file"] == "two"] == [
            *(("cartesian", "12"), ("cartesian", "32"), ("log-polar", "12"), ("log-polar", "32"))
        ]
        assert {row["pairs"] for row in rows} == {"1"}

    def test_record_for_reports(self, place, tmp_path, quick, monkeypatch):
        monkeypatch.setattr(sys, "argv", ["logpolar", "ablate", "tiny.toml"])
        command = ["ablate", place / "tiny.toml", "-o", tmp_path / "out", "--set", "optimisation.steps=1"]
        assert run(*command, "--lambdas", "12", "--test", place / "two.h5", "--pairs", 1).exit_code == 0
        (found,) = read_runs([tmp_path])
        assert (found.protocol, found.command, found.seed) == ("ablation", "logpolar ablate tiny.toml", 3)
        assert found.data == {"tests": ["two.h5"]}
        assert found.options == {"seed": 3, "lambdas": [12.0], "pairs": 1, "steps": 1}
        means = [row for row in read_rows(tmp_path / "out" / "table.csv") if row["file"] == "mean"]
        assert [str(row["fpr95"]) for row in found.results.values()] == [row["fpr95"] for row in means]

    @pytest.mark.parametrize("lambdas", ["", "12,", "12;16", "x", "0", "12,-3", "nan", "inf"])
    def test_bad_lambdas(self, place, tmp_path, lambdas):
        result = run("ablate", place / "tiny.toml", "-o", tmp_path / "out", "--lambdas", lambdas)
        assert_one_error(result, "--lambdas takes comma-separated positive numbers", f"'{lambdas}'")
        assert not (tmp_path / "out").exists()

    def test_missing_test_file(self, place, tmp_path):
        result = run("ablate", place / "tiny.toml", "-o", tmp_path / "out", "--test", tmp_path / "none.h5")
        assert_one_error(result, "none.h5: no such correspondence file")

    def test_wrong_key(self, place, tmp_path):
        result = run("ablate", place / "tiny.toml", "-o", tmp_path / "out", "--set", "lambda=3")
        assert_one_error(result, "tiny.toml", "no key 'lambda'")


class TestRecipe:
    @pytest.mark.parametrize("name", RECIPES)
    def test_is_a_config(self, tmp_path, name):
        result = run("recipe", name)
        assert (result.exit_code, result.stderr) == (0, "")
        (tmp_path / "my.toml").write_text(result.stdout)
        assert read_config(tmp_path / "my.toml", ["data=[]", 'data=[{files=["a.h5"]}]']).batch == RECIPES[name].batch

    def test_default(self):
        assert run("recipe").stdout == run("recipe", "default").stdout

    def test_needs_no_torch(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", None)
        assert run("recipe", "paper").exit_code == 0

    def test_unknown(self):
        assert_one_error(run("recipe", "papr"), "no recipe 'papr' (known: default, paper, small)")

    def test_trained_once_it_has_data(self, place, tmp_path, quick):
        text = run("recipe", "paper").stdout
        (tmp_path / "my.toml").write_text(text.replace("set/*.h5", (place / "o*.h5").as_posix()))
        changes = [f"sampling.{side}=8" for side in ("rows", "columns")]
        changes += ["optimisation.steps=1", "batch.per_pair=8", "run.tensorboard=false"]
        options = [part for change in changes for part in ("--set", change)]
        assert run("train", tmp_path / "my.toml", "-o", tmp_path / "run", *options).exit_code == 0
        card = load_model(tmp_path / "run" / "my-paper-logpolar-96.safetensors").card
        assert card.training["optimisation"]["optimiser"] == "sgd"


def test_as_a_module():
    """``python -m logpolar`` is the command."""
    done = subprocess.run(
        [sys.executable, "-m", "logpolar", "recipe", "none"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "logpolar: error: no recipe 'none' (known: default, paper, small)\n"


def test_mistakes_in_the_config_of_a_detector_are_named(tmp_path):
    (tmp_path / "config.toml").write_text('[[data]]\nkind = "photos"\nfiles = ["nowhere"]\n')
    result = CliRunner().invoke(
        main, ["train-detector", str(tmp_path / "config.toml"), "-o", str(tmp_path / "run"), "--set", "run.seed=1"]
    )
    assert_one_error(result, "nowhere: no such file")
