from __future__ import annotations

import numpy as np
import pytest
import torch

from logpolar.errors import LogpolarError
from logpolar.matching import torch_nearest
from logpolar.matching.nearest import _nearest, match_descriptors
from logpolar.matching.torch_nearest import Uploaded, UploadedImages, nearest_of_pairs, nearest_on_device


def unit_vectors(count: int, seed: int, size: int = 16) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, size))
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


class TestBatches:
    def test_pairs_of_all_sizes(self):
        sets = [unit_vectors(count, count) for count in (1, 2, 33, 70)]
        uploaded = [Uploaded.of(each, "cpu") for each in sets]
        chosen = [(i, j) for i in range(4) for j in range(4)]
        found = list(nearest_of_pairs((uploaded[i], uploaded[j]) for i, j in chosen))
        for (i, j), each in zip(chosen, found, strict=True):
            assert_same(each, _nearest(sets[i], sets[j]))

    def test_no_batch_exceeds_the_memory(self, monkeypatch):
        batches, original = [], torch_nearest._nearest_batch
        monkeypatch.setattr(torch_nearest, "_BLOCK_VALUES", 250)
        monkeypatch.setattr(
            torch_nearest, "_nearest_batch", lambda batch: batches.append(len(batch)) or original(batch)
        )
        one = Uploaded.of(unit_vectors(10, 0), "cpu")
        assert len(list(nearest_of_pairs([(one, one)] * 5))) == 5
        assert batches == [2, 2, 1]

    def test_what_float16_cannot_tell_apart_is_compared_in_float32(self):
        """Neighbours nearer to each other than float16 resolves, in all orders."""
        base = unit_vectors(1, 5, 64)
        noise = np.random.default_rng(1).normal(size=(12, 64)) * np.linspace(1e-5, 1e-4, 12)[:, None]
        close = (base + noise).astype(np.float32)
        second = np.concatenate([close, unit_vectors(300, 2, 64)])[np.random.default_rng(2).permutation(312)]
        assert (torch.from_numpy(second).half() @ torch.from_numpy(base[0]).half()).topk(12).values.unique().numel() < 4
        expected = _nearest(np.concatenate([base, close]), second)
        assert_same(nearest_on_device(np.concatenate([base, close]), second, "cpu"), expected)

    def test_too_many_equal_neighbours(self, monkeypatch):
        """All rows are candidates of all: compared in float32, the first wins."""
        monkeypatch.setattr(torch_nearest, "_CANDIDATES", 1)
        same = np.repeat(unit_vectors(1, 0), 40, axis=0)
        assert nearest_on_device(same, same, "cpu").index.tolist() == [0] * 40

    def test_lengths_beyond_float16(self):
        first, second = 300 * unit_vectors(20, 0), 300 * unit_vectors(30, 1)
        found, expected = nearest_on_device(first, second, "cpu"), _nearest(first, second)
        assert found.index.tolist() == expected.index.tolist()
        np.testing.assert_allclose(found.best, expected.best, rtol=1e-5)


class TestUploadedImages:
    def read(self, name: str) -> np.ndarray:
        return unit_vectors(10, int(name))  # 10 x 16 numbers of 4 and of 2 bytes: 960 bytes

    def test_once_while_memory_lasts(self):
        images = UploadedImages(self.read, "cpu", memory=5000)
        for name in ("0", "1", "2", "0", "1", "2"):
            np.testing.assert_array_equal(images[name].full.numpy(), self.read(name))
        assert images.uploads == 3

    def test_the_longest_unused_makes_room(self):
        images = UploadedImages(self.read, "cpu", memory=2000)
        for name in ("0", "1", "0", "2", "0"):  # 1 leaves for 2
            images[name]
        assert images.uploads == 3
        images["1"]
        assert images.uploads == 4

    def test_one_image_larger_than_the_memory(self):
        assert len(UploadedImages(self.read, "cpu", memory=1)["7"]) == 10


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
@pytest.mark.parametrize("options", [{}, {"ratio": None, "mutual": False}])
def test_on_a_gpu(options):
    first = unit_vectors(3000, 0)
    second = np.concatenate([first[500:2500] + 0.05 * unit_vectors(2000, 1), unit_vectors(700, 2)])
    second = (second / np.linalg.norm(second, axis=1, keepdims=True)).astype(np.float32)
    found, expected = (match_descriptors(first, second, device=device, **options) for device in ("cuda", "cpu"))
    assert found.indices.tolist() == expected.indices.tolist()
    np.testing.assert_allclose(found.distances, expected.distances, atol=1e-3)
