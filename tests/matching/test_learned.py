"""Learned matchers: assignment against loops, blocks against the whole, and bad input."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch

from logpolar.errors import LogpolarError, ModelError
from logpolar.evaluation.descriptors.registry import open_method
from logpolar.features.extractor import Extractor
from logpolar.features.features import Features
from logpolar.keypoints import Keypoints
from logpolar.matching import learned, torch_learned
from logpolar.matching.learned import LearnedMatcher, assign, check_features, matching_of_looks, open_matcher
from logpolar.matching.nearest import Matches, filter_matches, match_features
from logpolar.matching.options import MatchingOptions, PairMatchingOptions
from logpolar.models import load_model
from logpolar.models.matcher_cards import MatcherCard, MatcherOptions
from logpolar.models.matcher_export import save_matcher
from logpolar.models.matcher_files import load_matcher
from logpolar.models.matcher_network import MatcherNetwork


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    torch.manual_seed(0)
    options = MatcherOptions(inputs=16, width=16, heads=2, layers=2)
    file = tmp_path_factory.mktemp("matcher") / "m.safetensors"
    save_matcher(file, MatcherNetwork(options), MatcherCard("m", "", options, "logpolar-96", "abc"))
    return file


@pytest.fixture(scope="module")
def matcher(path):
    return LearnedMatcher(path, threshold=0, threads=1)


def make_features(count: int, seed: int = 0) -> Features:
    random = np.random.default_rng(seed)
    descriptors = random.normal(size=(count, 16)).astype(np.float32)
    keypoints = Keypoints.from_points(random.uniform(0, 90, (count, 2)), response=random.random(count))
    return Features(keypoints, descriptors / np.linalg.norm(descriptors, axis=1, keepdims=True), (100, 90))


def test_assignment_is_that_of_loops():
    random = np.random.default_rng(0)
    first, second = (random.normal(size=(count, 5)).astype(np.float32) for count in (4, 6))
    z, w = (random.normal(size=count).astype(np.float32) for count in (4, 6))
    products = np.exp(first @ second.T)
    chance = np.outer(1 / (1 + np.exp(-z)), 1 / (1 + np.exp(-w)))
    expected = products / products.sum(1, keepdims=True) * products / products.sum(0) * chance
    pairs = [(i, int(j)) for i, j in enumerate(expected.argmax(1)) if expected[:, j].argmax() == i]
    here, there, confidence = assign(first, z, second, w)
    assert list(zip(here.tolist(), there.tolist(), strict=True)) == pairs
    np.testing.assert_allclose(confidence, [expected[pair] for pair in pairs], rtol=1e-4)


def test_blocks_give_the_same_matches(matcher, monkeypatch):
    first, second = make_features(30), make_features(25, 1)
    whole = matcher.match(first, second)
    monkeypatch.setattr(learned, "_BLOCK_BYTES", 4 * 25 * 7)
    parts = matcher.match(first, second)
    np.testing.assert_array_equal(parts.indices, whole.indices)
    np.testing.assert_allclose(parts.confidence, whole.confidence, rtol=1e-4)


def test_equal_images_match_themselves(matcher):
    features = make_features(12)
    found = matcher.match(features, features)
    assert (found.indices[:, 0] == found.indices[:, 1]).all()
    assert len(found) == 12


def test_early_exit_leaves_out_layers(path, monkeypatch):
    monkeypatch.setattr(learned, "_EXIT_CONFIDENCE", 0.4)  # an untrained network says 0.5
    early, late = LearnedMatcher(path, threads=1), LearnedMatcher(path, early_exit=False, threads=1)
    for each in (early, late):
        each.match(make_features(5), make_features(5, 1))
    assert (early.layers_run, late.layers_run) == (1, 2)


class TestBadInput:
    @pytest.mark.parametrize("counts", [(0, 5), (5, 0), (0, 0)])
    def test_no_keypoints_have_no_matches(self, matcher, counts):
        found = matcher.match(*(make_features(count) for count in counts))
        assert found.indices.shape == (0, 2)
        assert found.confidence is not None

    def test_one_keypoint_is_no_special_case(self, matcher):
        assert matcher.match(make_features(1), make_features(3, 1)).indices.shape == (1, 2)

    def test_descriptors_of_another_length(self, matcher):
        features = make_features(3)
        with pytest.raises(ModelError, match="descriptors of 16 numbers"):
            matcher.match(features, replace(features, descriptors=np.ones((3, 8), np.float32)))

    def test_descriptors_that_are_not_finite(self, matcher):
        features = make_features(3)
        with pytest.raises(LogpolarError, match="not finite"):
            matcher.match(features, replace(features, descriptors=np.full((3, 16), np.nan, np.float32)))

    def test_of_too_many_keypoints_the_strongest_are_matched(self, matcher, monkeypatch):
        monkeypatch.setattr(learned, "MAX_KEYPOINTS", 4)
        features = make_features(9)
        found = matcher.match(features, features)
        assert found.indices[:, 0].tolist() == np.sort(np.argsort(-features.keypoints.response)[:4]).tolist()

    @pytest.mark.parametrize(
        "settings",
        [
            {"model": "other", "model_hash": "def"},
            {"model": "logpolar-96", "model_hash": "def"},  # of this name, but another file
            {"descriptor": {"kind": "rootsift"}},
            {},
        ],
    )
    def test_features_of_another_model(self, path, settings):
        options = MatchingOptions(matcher=str(path))
        check_features(options, {"model": "logpolar-96", "model_hash": "abc"})
        with pytest.raises(ModelError, match="is for descriptors of 'logpolar-96'"):
            check_features(options, settings)

    def test_a_threshold_that_is_no_probability(self, path):
        with pytest.raises(ValueError, match="threshold"):
            LearnedMatcher(path, threshold=2)


def test_pairs_in_a_batch_of_torch_match_as_one_by_one(path, monkeypatch):
    pairs = [(make_features(count), make_features(other, 1)) for count, other in ((7, 4), (0, 5), (30, 25), (3, 9))]
    alone = LearnedMatcher(path, threshold=0.05, early_exit=False, threads=1)
    batched = LearnedMatcher(path, threshold=0.05, threads=1)
    monkeypatch.setattr(torch_learned, "_VALUES", 2 * 30 * 30)  # two at a time
    monkeypatch.setattr(batched, "_torch", torch_learned.TorchMatcher(batched.model, "cpu"))
    for pair, found in zip(pairs, batched.match_batch(pairs), strict=True):
        expected = alone.match(*pair)
        np.testing.assert_array_equal(found.indices, expected.indices)
        np.testing.assert_allclose(found.confidence, expected.confidence, rtol=1e-4)


class TestShipped:
    def test_matches_a_photo_with_a_smaller_turned_one(self, gray):
        extractor = Extractor("logpolar-sf", max_keypoints=300, max_size=512, threads=1)
        height, width = gray.shape
        turn = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), 10, 0.7)
        first, second = extractor.extract(gray), extractor.extract(cv2.warpAffine(gray, turn, (width, height)))
        check_features(MatchingOptions(matcher="learned"), extractor.settings)
        found = LearnedMatcher(threads=1).match(first, second)
        there = first.keypoints.xy[found.indices[:, 0]] @ turn[:, :2].T + turn[:, 2]
        error = np.linalg.norm(there - second.keypoints.xy[found.indices[:, 1]], axis=1) * second.scale
        sure = found.confidence > 0.9
        assert sure.sum() > 20
        assert (error[sure] < 3).mean() > 0.9

    def test_takes_features_of_the_int8_variant(self):
        variant = load_model("logpolar-96-upright-int8")
        check_features(MatchingOptions(matcher="learned"), {"model": variant.name, "model_hash": variant.digest})


class TestLooks:
    SETTINGS = tuple(
        {"model": name, "model_hash": load_model(name).digest} for name in ("logpolar-96", "logpolar-96-upright-int8")
    )

    def test_a_matcher_matches_the_looks_at_its_own_features(self):
        options = PairMatchingOptions(matcher="learned")
        first, second = matching_of_looks(options, self.SETTINGS)
        assert (first.matcher, first.ratio) == ("nearest", options.ratio)
        assert second == options
        assert matching_of_looks(PairMatchingOptions(), self.SETTINGS) == [PairMatchingOptions()] * 2

    def test_a_matcher_for_other_features_is_refused(self):
        with pytest.raises(ModelError, match="not of this 'logpolar-96'"):
            matching_of_looks(MatchingOptions(matcher="learned"), self.SETTINGS[:1])

    def test_evaluations_name_descriptors_by_their_identity(self):
        method = open_method("logpolar-sf-int8", 64, threads=1)
        settings = {"model": method.name, "descriptor": method.identity}
        assert matching_of_looks(MatchingOptions(matcher="learned"), [settings])[0].learned


def test_the_option_selects_the_matcher(path):
    features = make_features(8)
    found = match_features(features, features, matcher=str(path))
    assert found.confidence is not None
    assert open_matcher(str(path)) is open_matcher(str(path))
    assert match_features(features, features).confidence is None


def test_auto_filters_nearest_neighbours_but_not_matches_with_confidence():
    random = np.random.default_rng(0)
    first, second = (
        Keypoints.from_points(random.uniform(0, 90, (30, 2)), random.uniform(1, 30, 30), random.uniform(0, 360, 30))
        for _ in range(2)
    )
    matches = Matches(np.stack([np.arange(30)] * 2, axis=1).astype(np.int32), np.ones(30, np.float32))
    options = MatchingOptions(filter="auto", matcher="learned")
    assert len(filter_matches(matches, first, second, options)) < 15  # by guided matching
    assert len(filter_matches(replace(matches, confidence=np.ones(30, np.float32)), first, second, options)) == 30


@pytest.mark.parametrize("damage", ["missing", "shape", "more layers"])
def test_damaged_weights_are_told_in_one_line(path, damage):
    model = load_matcher(path)
    weights = {name: values for name, values in model.weights.items() if not name.startswith("layers.1.across.out")}
    if damage == "shape":
        weights = {name: values[..., :1] if "layers.1" in name else values for name, values in model.weights.items()}
    card = (
        replace(model.card, network=replace(model.card.network, layers=32)) if damage == "more layers" else model.card
    )
    matcher = LearnedMatcher(replace(model, weights=weights, card=card), threads=1, early_exit=False)
    with pytest.raises(ModelError, match="matcher 'm': damaged weights or graph") as caught:
        matcher.match(make_features(5), make_features(6, 1))
    assert "\n" not in str(caught.value)
