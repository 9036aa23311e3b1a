"""A whole run of training a matcher on two photos: plan, views, descriptors, batches, steps, resume, model file."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch

from logpolar.errors import LogpolarError
from logpolar.models import load_model
from logpolar.models.matcher_cards import MatcherOptions
from logpolar.models.matcher_files import load_matcher
from logpolar.training import matcher_run
from logpolar.training.matcher_data import PairSampler, gather
from logpolar.training.matcher_loop import learning_rate
from logpolar.training.matcher_options import (
    MatcherBatch,
    MatcherConfig,
    MatcherData,
    MatcherOptimisation,
    MatcherRun,
    ViewsOptions,
)
from logpolar.training.matcher_plan import make_plan
from logpolar.training.matcher_run import Prepared, prepare, train_matcher
from logpolar.training.matcher_validation import Counts, validate


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> MatcherConfig:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(2):
        noise = np.random.default_rng(number).random((96, 128)).astype(np.float32)
        picture = np.clip(cv2.GaussianBlur(noise, (0, 0), 2) * 4 - 1.5, 0, 1)
        cv2.imwrite(str(folder / f"{number}.png"), (picture * 255).astype(np.uint8))
    return MatcherConfig(
        descriptor="logpolar-96-small",
        data=MatcherData(photos=(str(folder / "*.png"),)),
        views=ViewsOptions(photo_views=2, keypoints=24, max_zoom=1.3, turned=0.0, altered=0.0),
        network=MatcherOptions(width=16, heads=2, layers=2),
        batch=MatcherBatch(pairs=3, keypoints=16),
        optimisation=MatcherOptimisation(steps=4, warm_up=2),
        run=MatcherRun(device="cpu", jobs=1, checkpoint_every=2, report_every=2),
    )


@pytest.fixture(scope="module")
def prepared(config) -> Prepared:
    return prepare(config, load_model("logpolar-96-small"), torch.device("cpu"), lambda words: None)


class TestPlan:
    def test_pairs_views_of_a_photo(self, config):
        plan = make_plan(config.data, config.views)
        assert plan.pairs["photo"].values().__len__() == 2
        assert plan.starts.tolist() == [0, 2]
        assert [task.seed for task in plan.tasks(config.views, 5)] == [(5, 0, 0), (5, 0, 1), (5, 1, 0), (5, 1, 1)]

    def test_missing_files_are_told(self, config):
        with pytest.raises(LogpolarError, match="no such file"):
            make_plan(MatcherData(photos=("nowhere/*.jpg",)), config.views)


class TestBatches:
    def test_steps_are_determined_by_seed_and_number(self, config, prepared):
        sampler = PairSampler(prepared.plan, prepared.views, config)
        views, variants, _ = sampler.choose(7)
        again = PairSampler(prepared.plan, prepared.views, config).choose(7)
        np.testing.assert_array_equal(views, again[0])
        assert (views[:, 0] != views[:, 1]).all()  # two views of one photo
        assert (views[:, 0] // 2 == views[:, 1] // 2).all()
        assert set(variants.tolist()) <= {0, 1, 2}

    def test_a_view_matches_itself(self, config, prepared):
        batch = gather(prepared.views, torch.tensor([[0, 0]]), torch.tensor([0]), config.batch)
        used = batch.mask[0] & (prepared.views.depth[0][batch.rows[0]] > 0)
        assert batch.truth.match[0][used].tolist() == torch.arange(16)[used].tolist()

    def test_descriptors_are_of_unit_length_and_padding_is_not_used(self, prepared):
        lengths = prepared.views.descriptors.float().norm(dim=-1)
        assert torch.allclose(lengths[prepared.views.used], torch.ones(()), atol=2e-3)


def test_perfect_matches_count_as_such(config, prepared):
    batch = gather(prepared.views, torch.tensor([[0, 0]]), torch.tensor([0]), config.batch)
    counts = Counts()
    counts.add(batch, batch.truth.matched, batch.truth.match, batch.truth.matched)
    figures = counts.figures()
    assert figures["precision"] == figures["recall"] == figures["sure_precision"] == 1


def test_validation_compares_with_nearest_neighbours(config, prepared, tmp_path):
    from logpolar.models.matcher_network import MatcherNetwork

    pairs = {"plain": np.array([[0, 1], [2, 3]])}
    figures = validate(MatcherNetwork(config.network), prepared.views, pairs, config.batch, 24, tmp_path / "m.npz")
    assert set(figures) == {
        f"plain/{kind}/{method}" for kind in ("detected", "fixed") for method in ("learned", "nearest")
    }
    with np.load(tmp_path / "m.npz") as stored:
        assert len(stored["about"]) == 8
        assert stored["xy"].shape == (len(stored["pair"]), 4)


def test_the_learning_rate_rises_and_falls():
    options = MatcherOptimisation(steps=100, warm_up=10, learning_rate=1.0, final_rate=0.1)
    assert learning_rate(0, options) == pytest.approx(0.1)
    assert learning_rate(10, options) == pytest.approx(1)
    assert learning_rate(100, options) == pytest.approx(0.1)


def test_a_run_is_resumed_and_writes_a_matcher(config, prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(matcher_run, "prepare", lambda *arguments, **more: prepared)  # describing takes longest
    said: list[str] = []
    stopped = train_matcher(replace(config, run=replace(config.run, seconds=1e-9)), tmp_path, say=said.append)
    assert (stopped.model, stopped.step) == (None, 1)
    report = train_matcher(config, tmp_path, say=said.append)
    assert report.step == 4
    assert report.model is not None
    card = load_matcher(report.model).card
    assert (card.descriptor, card.descriptor_hash) == ("logpolar-96-small", load_model("logpolar-96-small").digest)
    assert card.training["pairs_seen"] == 12
    with pytest.raises(LogpolarError, match="another network"):
        train_matcher(replace(config, network=MatcherOptions(width=24, heads=2, layers=2)), tmp_path, say=said.append)
