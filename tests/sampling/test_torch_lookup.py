"""What patches look like: both look-ups against the formula, against each other, and under rotation and zoom."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest
import torch

from logpolar.errors import KeypointError
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import SiftDetector
from logpolar.sampling import Cartesian, ImagePyramid, LogPolar, sample_patches
from logpolar.sampling.numpy_lookup import _bilinear_gather
from logpolar.sampling.torch_lookup import TorchPyramids

PAPER = LogPolar(inner_radius="paper", antialias=False)
PATTERNS = [PAPER, LogPolar(), LogPolar(inner_radius=0.5), Cartesian(), Cartesian(antialias=False), LogPolar(12, 8, 16)]


def random_keypoints(count: int, width: int, height: int, seed: int = 0, margin: float = 0) -> Keypoints:
    random = np.random.default_rng(seed)
    xy = random.uniform((-margin, -margin), (width - 1 + margin, height - 1 + margin), (count, 2))
    return Keypoints.from_points(xy, np.exp(random.uniform(0, 3.5, count)), random.uniform(0, 360, count))


def torch_patches(images, keypoints, pattern):
    """Patches of keypoints of several images, drawn in one batch."""
    pyramids = TorchPyramids([torch.from_numpy(image) for image in images])
    index = torch.cat([torch.full((len(points),), number) for number, points in enumerate(keypoints)])
    columns = [
        torch.cat([torch.from_numpy(getattr(points, name)) for points in keypoints]) for name in ("xy", "size", "angle")
    ]
    return pyramids.sample(index, *columns, pattern).numpy()


def correlation(first, second) -> np.ndarray:
    """Normalised cross-correlation of each pair of patches."""
    flat = [p.reshape(len(p), -1) - p.reshape(len(p), -1).mean(axis=1, keepdims=True) for p in (first, second)]
    return (flat[0] * flat[1]).sum(axis=1) / np.linalg.norm(flat[0], axis=1) / np.linalg.norm(flat[1], axis=1)


class TestFormula:
    def test_paper_mode_by_a_slow_loop(self, gray):
        """Written straight from the paper's equation, with its 1 px inner radius and the right sign of the angle."""
        image = gray[100:180, 50:180].astype(np.float64)
        height, width = image.shape
        keypoints = random_keypoints(6, width, height, margin=4)
        patches = sample_patches(image.astype(np.float32), keypoints, PAPER)

        def reflected(k: int, length: int) -> int:
            while not 0 <= k < length:
                k = -k if k < 0 else 2 * (length - 1) - k
            return k

        def intensity(x: float, y: float) -> float:
            left, upper = math.floor(x), math.floor(y)
            total = 0.0
            for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
                weight = (1 - abs(x - left - column)) * (1 - abs(y - upper - row))
                total += weight * image[reflected(upper + row, height), reflected(left + column, width)]
            return total

        for n in range(len(keypoints)):
            (x, y), size = keypoints.xy[n].tolist(), float(keypoints.size[n])
            theta, radius = math.radians(float(keypoints.angle[n])), 96 / 2 * size
            for i in range(32):
                phi = theta + 2 * math.pi * (i + 0.5) / 32
                for j in range(32):
                    rho = math.exp(math.log(radius) * (j + 0.5) / 32)
                    expected = intensity(x + rho * math.cos(phi), y + rho * math.sin(phi))
                    assert patches[n, i, j] == pytest.approx(expected, abs=1e-4)

    @pytest.mark.parametrize("pattern", [PAPER, LogPolar(12, antialias=False), Cartesian(antialias=False)])
    def test_a_ramp_is_read_exactly(self, pattern):
        rows, columns = np.mgrid[:400, :500].astype(np.float32)
        keypoints = Keypoints.from_points([[250.3, 199.7]], size=2.5, angle=77)
        points = pattern.locate(keypoints.xy, keypoints.size, keypoints.angle)
        np.testing.assert_allclose(sample_patches(columns, keypoints, pattern), points.x, atol=1e-3)
        np.testing.assert_allclose(sample_patches(rows, keypoints, pattern), points.y, atol=1e-3)

    @pytest.mark.parametrize("pattern", [LogPolar(), Cartesian(40)])
    def test_a_ramp_survives_the_pyramid(self, pattern):
        """Smoothing does not change a linear function, and the levels are not shifted against each other."""
        columns = np.mgrid[:1025, :1025][1].astype(np.float32)
        keypoints = Keypoints.from_points([[512, 512]], size=6, angle=10)
        points = pattern.locate(keypoints.xy, keypoints.size, keypoints.angle)
        inner = points.spacing[0] < 30
        seen = sample_patches(columns, keypoints, pattern)
        np.testing.assert_allclose(seen[0][:, inner], points.x[0][:, inner], atol=0.01)

    def test_antialiasing_removes_what_the_samples_cannot_carry(self):
        """Stripes of 2 px, samples 12 px apart: alias without the pyramid, gray with it."""
        stripes = np.zeros((512, 512), np.float32)
        stripes[:, ::2] = 1
        keypoints = random_keypoints(20, 512, 512)[:]
        keypoints.size[:] = 32
        plain = sample_patches(stripes, keypoints, Cartesian(12, antialias=False))
        smooth = sample_patches(stripes, keypoints, Cartesian(12))
        assert plain.std() > 0.25
        assert smooth.std() < 0.01
        assert smooth.mean() == pytest.approx(0.5, abs=0.01)


class TestBothLookups:
    @pytest.mark.parametrize("pattern", PATTERNS)
    def test_agree_on_many_images_of_different_size(self, gray, pattern):
        images = [gray, gray[:37, :401], gray[200:203, 100:102], gray[:1, :1], gray[:1, :50], gray[64:192, 300:]]
        images = [np.ascontiguousarray(image) for image in images]
        keypoints = [
            random_keypoints(30, image.shape[1], image.shape[0], seed, margin=20) for seed, image in enumerate(images)
        ]
        ours = np.concatenate([sample_patches(i, k, pattern) for i, k in zip(images, keypoints, strict=True)])
        theirs = torch_patches(images, keypoints, pattern)
        difference = np.abs(ours - theirs)
        assert difference.max() < 1 / 255
        assert difference.mean() < 0.1 / 255

    @pytest.mark.parametrize("pattern", [PAPER, LogPolar(), Cartesian()])
    def test_validity_masks_agree_and_mark_what_lies_on_the_image(self, gray, pattern):
        keypoints = random_keypoints(40, 512, 512, margin=10)
        mask = ImagePyramid(gray).validity(keypoints, pattern)
        columns = (torch.from_numpy(getattr(keypoints, name)) for name in ("xy", "size", "angle"))
        index = torch.zeros(40, dtype=torch.int64)
        theirs = TorchPyramids([torch.from_numpy(gray)]).validity(index, *columns, pattern)
        assert (mask != theirs.numpy()).mean() < 1e-3  # positions within rounding of the edge
        points = pattern.locate(keypoints.xy, keypoints.size, keypoints.angle)
        x, y = points.x[mask], points.y[mask]
        assert (x > -0.51).all() and (x < 511.51).all() and (y > -0.51).all() and (y < 511.51).all()
        assert 0.02 < 1 - mask.mean() < 0.9

    def test_torch_is_differentiable_in_the_position(self, gray):
        pyramids = TorchPyramids([torch.from_numpy(gray)])
        xy = torch.tensor([[200.3, 180.6]], requires_grad=True)
        pyramids.sample(torch.tensor([0]), xy, torch.tensor([5.0]), torch.tensor([20.0]), LogPolar()).sum().backward()
        assert torch.isfinite(xy.grad).all()
        assert xy.grad.abs().max() > 0

    def test_nothing_in_nothing_out(self, gray):
        assert sample_patches(gray, Keypoints.empty(), LogPolar()).shape == (0, 32, 32)
        assert torch_patches([gray], [Keypoints.empty()], LogPolar()).shape == (0, 32, 32)
        assert len(TorchPyramids([])) == 0


class TestEdges:
    def test_reflection_at_any_distance(self, gray):
        """A support 100 times the image: the same as sampling an image tiled with its reflections."""
        small = np.ascontiguousarray(gray[200:217, 200:221])
        tiled = np.pad(small, 400, mode="reflect")
        pattern = LogPolar(96, inner_radius="paper", antialias=False)
        keypoints = Keypoints.from_points([[8.2, 7.9]], size=8, angle=33)
        moved = Keypoints.from_points(keypoints.xy + 400, size=8, angle=33)
        np.testing.assert_allclose(
            sample_patches(small, keypoints, pattern), sample_patches(tiled, moved, pattern), atol=2e-3
        )

    def test_a_huge_support_stays_finite(self, gray):
        keypoints = Keypoints.from_points([[1e5, -1e5], [10, 10]], size=[3, 1e5])
        for pattern in PATTERNS:
            patches = sample_patches(gray, keypoints, pattern)
            assert np.isfinite(patches).all()
            assert patches.min() >= 0 and patches.max() <= 1

    def test_images_longer_than_remap_takes(self):
        random = np.random.default_rng(0)
        long = random.random((8, 40000), dtype=np.float32)
        keypoints = Keypoints.from_points([[39000.4, 3.3]], size=2, angle=15)
        near_end = Keypoints.from_points([[39000.4 - 30000, 3.3]], size=2, angle=15)
        seen = sample_patches(long, keypoints, LogPolar(12, antialias=False))
        expected = sample_patches(np.ascontiguousarray(long[:, 30000:]), near_end, LogPolar(12, antialias=False))
        np.testing.assert_allclose(seen, expected, atol=5e-3)  # float32 positions near 40000

    def test_gather_is_remap(self, gray):
        random = np.random.default_rng(0)
        x, y = (random.uniform(0, 512, (50, 32)).astype(np.float32) for _ in range(2))
        expected = cv2.remap(gray, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        np.testing.assert_allclose(_bilinear_gather(gray, x, y), expected, atol=1e-5)

    def test_patches_do_not_depend_on_the_number_sampled_together(self, gray):
        keypoints = random_keypoints(600, 512, 512)
        together = sample_patches(gray, keypoints, LogPolar())
        for n in (0, 255, 256, 599):
            np.testing.assert_array_equal(sample_patches(gray, keypoints[n : n + 1], LogPolar())[0], together[n])

    @pytest.mark.parametrize(
        "pattern", [LogPolar(rows=160, antialias=False), Cartesian(12, 16, 160), LogPolar(12, 160, 160)]
    )
    def test_large_patches_of_many_keypoints(self, gray, pattern):
        """More lines than cv2.remap takes in one map."""
        keypoints = random_keypoints(300, 512, 512)
        patches = sample_patches(gray, keypoints, pattern)
        np.testing.assert_array_equal(sample_patches(gray, keypoints[250:251], pattern)[0], patches[250])

    @pytest.mark.parametrize("size", [0, -1, np.nan, np.inf, 1e38])
    def test_impossible_keypoints_are_refused(self, gray, size):
        with pytest.raises(KeypointError, match="size"):
            sample_patches(gray, Keypoints.from_points([[5, 5]], size=size), LogPolar())

    def test_other_images_are_refused(self):
        with pytest.raises(ValueError, match="gray float32"):
            ImagePyramid(np.zeros((4, 4, 3), np.float32))


def turn_image(gray, degrees):
    """The image turned clockwise about its centre on a canvas that holds all of it, and the turn of a point."""
    height, width = gray.shape
    radians = math.radians(degrees)
    matrix = np.array([[math.cos(radians), -math.sin(radians)], [math.sin(radians), math.cos(radians)]])
    corners = np.array([[0, 0], [width - 1, 0], [0, height - 1], [width - 1, height - 1]]) @ matrix.T
    low, high = corners.min(axis=0), corners.max(axis=0)
    affine = np.concatenate([matrix, -low[:, None]], axis=1)
    shape = tuple(np.round(high - low).astype(int) + 1)
    turned = cv2.warpAffine(gray, affine, shape, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT_101)
    return turned, affine


def turned_keypoints(keypoints, affine, degrees):
    xy = keypoints.xy @ affine[:, :2].T + affine[:, 2]
    return Keypoints.from_points(xy, keypoints.size, keypoints.angle + degrees)


class TestInvariance:
    @pytest.mark.parametrize("degrees", [90, 180, 270])
    @pytest.mark.parametrize("pattern", [LogPolar(), PAPER, LogPolar(12), Cartesian()])
    def test_quarter_turns(self, gray, degrees, pattern):
        keypoints = SiftDetector(max_keypoints=300)(gray)
        turned = np.ascontiguousarray(np.rot90(gray, -degrees // 90))
        _, affine = turn_image(gray, degrees)
        after = sample_patches(turned, turned_keypoints(keypoints, affine, degrees), pattern)
        assert correlation(sample_patches(gray, keypoints, pattern), after).mean() >= 0.99

    @pytest.mark.parametrize("degrees", range(10, 180, 20))
    @pytest.mark.parametrize("pattern", [LogPolar(), LogPolar(12), LogPolar(inner_radius="paper")])
    def test_any_turn(self, gray, degrees, pattern):
        """Keypoints whose support stays on the image; what lies outside is not the same picture."""
        random = np.random.default_rng(1)
        size = random.uniform(1.5, 3, 100) * 96 / pattern.lambda_
        keypoints = Keypoints.from_points(random.uniform(156, 356, (100, 2)), size, random.uniform(0, 360, 100))
        assert ImagePyramid(gray).validity(keypoints, pattern).all()
        turned, affine = turn_image(gray, degrees)
        after = sample_patches(turned, turned_keypoints(keypoints, affine, degrees), pattern)
        assert correlation(sample_patches(gray, keypoints, pattern), after).mean() >= 0.95

    def test_the_wrong_sign_of_the_angle_is_noticed(self, gray):
        keypoints = SiftDetector(max_keypoints=300)(gray)
        turned = np.ascontiguousarray(np.rot90(gray, -1))
        _, affine = turn_image(gray, 90)
        after = sample_patches(turned, turned_keypoints(keypoints, affine, -90), LogPolar())
        assert correlation(sample_patches(gray, keypoints, LogPolar()), after).mean() < 0.7

    @pytest.mark.parametrize(("lambda_", "min_size"), [(96, 0), (12, 4)])
    def test_zoom_by_a_half_with_the_true_scale(self, gray, lambda_, min_size):
        """All SIFT keypoints at lambda 96; at 12 those whose patch is not finer than the pixels of the half image."""
        keypoints = SiftDetector(max_keypoints=None)(gray)
        keypoints = keypoints[keypoints.size > min_size]
        assert len(keypoints) > 200
        half = cv2.resize(gray, (256, 256), interpolation=cv2.INTER_AREA)
        pattern = LogPolar(lambda_)
        after = sample_patches(half, keypoints.resized(0.5, 0.5), pattern)
        assert correlation(sample_patches(gray, keypoints, pattern), after).mean() >= 0.98


@pytest.mark.parametrize("shape", [(40, 64), (33, 17)])
def test_stacked_images_give_the_same_patches(shape):
    images = np.random.default_rng(0).random((3, *shape)).astype(np.float32)
    keypoints = [random_keypoints(5, shape[1], shape[0], seed, margin=3) for seed in range(3)]
    expected = torch_patches(images, keypoints, LogPolar())
    stacked = TorchPyramids.stacked(torch.from_numpy(images))
    index = torch.arange(3).repeat_interleave(5)
    columns = (
        torch.cat([torch.from_numpy(getattr(each, name)) for each in keypoints]) for name in ("xy", "size", "angle")
    )
    np.testing.assert_allclose(stacked.sample(index, *columns, LogPolar()).numpy(), expected, atol=1e-6)
