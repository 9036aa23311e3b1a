"""A whole run of training a matcher on two photos: plan, views, descriptors, batches, steps, resume, model file."""

from __future__ import annotations

import _thread
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from logpolar.errors import LogpolarError, StorageError
from logpolar.models import load_model
from logpolar.models.matcher_cards import MatcherOptions
from logpolar.models.matcher_files import load_matcher
from logpolar.storage.atomic_io import Lock
from logpolar.training import matcher_run
from logpolar.training.matcher_data import PairSampler, gather
from logpolar.training.matcher_loop import MatcherTrainer, learning_rate
from logpolar.training.matcher_options import (
    MatcherBatch,
    MatcherConfig,
    MatcherData,
    MatcherOptimisation,
    MatcherRun,
    ViewsOptions,
)
from logpolar.training.matcher_plan import MadeViews, make_plan, run_task
from logpolar.training.matcher_run import Prepared, Refreshed, prepare, train_matcher
from logpolar.training.matcher_validation import Counts, validate
from logpolar.training.matcher_views import SourceFile
from logpolar.training.stopping import Stopped


@dataclass
class Clock:
    now: float = 0.0

    def pass_time(self, seconds: float) -> None:
        self.now += seconds


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
        views=ViewsOptions(photo_views=2, keypoints=24, max_zoom=1.3, turned=0.0, altered=0.0, refresh=0.0),
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

    def test_a_detector_shares_the_views_or_has_them_all(self, config):
        for sift, expected in ((True, ["", "logpolar"] * 4), (False, ["logpolar"] * 8)):
            options = replace(config.views, photo_views=4, detector="logpolar", sift=sift)
            assert [task.detector for task in make_plan(config.data, options).tasks(options, 0)] == expected
        with pytest.raises(ValueError, match="without SIFT"):
            ViewsOptions(sift=False)


class TestBatches:
    def test_steps_are_determined_by_seed_and_number(self, config, prepared):
        sampler = PairSampler(prepared.plan, prepared.views, config)
        views, variants, _ = sampler.choose(7)
        again = PairSampler(prepared.plan, prepared.views, config).choose(7)
        np.testing.assert_array_equal(views, again[0])
        assert (views[:, 0] != views[:, 1]).all()  # two views of one photo
        assert (views[:, 0] // 2 == views[:, 1] // 2).all()
        assert set(variants.tolist()) <= {0, 1, 2}

    def test_the_last_steps_have_more_keypoints_and_fewer_pairs(self, config, prepared):
        crowded = replace(config, batch=replace(config.batch, keypoints=8, late=0.5))
        sampler = PairSampler(prepared.plan, prepared.views, crowded)
        shapes = [tuple(sampler.draw(step).xy.shape) for step in range(4)]
        assert shapes == [(6, 8, 2), (6, 8, 2), (2, 16, 2), (2, 16, 2)]
        assert [crowded.pairs_before(step) for step in range(5)] == [0, 3, 6, 7, 8]

    def test_a_view_matches_itself(self, config, prepared):
        batch = gather(prepared.views, torch.tensor([[0, 0]]), torch.tensor([0]), config.batch)
        used = batch.mask[0] & (prepared.views.depth[0][batch.rows[0]] > 0)
        assert batch.truth.match[0][used].tolist() == torch.arange(16)[used].tolist()

    def test_descriptors_are_of_unit_length_and_padding_is_not_used(self, prepared):
        lengths = prepared.views.descriptors.float().norm(dim=-1)
        assert torch.allclose(lengths[prepared.views.used], torch.ones(()), atol=2e-3)


class TestRefresh:
    def test_views_are_replaced_while_batches_are_drawn(self, config, monkeypatch):
        monkeypatch.setattr(matcher_run, "CHUNK", 2)
        model = load_model(config.descriptor)
        prepared = prepare(config, model, torch.device("cpu"), lambda words: None)
        before = prepared.views.xy.clone()
        batches = Refreshed(replace(config, views=replace(config.views, refresh=1.0)), prepared)
        for step in range(10000):
            batches.draw(step)
            if batches.count >= 4:
                break
        batches.close()
        changed = (prepared.views.xy != before).flatten(1).any(dim=1)
        assert changed.all()
        again = gather(prepared.views, torch.tensor([[3, 3]]), torch.tensor([0]), replace(config.batch, noise=0.0))
        assert (again.truth.match[0][again.truth.matched[0]] == torch.arange(16)[again.truth.matched[0]]).all()
        assert again.truth.matched[0].sum() > 4

    def test_replacing_views_takes_its_share_of_the_time(self, config, prepared, monkeypatch):
        clock = Clock()
        monkeypatch.setattr(matcher_run, "time", SimpleNamespace(perf_counter=lambda: clock.now))
        batches = Refreshed(replace(config, views=replace(config.views, refresh=0.2)), prepared)
        batches.close()
        always = SimpleNamespace(ready=lambda count: [None] * count)
        monkeypatch.setattr(batches, "_views", always)
        monkeypatch.setattr(batches, "_store", SimpleNamespace(store=lambda ready: clock.pass_time(3)))
        monkeypatch.setattr(batches, "_draw", lambda step: clock.pass_time(1))
        for step in range(1000):
            batches.draw(step)
        spent = 3 * batches.count / matcher_run.CHUNK
        assert 0.19 < spent / clock.now < 0.21

    def test_new_views_are_new_each_time(self, config):
        plan = make_plan(config.data, config.views)
        first = list(islice(plan.new_tasks(config.views, 0), 8))
        assert sorted(task.number for task in first[:4]) == [0, 1, 2, 3]
        assert len({task.seed for task in first}) == 8

    def test_every_second_view_has_keypoints_of_the_detector(self, config):
        views = replace(config.views, photo_views=4, detector="logpolar")
        plan = make_plan(config.data, views)
        tasks = plan.tasks(views, 0)
        assert [task.detector for task in tasks[:4]] == ["", "logpolar", "", "logpolar"]
        view = run_task(tasks[1])
        assert len(np.unique(view.keypoints.size)) == 1
        sampler = PairSampler(plan, None, replace(config, views=views, run=replace(config.run, compile=False)))
        pairs, _, _ = sampler.choose(0)
        assert (pairs[:, 0] % 2 == pairs[:, 1] % 2).all()
        assert (pairs[:, 0] != pairs[:, 1]).all()

    def test_mistakes_of_processes_are_raised(self, config):
        (task, *_) = make_plan(config.data, config.views).tasks(config.views, 0)
        made = MadeViews([task._replace(file=SourceFile(Path("nowhere.png")))], 1, 4)
        with pytest.raises(LogpolarError, match="nowhere"):
            list(made)

    def test_too_few_views_for_two_detectors(self):
        with pytest.raises(ValueError, match="photo_views of at least 4"):
            ViewsOptions(photo_views=2, detector="logpolar")


def test_noise_moves_descriptors_no_farther_than_its_length(config, prepared):
    given = torch.tensor([[0, 1]]), torch.tensor([0])
    plain = gather(prepared.views, *given, replace(config.batch, noise=0.3))
    noisy = gather(prepared.views, *given, replace(config.batch, noise=0.3), torch.Generator().manual_seed(2))
    order = [row.tolist().index(place) for row, places in zip(plain.rows, noisy.rows, strict=True) for place in places]
    same = plain.descriptors.float()[torch.arange(2).repeat_interleave(16), order].reshape(2, 16, -1)
    moved = (noisy.descriptors.float() - same).norm(dim=-1)[noisy.mask]
    assert 0.02 < moved.mean() < 0.3
    assert moved.max() < 0.31


def test_perfect_matches_count_as_such(config, prepared):
    batch = gather(prepared.views, torch.tensor([[0, 0]]), torch.tensor([0]), config.batch)
    counts = Counts()
    counts.add(batch, batch.truth.matched, batch.truth.match, batch.truth.matched)
    figures = counts.figures()
    assert figures["precision"] == figures["recall"] == figures["sure_precision"] == 1


def test_validation_compares_with_nearest_neighbours(config, prepared, tmp_path):
    from logpolar.models.matcher_network import MatcherNetwork

    pairs, options = {"plain": np.array([[0, 1], [2, 3]])}, replace(config.batch, upright=0.0)
    figures = validate(MatcherNetwork(config.network), prepared.views, pairs, options, 24, tmp_path / "m.npz")
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
    assert card.training["pairs_seen"] == 10
    with pytest.raises(LogpolarError, match="another network"):
        train_matcher(replace(config, network=MatcherOptions(width=24, heads=2, layers=2)), tmp_path, say=said.append)


def test_ctrl_c_keeps_the_steps_that_are_done(config, prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(matcher_run, "prepare", lambda *arguments, **more: prepared)
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
def test_damaged_checkpoints_are_told(config, prepared, tmp_path, monkeypatch, damage):
    monkeypatch.setattr(matcher_run, "prepare", lambda *arguments, **more: prepared)
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

    def test_parts_that_the_matcher_never_had_keep_their_random_start(self, config):
        trainer = MatcherTrainer(replace(config, network=MatcherOptions()), lambda step: None, torch.device("cpu"))
        before = {name: values.clone() for name, values in trainer.network.state_dict().items()}
        shipped = load_matcher("learned").network().state_dict()
        trainer.start_from(load_matcher("learned"))
        for name, values in trainer.network.state_dict().items():
            assert torch.equal(values, shipped[name] if shipped[name].any() else before[name]), name

    def test_a_matcher_of_another_network_is_refused(self, config, tmp_path):
        with pytest.raises(LogpolarError, match=r"init: the \[network\] of matcher 'logpolar-96-matcher'"):
            train_matcher(replace(config, init="learned"), tmp_path, say=lambda words: None)
