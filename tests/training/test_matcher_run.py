"""A whole run of training a matcher on two photos: plan, views, descriptors, batches, steps, resume, model file."""

from __future__ import annotations

import _thread
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from logpolar.errors import LogpolarError, StorageError
from logpolar.keypoints import Keypoints
from logpolar.models import load_model
from logpolar.models.files import load_detector
from logpolar.models.matcher_cards import MatcherOptions, keypoint_table
from logpolar.models.matcher_files import load_matcher
from logpolar.storage.atomic_io import Lock
from logpolar.training import matcher_data, matcher_run
from logpolar.training.matcher_data import PairSampler, ViewPool, gather
from logpolar.training.matcher_loop import MatcherTrainer, learning_rate
from logpolar.training.matcher_options import (
    MatcherBatch,
    MatcherConfig,
    MatcherData,
    MatcherOptimisation,
    MatcherRun,
    ViewsOptions,
)
from logpolar.training.matcher_plan import ViewPlan, make_plan
from logpolar.training.matcher_run import train_matcher
from logpolar.training.matcher_sources import read_sources
from logpolar.training.matcher_validation import Counts, validate
from logpolar.training.matcher_views import ViewMaker, Views
from logpolar.training.stopping import Stopped

SIDE = 96
"""Of the views."""


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
        views=ViewsOptions(photo_views=3, keypoints=24, size=SIDE, max_zoom=1.3, altered=0.0, new=0),
        network=MatcherOptions(width=16, heads=2, layers=2),
        batch=MatcherBatch(pairs=3, keypoints=16),
        optimisation=MatcherOptimisation(steps=4, warm_up=2),
        run=MatcherRun(device="cpu", checkpoint_every=2, report_every=2),
    )


@pytest.fixture(scope="module")
def plan(config) -> ViewPlan:
    return make_plan(config.data, config.views)


@pytest.fixture(scope="module")
def maker(config, plan) -> ViewMaker:
    sources = read_sources(plan.files, 1024, torch.device("cpu"))
    return ViewMaker(sources, config.views, load_detector("logpolar"), load_model(config.descriptor))


@pytest.fixture(scope="module")
def views(config, plan, maker) -> Views:
    made, generator = Views.none(6, config.views, torch.device("cpu")), torch.Generator().manual_seed(0)
    made.store(torch.arange(6), maker.make(torch.from_numpy(plan.owners), torch.zeros(6).bool(), generator))
    return made


@pytest.fixture
def ready(views, monkeypatch) -> None:
    """Runs get views that are already there: describing takes longest."""
    monkeypatch.setattr(matcher_run, "read_sources", lambda *arguments: None)
    monkeypatch.setattr(matcher_run, "ViewMaker", lambda *arguments: None)
    monkeypatch.setattr(ViewPool, "reach", lambda self, step: views)


class TestPlan:
    def test_pairs_views_of_a_photo(self, config):
        plan = make_plan(config.data, config.views)
        assert len(plan.pairs["photo"]) == 2
        assert plan.starts.tolist() == [0, 3]
        assert plan.owners.tolist() == [0, 0, 0, 1, 1, 1]

    def test_missing_files_are_told(self, config):
        with pytest.raises(LogpolarError, match="no such file"):
            make_plan(MatcherData(photos=("nowhere/*.jpg",)), config.views)


class TestBatches:
    def test_steps_are_determined_by_seed_and_number(self, config, plan):
        views, _ = PairSampler(plan, config).choose(7)
        again, _ = PairSampler(plan, config).choose(7)
        np.testing.assert_array_equal(views, again)
        assert (views[:, 0] != views[:, 1]).all()  # two views of one photo
        assert (views[:, 0] // 3 == views[:, 1] // 3).all()

    def test_the_last_steps_have_more_keypoints_and_fewer_pairs(self, config, plan, views):
        crowded = replace(config, batch=replace(config.batch, keypoints=8, late=0.5))
        sampler = PairSampler(plan, crowded)
        shapes = [tuple(sampler.draw(step, views).xy.shape) for step in range(4)]
        assert shapes == [(6, 8, 2), (6, 8, 2), (2, 16, 2), (2, 16, 2)]
        assert [crowded.pairs_before(step) for step in range(5)] == [0, 3, 6, 7, 8]

    def test_a_view_matches_itself(self, config, views):
        batch = gather(views, torch.tensor([[0, 0]]), config.batch, SIDE)
        used = batch.mask[0] & (views.depth[0][batch.rows[0]] > 0)
        assert used.sum() > 4
        assert batch.truth.match[0][used].tolist() == torch.arange(16)[used].tolist()

    def test_descriptors_are_of_unit_length_and_padding_is_not_used(self, views):
        lengths = views.descriptors.float().norm(dim=-1)
        assert torch.allclose(lengths[views.used], torch.ones(()), atol=2e-3)

    def test_a_matcher_sees_keypoints_as_in_use(self, config, views):
        batch = gather(views, torch.tensor([[0, 3]]), config.batch, SIDE)
        for xy, table in zip(batch.xy, batch.table, strict=True):
            expected = keypoint_table(Keypoints.from_points(xy.numpy(), 6.0, 0.0), (SIDE, SIDE))
            np.testing.assert_allclose(table, expected, atol=1e-6)


class TestPool:
    def test_steps_replace_views_one_after_another(self, config, plan, maker, monkeypatch):
        monkeypatch.setattr(matcher_data, "CHUNK", 2)
        pool = ViewPool(plan, maker, replace(config, views=replace(config.views, new=1)), torch.device("cpu"))
        before = pool.reach(0).xy.clone()
        counts = []
        for step in range(7):
            changed = (pool.reach(step).xy != before).flatten(1).any(dim=1)
            counts.append(int(changed.sum()))
        assert counts == [0, 0, 2, 2, 4, 4, 6]

    def test_a_resumed_run_has_the_same_views(self, config, plan, maker, monkeypatch):
        monkeypatch.setattr(matcher_data, "CHUNK", 2)
        config = replace(config, views=replace(config.views, new=1))
        whole, resumed = (ViewPool(plan, maker, config, torch.device("cpu")) for _ in range(2))
        for step in range(6):
            whole.reach(step)
        assert torch.equal(whole.views.xy, resumed.reach(5).xy)
        assert torch.equal(whole.views.depth.nan_to_num(), resumed.views.depth.nan_to_num())


def test_noise_moves_descriptors_no_farther_than_its_length(config, views):
    pair = torch.tensor([[0, 1]])
    plain = gather(views, pair, replace(config.batch, noise=0.3), SIDE)
    noisy = gather(views, pair, replace(config.batch, noise=0.3), SIDE, torch.Generator().manual_seed(2))
    order = [row.tolist().index(place) for row, places in zip(plain.rows, noisy.rows, strict=True) for place in places]
    same = plain.descriptors.float()[torch.arange(2).repeat_interleave(16), order].reshape(2, 16, -1)
    moved = (noisy.descriptors.float() - same).norm(dim=-1)[noisy.mask]
    assert 0.02 < moved.mean() < 0.3
    assert moved.max() < 0.31


def test_perfect_matches_count_as_such(config, views):
    batch = gather(views, torch.tensor([[0, 0]]), config.batch, SIDE)
    counts = Counts()
    counts.add(batch, batch.truth.matched, batch.truth.match, batch.truth.matched)
    figures = counts.figures()
    assert figures["precision"] == figures["recall"] == figures["sure_precision"] == 1


def test_validation_compares_with_nearest_neighbours(config, views):
    from logpolar.models.matcher_network import MatcherNetwork

    pairs = {"plain": np.array([[0, 1], [3, 4]]), "warped": np.array([[0, 2]])}
    figures = validate(MatcherNetwork(config.network), views, pairs, config)
    assert set(figures) == {f"{kind}/{method}" for kind in ("plain", "warped") for method in ("learned", "nearest")}
    assert 0.5 < figures["plain/nearest"]["precision"] <= 1


def test_the_learning_rate_rises_and_falls():
    options = MatcherOptimisation(steps=100, warm_up=10, learning_rate=1.0, final_rate=0.1)
    assert learning_rate(0, options) == pytest.approx(0.1)
    assert learning_rate(10, options) == pytest.approx(1)
    assert learning_rate(100, options) == pytest.approx(0.1)


def test_a_run_is_resumed_and_writes_a_matcher(config, ready, tmp_path):
    said: list[str] = []
    stopped = train_matcher(replace(config, run=replace(config.run, seconds=1e-9)), tmp_path, say=said.append)
    assert (stopped.model, stopped.step) == (None, 1)
    report = train_matcher(config, tmp_path, say=said.append)
    assert report.step == 4
    assert report.model is not None
    card = load_matcher(report.model).card
    assert (card.descriptor, card.descriptor_hash) == ("logpolar-96-small", load_model("logpolar-96-small").digest)
    assert card.training["pairs_seen"] == 10
    with pytest.raises(LogpolarError, match="another network"):
        train_matcher(replace(config, network=MatcherOptions(width=24, heads=2, layers=2)), tmp_path, say=said.append)


def test_ctrl_c_keeps_the_steps_that_are_done(config, ready, tmp_path, monkeypatch):
    original = MatcherTrainer.advance

    def press(self):
        _thread.interrupt_main()
        return original(self)

    config = replace(config, run=replace(config.run, checkpoint_every=100))
    with monkeypatch.context() as context:
        context.setattr(MatcherTrainer, "advance", press)
        with pytest.raises(Stopped, match="stopped after step 1; rerun"):
            train_matcher(config, tmp_path, say=lambda line: None)
    with pytest.raises(StorageError, match="another process is writing"), Lock(tmp_path / "checkpoint"):
        train_matcher(config, tmp_path, say=lambda line: None)
    said: list[str] = []
    assert train_matcher(config, tmp_path, say=said.append).step == 4
    assert "step 1:" not in " ".join(said)


@pytest.mark.parametrize("damage", ["step", "about", "metadata", "shape"])
def test_damaged_checkpoints_are_told(config, ready, tmp_path, damage):
    once = replace(config, run=replace(config.run, seconds=1e-9))
    train_matcher(once, tmp_path, say=lambda line: None)
    path = tmp_path / "checkpoint-0.safetensors"
    with safe_open(path, framework="numpy") as file:
        metadata = dict(file.metadata())
    tensors = load_file(path)
    if damage == "metadata":
        metadata = {"format": metadata["format"]}
    elif damage == "shape":
        tensors = {name: values[:1] for name, values in tensors.items()}
    else:
        metadata[damage] = {"step": "many", "about": "[" * 5000}[damage]
    save_file(tensors, path, metadata)
    with pytest.raises(LogpolarError, match="checkpoint"):
        train_matcher(config, tmp_path, say=lambda line: None)


class TestStart:
    def test_a_run_starts_from_the_weights_of_a_matcher(self, config, tmp_path):
        first = train_matcher(replace(config, name="first"), tmp_path / "first", say=lambda words: None)
        still = replace(config, init=str(first.model), optimisation=MatcherOptimisation(steps=1, learning_rate=0.0))
        second = train_matcher(still, tmp_path / "second", say=lambda words: None)
        one, two = load_matcher(first.model), load_matcher(second.model)
        for name, values in one.weights.items():
            np.testing.assert_array_equal(values, two.weights[name], err_msg=name)
        assert two.card.training["config"]["init"] == "first"
        assert two.card.training["init_hash"] == one.digest

    def test_a_matcher_of_another_network_is_refused(self, config, tmp_path):
        with pytest.raises(LogpolarError, match=r"init: the \[network\] of matcher 'logpolar-sf-matcher'"):
            train_matcher(replace(config, init="learned"), tmp_path, say=lambda words: None)
