from __future__ import annotations

import numpy as np
import pytest
import torch

from logpolar.errors import LogpolarError
from logpolar.matching import torch_nearest
from logpolar.matching.nearest import _nearest, match_descriptors
from logpolar.matching.options import MatchingOptions
from logpolar.matching.torch_nearest import nearest_on_device


def unit_vectors(count: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, 16))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def assert_same(found, expected):
    assert found.index.tolist() == expected.index.tolist()
    for name in ("best", "runner_up", "back_best"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-6)


@pytest.mark.parametrize("block", [1, 300, 2**24])
def test_the_same_neighbours_as_without_torch(monkeypatch, block):
    monkeypatch.setattr(torch_nearest, "_BLOCK_VALUES", block)
    first, second = unit_vectors(61, 0), unit_vectors(47, 1)
    assert_same(nearest_on_device(first, second, "cpu"), _nearest(first, second))


def test_the_first_of_equal_neighbours():
    same = np.repeat(unit_vectors(1, 0), 4, axis=0)
    assert nearest_on_device(same, same, "cpu").index.tolist() == [0, 0, 0, 0]


def test_a_single_candidate_has_no_runner_up():
    found = nearest_on_device(unit_vectors(2, 0), unit_vectors(1, 1), "cpu")
    assert np.isneginf(found.runner_up).all()


def test_half_precision_tensors():
    first = torch.from_numpy(unit_vectors(30, 3)).half()
    assert nearest_on_device(first, first, "cpu").index.tolist() == list(range(30))


def test_missing_device():
    with pytest.raises(LogpolarError, match="unknown device 'tpu'"):
        match_descriptors(unit_vectors(3, 0), unit_vectors(3, 1), device="tpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("options", [MatchingOptions(), MatchingOptions(None, False)])
def test_on_a_gpu(options):
    first = unit_vectors(3000, 0)
    second = np.concatenate([first[500:2500] + 0.05 * unit_vectors(2000, 1), unit_vectors(700, 2)])
    second = (second / np.linalg.norm(second, axis=1, keepdims=True)).astype(np.float32)
    found, expected = (match_descriptors(first, second, options, device=device) for device in ("cuda", "cpu"))
    assert found.indices.tolist() == expected.indices.tolist()
    np.testing.assert_allclose(found.distances, expected.distances, atol=1e-3)
