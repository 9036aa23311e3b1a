"""Samples off the image take the mean of those on it; and the two ways of making a pyramid are one."""

from __future__ import annotations

import math
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch

from logpolar.keypoints import Keypoints
from logpolar.sampling import Cartesian, ImagePyramid, LogPolar, sample_patches
from logpolar.sampling.patterns import fill_outside, pattern_from_dict, pattern_to_dict
from logpolar.sampling.torch_lookup import TorchPyramids, _gaussian_pyramid, _halve

PATTERNS = [
    LogPolar(24, 6, 5, outside="mean"),
    LogPolar(96, 8, 8, inner_radius="paper", antialias=False, outside="mean"),
    Cartesian(12, 5, 7, outside="mean"),
]


def random_keypoints(count: int, width: int, height: int, seed: int = 0) -> Keypoints:
    """On the image and up to 30 px beside it."""
    random = np.random.default_rng(seed)
    xy = random.uniform((-30, -30), (width + 30, height + 30), (count, 2))
    return Keypoints.from_points(xy, np.exp(random.uniform(0, 2.5, count)), random.uniform(0, 360, count))


def place(pattern, keypoints: Keypoints, number: int, row: int, column: int) -> tuple[float, float]:
    """Where a cell looks, by the patterns' definitions."""
    (x, y), size, angle = keypoints.xy[number], float(keypoints.size[number]), math.radians(keypoints.angle[number])
    down, right = (row + 0.5) / pattern.rows, (column + 0.5) / pattern.columns
    if isinstance(pattern, Cartesian):
        u, v, side = right - 0.5, down - 0.5, pattern.lambda_ * size
        along, across = u * math.cos(angle) - v * math.sin(angle), u * math.sin(angle) + v * math.cos(angle)
        return x + side * along, y + side * across
    outer = pattern.lambda_ / 2 * size
    inner = 1.0 if pattern.inner_radius == "paper" else outer / pattern.radius_ratio
    radius, phi = inner * (outer / inner) ** right, angle + 2 * math.pi * down
    return x + radius * math.cos(phi), y + radius * math.sin(phi)


def filled_by_loops(image: np.ndarray, keypoints: Keypoints, pattern) -> np.ndarray:
    height, width = image.shape
    patches = sample_patches(image, keypoints, replace(pattern, outside="reflect")).astype(np.float64)
    for number, patch in enumerate(patches):
        on, off = [], []
        for row in range(pattern.rows):
            for column in range(pattern.columns):
                x, y = place(pattern, keypoints, number, row, column)
                here = -0.5 <= x <= width - 0.5 and -0.5 <= y <= height - 0.5
                (on if here else off).append((row, column))
        mean = sum(patch[cell] for cell in on) / len(on) if on else 0
        for cell in off:
            patch[cell] = mean
    return patches


def torch_patches(pyramids: TorchPyramids, image: int, keypoints: Keypoints, pattern) -> np.ndarray:
    columns = (torch.from_numpy(values) for values in (keypoints.xy, keypoints.size, keypoints.angle))
    return pyramids.sample(torch.full((len(keypoints),), image), *columns, pattern).numpy()


@pytest.mark.parametrize("pattern", PATTERNS)
class TestMean:
    def test_numpy_by_loops(self, gray, pattern):
        image = gray[100:160, 50:140]
        keypoints = random_keypoints(40, 90, 60)
        expected = filled_by_loops(image, keypoints, pattern)
        np.testing.assert_allclose(sample_patches(image, keypoints, pattern), expected, atol=1e-5)
        reflected = sample_patches(image, keypoints, replace(pattern, outside="reflect"))
        assert np.abs(expected - reflected).max() > 0.1

    def test_torch_by_loops(self, gray, pattern):
        """Two images of different size: each has its own edges."""
        images = [gray[100:160, 50:140], gray[200:290, 30:80]]
        pyramids = TorchPyramids([torch.from_numpy(image) for image in images])
        for number, image in enumerate(images):
            keypoints = random_keypoints(25, image.shape[1], image.shape[0], number)
            found = torch_patches(pyramids, number, keypoints, pattern)
            np.testing.assert_allclose(found, filled_by_loops(image, keypoints, pattern), atol=2e-4)

    def test_many_at_a_time_are_as_one_by_one(self, gray, pattern):
        image = gray[100:160, 50:140]
        keypoints = random_keypoints(300, 90, 60)
        together = sample_patches(image, keypoints, pattern)
        for number in (0, 255, 256, 299):
            alone = sample_patches(image, keypoints[number : number + 1], pattern)
            np.testing.assert_allclose(together[number], alone[0], atol=1e-6)

    def test_inside_nothing_changes(self, gray, pattern):
        keypoints = Keypoints.from_points([[256, 256], [250.3, 240.7]], 2, [10, 200])
        found = sample_patches(gray, keypoints, pattern)
        np.testing.assert_array_equal(found, sample_patches(gray, keypoints, replace(pattern, outside="reflect")))

    def test_wholly_outside_is_nothing(self, gray, pattern):
        keypoints = Keypoints.from_points([[-500, 30], [30, 900]], 1)
        image = gray[:60, :60]
        assert not sample_patches(image, keypoints, pattern).any()
        assert not torch_patches(TorchPyramids([torch.from_numpy(image)]), 0, keypoints, pattern).any()

    def test_survives_the_card(self, pattern):
        assert pattern_from_dict(pattern_to_dict(pattern)) == pattern
        assert pattern_to_dict(pattern)["outside"] == "mean"


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_filling_by_hand(make):
    patches = make([[[1.0, 2.0], [6.0, 50.0]], [[7.0, 8.0], [9.0, 9.5]], [[3.0, 3.0], [3.0, 3.0]]])
    mask = make([[[True, True], [True, False]], [[True] * 2] * 2, [[False] * 2] * 2])
    expected = [[[1, 2], [6, 3]], [[7, 8], [9, 9.5]], [[0, 0], [0, 0]]]
    np.testing.assert_allclose(np.asarray(fill_outside(patches, mask)), expected)


@pytest.mark.parametrize("kind", [LogPolar, Cartesian])
def test_other_words_are_refused(kind):
    assert kind().outside == "reflect"
    with pytest.raises(ValueError, match="outside must be 'reflect' or 'mean'"):
        kind(outside="black")


SIZES = [(1, 1), (1, 2), (2, 1), (1, 7), (7, 1), (2, 2), (2, 3), (3, 3), (4, 1), (5, 8), (8, 5), (17, 31), (32, 32)]


class TestHalving:
    @staticmethod
    def by_loops(image: np.ndarray) -> np.ndarray:
        height, width = image.shape
        taps = (1, 4, 6, 4, 1)

        def reflected(k: int, length: int) -> int:
            while length > 1 and not 0 <= k < length:
                k = -k if k < 0 else 2 * (length - 1) - k
            return k if length > 1 else 0

        half = np.zeros(((height + 1) // 2, (width + 1) // 2))
        for row, column in np.ndindex(*half.shape):
            for i, down in enumerate(taps):
                for j, right in enumerate(taps):
                    pixel = image[reflected(2 * row + i - 2, height), reflected(2 * column + j - 2, width)]
                    half[row, column] += down * right * pixel / 256
        return half

    @pytest.mark.parametrize("size", SIZES)
    def test_is_pyr_down(self, size):
        image = np.random.default_rng(0).random(size, np.float32)
        found = _halve(torch.from_numpy(image)).numpy()
        np.testing.assert_allclose(found, self.by_loops(image), atol=1e-6)
        np.testing.assert_allclose(found, np.atleast_2d(cv2.pyrDown(image)), atol=1e-6)
        assert found.dtype == np.float32

    @pytest.mark.parametrize("size", SIZES)
    def test_levels_on_the_cpu(self, size):
        """All levels down to a pixel, those of the numpy look-up to the bit."""
        image = np.random.default_rng(1).random(size, np.float32)
        pyramid = ImagePyramid(image)
        levels = _gaussian_pyramid(torch.from_numpy(image), pyramid.top + 1)
        assert len(levels) == pyramid.top + 1
        for number, level in enumerate(levels):
            assert level.shape == (-(-size[0] // 2**number), -(-size[1] // 2**number))
            np.testing.assert_array_equal(level.numpy(), np.atleast_2d(pyramid.level(number)))
        assert levels[-1].shape == (1, 1)
