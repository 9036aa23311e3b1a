"""Students: what they learn from a teacher, what the teacher sees, and what is left of it afterwards."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from helpers import assert_one_error
from logpolar import load_model
from logpolar.cli import main
from logpolar.errors import LogpolarError
from logpolar.models.cards import ModelCard, NetworkOptions
from logpolar.models.export import save_model
from logpolar.models.network import DescriptorNetwork
from logpolar.sampling import Cartesian, LogPolar
from logpolar.training.batches import Batch, BatchSampler
from logpolar.training.data import load_training_data
from logpolar.training.loop import Trainer
from logpolar.training.loss import descriptor_loss
from logpolar.training.options import (
    AugmentationOptions,
    BatchOptions,
    DistillationOptions,
    LossOptions,
    OptimisationOptions,
    RunOptions,
    TrainingConfig,
)
from logpolar.training.processes import World
from logpolar.training.run import train
from logpolar.training.stopping import Stopped
from training_runs import assert_same_training, state_of, without_graphs

CPU = torch.device("cpu")
CONFIG = TrainingConfig(
    sampling=LogPolar(rows=8, columns=8),
    network=NetworkOptions(8, 8, circular=True, dropout=0.0, channels=(8, 16), strides=(2, 2)),
    distillation=DistillationOptions("some model", 3.0),
    optimisation=OptimisationOptions(30, "adamw", 0.003),
    run=RunOptions(seed=3),
)
ONLY = replace(CONFIG, loss=LossOptions(triplet=0), optimisation=OptimisationOptions(30, "adamw", 0.01))


class Drawer:
    """In the place of a sampler: smooth patches by the generator, of which the teacher sees darker copies."""

    def draw(self, generator: torch.Generator) -> Batch:
        first = smooth_patches(24, 8, generator)
        second = first + 0.1 * torch.rand(24, 8, 8, generator=generator)
        return Batch(first, second, torch.eye(24, dtype=torch.bool), 0.5 * torch.cat([first, second]))


def smooth_patches(count: int, size: int, generator: torch.Generator) -> torch.Tensor:
    coarse = torch.rand(count, 1, 4, 4, generator=generator)
    return torch.nn.functional.interpolate(coarse, (size, size), mode="bilinear")[:, 0]


def make_teacher(size: int = 8) -> DescriptorNetwork:
    """Random weights, but the statistics of its patches: otherwise it would say the same of all of them."""
    torch.manual_seed(7)
    teacher = DescriptorNetwork(NetworkOptions(size, size, circular=True, dropout=0.0))
    for module in teacher.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # the statistics are then those of the patches seen
    teacher(smooth_patches(64, size, torch.Generator().manual_seed(0)))
    return teacher.eval()


def make_trainer(config: TrainingConfig = CONFIG, world: World | None = None) -> Trainer:
    return Trainer(config, Drawer(), CPU, world, make_teacher())


def state_bytes(module: torch.nn.Module) -> list[bytes]:
    return [values.numpy().tobytes() for values in module.state_dict().values()]


def distance_to_teacher(trainer: Trainer) -> float:
    """Mean squared, on patches that were not drawn while training."""
    batch = Drawer().draw(torch.Generator().manual_seed(10**6))
    with torch.no_grad():
        ours = trainer.result(torch.cat([batch.first, batch.second]))
        distance = (ours - make_teacher()(batch.shown)).square().sum(1).mean().item()
    trainer.resume_training()
    return distance


class TestStep:
    def test_loss_by_hand(self):
        """The first step: triplets, and 3 times the mean squared distance to what the teacher says of what it sees."""
        trainer = make_trainer()
        student = DescriptorNetwork(CONFIG.network).train()
        student.load_state_dict(trainer.state()["network"])
        trainer.advance()
        again = make_trainer()
        seed = int(np.random.SeedSequence((3, 0, 0)).generate_state(1)[0])
        batch = Drawer().draw(torch.Generator().manual_seed(seed))
        with torch.no_grad():
            ours = student(torch.cat([batch.first, batch.second]))
            theirs = make_teacher()(batch.shown)
            distances = [np.linalg.norm(a - b) ** 2 for a, b in zip(ours.numpy(), theirs.numpy(), strict=True)]
            plain = descriptor_loss(*ours.chunk(2), batch.excluded, CONFIG.loss).item()
        assert again.advance().item() == pytest.approx(plain + 3 * np.mean(distances), rel=1e-4)

    def test_the_student_gets_nearer_to_the_teacher(self):
        trainer = make_trainer(ONLY)
        before = distance_to_teacher(trainer)
        for _ in range(30):
            trainer.advance()
        assert distance_to_teacher(trainer) < 0.7 * before

    def test_only_the_student_learns(self):
        teacher = make_teacher()
        before = state_bytes(teacher)
        trainer = Trainer(CONFIG, Drawer(), CPU, None, teacher)
        first = state_bytes(trainer._network)
        for _ in range(2):
            trainer.advance()
        assert state_bytes(teacher) == before
        assert state_bytes(trainer._network) != first
        assert not teacher.training
        assert all(parameter.grad is None and not parameter.requires_grad for parameter in teacher.parameters())
        owned = [p for group in trainer._optimizer.param_groups for p in group["params"]]
        assert {id(parameter) for parameter in owned} == {id(p) for p in trainer._network.parameters()}

    def test_nothing_of_the_teacher_is_kept(self):
        with_teacher, without = make_trainer(), Trainer(CONFIG, Drawer(), CPU)
        ours, theirs = with_teacher.state(), without.state()
        assert ours.keys() == theirs.keys()
        assert ours["network"].keys() == theirs["network"].keys()
        assert all(torch.equal(ours["network"][name], theirs["network"][name]) for name in ours["network"])

    def test_going_on_is_equal_to_the_bit(self):
        undisturbed, stopped = make_trainer(), make_trainer()
        for _ in range(2):
            undisturbed.advance()
            stopped.advance()
        file = io.BytesIO()
        torch.save(stopped.state(), file)
        file.seek(0)
        fresh = make_trainer()
        fresh.load(torch.load(file))
        for _ in range(2):
            assert torch.equal(fresh.advance(), undisturbed.advance())
        assert state_bytes(fresh._network) == state_bytes(undisturbed._network)

    def test_half_precision(self):
        half = replace(CONFIG, run=replace(CONFIG.run, precision="bfloat16"))
        exact, rough = (make_trainer(config).advance().item() for config in (CONFIG, half))
        assert rough == pytest.approx(exact, abs=0.1)
        assert rough != exact


class TestWhatTheTeacherSees:
    def draw(self, place, teacher) -> Batch:
        data = load_training_data([[place / "one.h5"]], 8, "cpu")
        options = BatchOptions(2, 8)
        sampler = BatchSampler(data, [1], LogPolar(24, 8, 8), options, AugmentationOptions(), teacher=teacher)
        return sampler.draw(torch.Generator().manual_seed(5))

    def test_nothing_without_a_teacher(self, place):
        assert self.draw(place, None).shown is None

    @pytest.mark.parametrize("pattern", [LogPolar(24, 8, 8), LogPolar(96, 12, 16), Cartesian(12, 8, 8)])
    def test_its_own_patches_of_the_same_keypoints(self, place, pattern):
        """As a student of that pattern would see them, were nothing changed in the patches."""
        still = AugmentationOptions()
        data = load_training_data([[place / "one.h5"]], 8, "cpu")
        sampler = BatchSampler(data, [1], pattern, BatchOptions(2, 8), still)
        expected = sampler.draw(torch.Generator().manual_seed(5))
        shown = self.draw(place, pattern).shown
        torch.testing.assert_close(shown, torch.cat([expected.first, expected.second]))

    def test_the_student_sees_the_same_with_and_without(self, place):
        alone = self.draw(place, None)
        for pattern in (LogPolar(24, 8, 8), LogPolar(96, 12, 16)):
            batch = self.draw(place, pattern)
            assert torch.equal(batch.first, alone.first)
            assert torch.equal(batch.second, alone.second)


@pytest.fixture(scope="module")
def teacher_file(tmp_path_factory):
    """A teacher with patches of its own."""
    path = tmp_path_factory.mktemp("teacher") / "big.safetensors"
    with pytest.MonkeyPatch.context() as monkeypatch:
        without_graphs(monkeypatch)
        save_model(
            path, make_teacher(16), ModelCard("big", "", LogPolar(48, 16, 16), NetworkOptions(16, 16, True, 0.0))
        )
    return path


@pytest.fixture
def student(tiny, teacher_file):
    """The tiny config, taught, with changes."""

    def make(*changes):
        layers = "network.channels=[8,16]", "network.strides=[2,2]"
        return tiny(f"distillation.teacher={teacher_file}", "distillation.weight=2", *layers, *changes)

    return make


@pytest.mark.usefixtures("quick")
class TestRun:
    def test_card_names_the_teacher(self, student, teacher_file, tmp_path):
        card = load_model(train(student("optimisation.steps=1"), tmp_path / "run").model).card
        digest = load_model(teacher_file).digest
        assert card.training["distillation"] == {"teacher": "big", "digest": digest, "weight": 2.0}
        assert card.network.channels == (8, 16)
        for name in ("card.json", "tiny.safetensors", "checkpoint.pt"):
            assert str(teacher_file.parent).encode() not in (tmp_path / "run" / name).read_bytes()

    def test_card_without_a_teacher(self, student, tmp_path):
        report = train(student("optimisation.steps=1", "distillation.weight=0"), tmp_path / "run")
        assert "distillation" not in load_model(report.model).card.training

    def test_in_two_pieces(self, student, tmp_path, monkeypatch):
        """Stopped after the fourth step, the teacher's file moved: the same weights as in one piece."""
        train(student(), tmp_path / "whole")
        advance = Trainer.advance

        def failing(self):
            if self.step == 4:
                raise Stopped("stopped")
            return advance(self)

        monkeypatch.setattr(Trainer, "advance", failing)
        with pytest.raises(Stopped):
            train(student(), tmp_path / "pieces")
        monkeypatch.setattr(Trainer, "advance", advance)
        moved = shutil.copy(student().distillation.teacher, tmp_path / "moved.safetensors")
        report = train(student(f"distillation.teacher={moved}"), tmp_path / "pieces")
        assert report.continued_from == 4
        assert_same_training(tmp_path / "pieces", tmp_path / "whole")
        assert "teacher" not in state_of(tmp_path / "whole")["trainer"]

    def test_another_teacher_or_weight_is_another_run(self, student, tmp_path):
        train(student("optimisation.steps=1"), tmp_path / "run")
        for change, words in (("teacher=logpolar-96", "big before, logpolar-96 now"), ("weight=3", "2.0 before")):
            with pytest.raises(LogpolarError, match=words):
                train(student("optimisation.steps=1", f"distillation.{change}"), tmp_path / "run")


class TestNoTeacher:
    def test_missing(self, tiny, place, tmp_path):
        with pytest.raises(LogpolarError, match=r"\[distillation\] teacher: no model .*none\.safetensors") as caught:
            train(tiny("distillation.teacher=none.safetensors"), tmp_path / "run")
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()

    def test_on_the_command_line(self, place, tmp_path):
        change = ["--set", "distillation.teacher=logpolar-97"]
        result = CliRunner().invoke(main, ["train", str(place / "tiny.toml"), "-o", str(tmp_path / "run"), *change])
        assert_one_error(result, "[distillation] teacher", "logpolar-97")

    def test_weights_that_do_not_fit(self, student, teacher_file, tmp_path, monkeypatch):
        """Such as descriptors of another size."""
        model = load_model(teacher_file)
        weights = {**model.weights, "head.weight": model.weights["head.weight"][:64]}
        monkeypatch.setattr("logpolar.training.parts.load_model", lambda name: replace(model, weights=weights))
        with pytest.raises(LogpolarError, match=r"\[distillation\] teacher: .*do not fit"):
            train(student(), tmp_path / "run")
