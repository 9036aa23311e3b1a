"""Regions: what is found in them lies where it is in the image, and is described as in the image."""

from __future__ import annotations

import numpy as np
import pytest

from logpolar.features.extractor import Extractor
from logpolar.features.regions import Region, extract_region
from logpolar.images import resize
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import SiftDetector
from logpolar.models.describers import Describer

BLOBS = np.array([[60.0, 40.0], [150.5, 90.25], [100.0, 130.0], [205.75, 60.5], [30.0, 150.0]])
WIDTH, HEIGHT = 240, 180


@pytest.fixture(scope="module")
def blobs() -> np.ndarray:
    """Bright spots at known places."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    apart = [(columns - x) ** 2 + (rows - y) ** 2 for x, y in BLOBS]
    return np.exp(-np.array(apart) / (2 * 3.0**2)).max(axis=0).astype(np.float32)


def find_blobs(gray: np.ndarray) -> Keypoints:
    """Centres of mass around local maxima above a half, as upright keypoints of 6 px."""
    found = []
    rest = gray.copy()
    while rest.max() > 0.5:
        row, column = np.unravel_index(rest.argmax(), rest.shape)
        reach = 14
        top, left = max(row - reach, 0), max(column - reach, 0)
        part = gray[top : row + reach + 1, left : column + reach + 1]
        rows, columns = np.mgrid[: part.shape[0], : part.shape[1]]
        weight = np.clip(part - 0.1, 0, None) ** 2
        found.append((left + (weight * columns).sum() / weight.sum(), top + (weight * rows).sum() / weight.sum()))
        rest[top : row + reach + 1, left : column + reach + 1] = 0
    return Keypoints.from_points(np.array(found).reshape(-1, 2), 6.0)


class Nothing(Describer):
    def describe(self, gray, keypoints):
        return np.zeros((len(keypoints), 4), np.float32)


def matched(found: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Distance of each place to the nearest found one."""
    return np.linalg.norm(places[:, None] - found[None], axis=2).min(axis=1)


@pytest.mark.parametrize("factor", [1.0, 0.6, 2.5])
@pytest.mark.parametrize("degrees", [0.0, 0.4, 35.0, -90.0, 180.0])
def test_keypoints_come_back_in_pixels_of_the_image(blobs, factor, degrees):
    region = Region((119.5, 89.5), (300, 300), degrees, factor)
    features = extract_region(blobs, region, find_blobs, Nothing())
    keypoints = features.keypoints
    assert features.image_size == (WIDTH, HEIGHT)
    assert features.scale == factor
    assert len(keypoints) == len(features.descriptors) == len(BLOBS)
    assert matched(keypoints.xy, BLOBS).max() < 0.35
    np.testing.assert_allclose(keypoints.size, 6 / factor, rtol=0.02)
    expected = 0 if abs(degrees) < 1 else degrees % 360
    np.testing.assert_allclose(keypoints.angle, expected, atol=1e-4)


@pytest.mark.parametrize("degrees", [0.0, 30.0])
def test_only_what_lies_in_the_region_is_found(blobs, degrees):
    region = Region((110.0, 100.0), (110.0, 90.0), degrees, 2.0)
    found = extract_region(blobs, region, find_blobs, Nothing()).keypoints.xy
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    x, y = (BLOBS - region.centre).T
    inside = (np.abs(cosine * x + sine * y) < 55) & (np.abs(cosine * y - sine * x) < 45)
    assert 0 < inside.sum() < len(BLOBS)
    assert len(found) == inside.sum()
    assert matched(found, BLOBS[inside]).max() < 0.35


@pytest.mark.parametrize("centre", [(-500.0, 20.0), (20.0, 900.0)])
def test_outside_the_image_there_is_nothing(blobs, centre):
    features = extract_region(blobs, Region(centre, (50, 50), 10.0, 2.0), find_blobs, Nothing())
    assert len(features) == len(features.descriptors) == 0


def test_keypoints_beyond_the_edge_of_the_image_are_dropped(gray):
    """The corners of a rotated region that reach beyond it are filled with a reflection."""
    region = Region((20.0, 20.0), (200.0, 200.0), 45.0, 1.0)
    xy = extract_region(gray, region, SiftDetector(500, 0.0), Nothing()).keypoints.xy
    assert len(xy) > 20
    assert (xy >= -0.5).all()


def test_descriptors_are_those_of_the_enlarged_image(gray):
    """Keypoints are described with what lies around the region, as if the whole image had been enlarged."""
    extractor = Extractor("logpolar-96-small", SiftDetector(80), threads=1)
    region = Region((250.0, 200.0), (160.0, 120.0), 0.0, 2.0)
    features = extract_region(gray, region, extractor.detector, extractor.describer)
    small = features.keypoints.size < 5  # of the others the support ends where the region's surroundings do
    enlarged = resize(gray, (1024, 1024))
    expected = extractor.describer.describe(enlarged, features.keypoints[small].resized(2, 2))
    assert small.sum() > 20
    assert np.median((expected * features.descriptors[small]).sum(axis=1)) > 0.99


def test_corners():
    region = Region((10.0, 20.0), (8.0, 4.0), 90.0)
    np.testing.assert_allclose(region.corners(), [[12, 16], [12, 24], [8, 24], [8, 16]], atol=1e-9)
    np.testing.assert_allclose(region.corners(0.5)[0], [16, 12], atol=1e-9)


def test_a_region_of_a_resized_image_is_seen_alike():
    region = Region((10.0, 20.0), (8.0, 4.0), 30.0, 3.0)
    resized = region.resized(2, 2)
    assert resized.centre == (20.5, 40.5)
    assert resized.size == (16.0, 8.0)
    assert (resized.degrees, resized.factor) == (30.0, 1.5)
    assert resized.longer == region.longer == 24.0
