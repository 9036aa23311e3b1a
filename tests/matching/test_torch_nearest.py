from __future__ import annotations

import numpy as np
import pytest
import torch

from logpolar.matching import torch_nearest as torch_matching
from logpolar.matching.nearest import MatchingOptions, match_descriptors
from logpolar.matching.torch_nearest import match_tensors


def unit_vectors(count: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, 16))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("ratio", [None, 0.9])
@pytest.mark.parametrize("mutual", [True, False])
@pytest.mark.parametrize("block", [1, 300, 2**24])
def test_the_same_matches_as_without_torch(monkeypatch, ratio, mutual, block):
    monkeypatch.setattr(torch_matching, "_BLOCK_VALUES", block)
    first = unit_vectors(61, 0)
    second = np.concatenate([first[5:40] + 0.1 * unit_vectors(35, 1), unit_vectors(12, 2)])
    second = (second / np.linalg.norm(second, axis=1, keepdims=True)).astype(np.float32)
    options = MatchingOptions(ratio, mutual)
    expected = match_descriptors(first, second, options)
    found = match_tensors(torch.from_numpy(first), torch.from_numpy(second), options)
    assert found.indices.tolist() == expected.indices.tolist()
    np.testing.assert_allclose(found.distances, expected.distances, atol=1e-3)


def test_of_equal_neighbours_the_first_counts():
    same = torch.from_numpy(np.repeat(unit_vectors(1, 0), 4, axis=0))
    assert match_tensors(same, same, MatchingOptions(ratio=None)).indices.tolist() == [[0, 0]]


@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 5), (5, 0)])
def test_nothing_in_nothing_out(first, second):
    found = match_tensors(torch.zeros(first, 8), torch.zeros(second, 8))
    assert found.indices.shape == (0, 2)


def test_half_precision_descriptors():
    first = unit_vectors(30, 3)
    halves = torch.from_numpy(first).half()
    found = match_tensors(halves, halves)
    assert found.indices.tolist() == [[row, row] for row in range(30)]
