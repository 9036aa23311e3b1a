"""Look-alikes: which ones are found, and that they are part of a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from logpolar import load_model
from logpolar.errors import LogpolarError
from logpolar.keypoints import Keypoints
from logpolar.models.describers import open_describer
from logpolar.sampling.torch_lookup import TorchPyramids
from logpolar.training import look_alikes
from logpolar.training.data import PairTable, TrainingData
from logpolar.training.look_alikes import find_look_alikes
from logpolar.training.loop import Trainer
from logpolar.training.options import BatchOptions
from logpolar.training.parts import Parts
from logpolar.training.run import train
from logpolar.training.stopping import Stopped
from training_runs import assert_same_training

COUNTS = (14, 1, 5, 20)
OPTIONS = BatchOptions(near=12, near_sizes=1.5, alike=0.5)


@pytest.fixture(scope="module")
def images(gray) -> list[np.ndarray]:
    return [np.ascontiguousarray(gray[20 * k : 20 * k + 70, 15 * k : 15 * k + 90]) for k in range(5)]


@pytest.fixture(scope="module")
def data(images) -> TrainingData:
    """Four image pairs in two sources, not in the order of their rows."""
    ends = np.cumsum([0, *COUNTS])
    rows = np.stack([ends[:-1], ends[1:]], axis=1)
    pairs = np.array([[0, 1], [1, 2], [4, 3], [3, 0]])
    tables = tuple(PairTable(pairs[own], rows[own], np.arange(2)) for own in ([3, 0], [2, 1]))
    values = np.random.default_rng(0).uniform((0, 0, 2, 0), (89, 69, 9, 360), (2, ends[-1], 4)).astype(np.float32)
    none = torch.zeros(int(ends[-1]))
    pyramids = TorchPyramids([torch.from_numpy(image) for image in images])
    return TrainingData(pyramids, *torch.from_numpy(values), none, none, tables)


def by_loops(data: TrainingData, images: list[np.ndarray], options: BatchOptions) -> dict[int, list[int]]:
    """Of each row all candidates, the most similar first."""
    describer, found = open_describer("logpolar-96"), {}
    for table in data.sources:
        for numbers, (start, end) in zip(table.images.tolist(), table.rows.tolist(), strict=True):
            sides = [side[start:end].numpy() for side in (data.first, data.second)]
            described = [
                describer.describe(images[number], Keypoints.from_points(side[:, :2], side[:, 2], side[:, 3]))
                for number, side in zip(numbers, sides, strict=True)
            ]
            for k in range(end - start):
                far = [
                    j
                    for j in range(end - start)
                    if all(
                        np.hypot(*(side[j, :2] - side[k, :2]))
                        >= max(options.near, options.near_sizes * max(side[j, 2], side[k, 2]))
                        for side in sides
                    )
                ]
                distance = np.linalg.norm(described[1][far] - described[0][k], axis=1)
                found[start + k] = [start + far[j] for j in np.argsort(distance)]
    return found


class TestFinding:
    @pytest.mark.parametrize("block", [1024, 3])
    def test_by_loops(self, data, images, block, monkeypatch):
        monkeypatch.setattr(look_alikes, "_BLOCK", block)
        found = find_look_alikes(data, OPTIONS, load_model("logpolar-96"))
        expected = by_loops(data, images, OPTIONS)
        assert found.shape == (sum(COUNTS), 8)
        assert {min(len(each), 8) for each in expected.values()} >= {0, 3, 8}
        for row, candidates in expected.items():
            best = candidates[:8] or [row]
            assert found[row].tolist() == (8 * best)[:8]

    def test_all_too_close(self, data):
        found = find_look_alikes(data, replace(OPTIONS, near=1000), load_model("logpolar-96"))
        assert torch.equal(found, torch.arange(sum(COUNTS))[:, None].expand(-1, 8))


def test_without_a_distance_a_correspondence_would_be_its_own_negative():
    with pytest.raises(ValueError, match=r"\[batch\] alike needs near"):
        BatchOptions(near=0, near_sizes=0, alike=0.1)


@pytest.fixture
def model(tiny, tmp_path, quick):
    """A model file of the tests' architecture."""
    return train(tiny("optimisation.steps=1"), tmp_path / "first").model


@pytest.fixture
def alike(tiny, model):
    def make(*changes):
        return tiny("batch.alike=0.5", f"batch.alike_model={model}", *changes)

    return make


@pytest.mark.usefixtures("quick")
class TestRun:
    def test_card_names_the_model(self, alike, model, tmp_path):
        card = load_model(train(alike("optimisation.steps=1"), tmp_path / "run").model).card
        assert card.training["batch"]["alike"] == 0.5
        assert card.training["alike"] == {"model": "tiny", "digest": load_model(model).digest}
        for name in ("card.json", "tiny.safetensors", "checkpoint.pt"):
            assert str(model.parent).encode() not in (tmp_path / "run" / name).read_bytes()

    def test_changes_what_is_learned(self, alike, tmp_path):
        for name, changes in {"with": [], "without": ["batch.alike=0"]}.items():
            train(alike("optimisation.steps=1", *changes), tmp_path / name)
        losses = [
            (tmp_path / name / "log.csv").read_text().splitlines()[1].split(",")[1] for name in ("with", "without")
        ]
        assert losses[0] != losses[1]

    def test_in_two_pieces(self, alike, model, tmp_path, monkeypatch):
        """Stopped after the fourth step, the model's file moved: the same weights as in one piece."""
        train(alike(), tmp_path / "whole")
        advance = Trainer.advance

        def failing(self):
            if self.step == 4:
                raise Stopped("stopped")
            return advance(self)

        monkeypatch.setattr(Trainer, "advance", failing)
        with pytest.raises(Stopped):
            train(alike(), tmp_path / "pieces")
        monkeypatch.setattr(Trainer, "advance", advance)
        moved = model.rename(tmp_path / "moved.safetensors")
        assert train(alike(f"batch.alike_model={moved}"), tmp_path / "pieces").continued_from == 4
        assert_same_training(tmp_path / "pieces", tmp_path / "whole")

    def test_another_model_is_another_run(self, alike, tiny, tmp_path):
        train(alike("optimisation.steps=1"), tmp_path / "run")
        with pytest.raises(LogpolarError, match=r"alike\.model: tiny before, logpolar-96 now"):
            train(tiny("batch.alike=0.5", "optimisation.steps=1"), tmp_path / "run")

    def test_the_model_does_not_matter_without(self, alike, tiny, tmp_path):
        train(tiny("optimisation.steps=1"), tmp_path / "run")
        assert train(alike("batch.alike=0", "optimisation.steps=1"), tmp_path / "run").was_complete


@pytest.mark.parametrize("name", ["none.safetensors", "logpolar-96-int8", ""])
def test_no_such_model(tiny, name):
    with pytest.raises(LogpolarError, match=r"^\[batch\] alike_model: .*model") as caught:
        Parts.load(tiny("batch.alike=0.5", f"batch.alike_model={name}"))
    assert "\n" not in str(caught.value)
    assert Parts.load(tiny(f"batch.alike_model={name}")).alike is None
