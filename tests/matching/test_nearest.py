from __future__ import annotations

import numpy as np
import pytest

from logpolar.features.features import Features
from logpolar.keypoints import Keypoints
from logpolar.matching import nearest as matching
from logpolar.matching.nearest import match_descriptors, match_features
from logpolar.matching.options import MatchingOptions


def unit_vectors(count: int, seed: int, size: int = 16) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, size))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def match_by_loop(first, second, ratio, mutual):
    pairs = []
    for i, a in enumerate(first):
        distances = [float(np.linalg.norm(a - b)) for b in second]
        order = sorted(range(len(second)), key=lambda j: distances[j])
        j = order[0]
        if ratio is not None and len(order) > 1 and distances[j] > ratio * distances[order[1]]:
            continue
        if mutual and int(np.argmin([np.linalg.norm(c - second[j]) for c in first])) != i:
            continue
        pairs.append((i, j))
    return pairs


@pytest.mark.parametrize("ratio", [None, 0.95, 0.8])
@pytest.mark.parametrize("mutual", [True, False])
@pytest.mark.parametrize("block_bytes", [1, 500, 2**26])
def test_against_a_slow_loop_for_any_block_size(monkeypatch, ratio, mutual, block_bytes):
    monkeypatch.setattr(matching, "_BLOCK_BYTES", block_bytes)
    first, second = unit_vectors(57, 0), unit_vectors(43, 1)
    second[:20] = first[10:30] + 0.1 * unit_vectors(20, 2)
    second /= np.linalg.norm(second, axis=1, keepdims=True)
    found = match_descriptors(first, second, MatchingOptions(ratio, mutual))
    assert found.indices.tolist() == [list(pair) for pair in match_by_loop(first, second, ratio, mutual)]
    expected = [np.linalg.norm(first[i] - second[j]) for i, j in found.indices]
    np.testing.assert_allclose(found.distances, expected, atol=1e-3)
    assert found.indices.dtype == np.int32


def test_of_equal_neighbours_the_first_counts(monkeypatch):
    monkeypatch.setattr(matching, "_BLOCK_BYTES", 16)
    same = np.repeat(unit_vectors(1, 0), 4, axis=0)
    assert match_descriptors(same, same, MatchingOptions(ratio=None)).indices.tolist() == [[0, 0]]


@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 5), (5, 0)])
def test_nothing_in_nothing_out(first, second):
    found = match_descriptors(unit_vectors(first, 0), unit_vectors(second, 1))
    assert found.indices.shape == (0, 2)
    assert found.distances.shape == (0,)


def test_a_single_candidate_passes_the_ratio_test():
    assert match_descriptors(unit_vectors(1, 0), unit_vectors(1, 1)).indices.tolist() == [[0, 0]]


@pytest.mark.parametrize("ratio", [0, -1, 1.1])
def test_impossible_ratio(ratio):
    with pytest.raises(ValueError, match="ratio"):
        MatchingOptions(ratio)


def test_options_as_keywords():
    first, second = unit_vectors(20, 0), unit_vectors(30, 1)
    expected = match_descriptors(first, second, MatchingOptions(0.95, False)).indices.tolist()
    assert match_descriptors(first, second, ratio=0.95, mutual=False).indices.tolist() == expected
    assert match_descriptors(first, second, MatchingOptions(0.95), mutual=False).indices.tolist() == expected
    with pytest.raises(TypeError, match="rato"):
        match_descriptors(first, second, rato=0.9)


def test_features_are_filtered():
    """All matches but one turn by 20 degrees."""
    random = np.random.default_rng(0)
    descriptors, rotation = unit_vectors(40, 0), np.full(40, 20.0)
    rotation[7] = 200
    xy, size, angle = random.uniform(0, 300, (40, 2)), random.uniform(2, 9, 40), random.uniform(0, 360, 40)
    first = Features(Keypoints.from_points(xy, size, angle), descriptors, (300, 300))
    second = Features(Keypoints.from_points(xy, size, angle + rotation), descriptors, (300, 300))
    assert len(match_features(first, second, filter="none")) == 40
    kept = match_features(first, second, filter="consensus")
    assert kept.indices[:, 0].tolist() == [row for row in range(40) if row != 7]
    assert len(kept.distances) == 39
    assert len(match_features(first, second, filter="auto")) == 39
    bare = [Features(Keypoints.from_points(xy), descriptors, (300, 300)) for _ in range(2)]
    assert len(match_features(*bare, filter="auto")) == 40
