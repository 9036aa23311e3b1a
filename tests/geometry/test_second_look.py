"""A second look at two views of a plane, whose homography is known."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import cv2
import numpy as np
import pytest

from logpolar.features.extractor import Extractor
from logpolar.features.features import Features
from logpolar.geometry.homography import warp_points
from logpolar.geometry.options import EstimationOptions
from logpolar.geometry.second_look import MatchedImages, look_again, match_images, shared_regions, whole_region
from logpolar.geometry.two_view import Geometry
from logpolar.geometry.verification import VerifiedMatches, match_and_verify
from logpolar.keypoints import Keypoints
from logpolar.matching.nearest import Matches

ZOOM, DEGREES = 2.5, 40.0
MODEL = "logpolar-96-small"


@pytest.fixture(scope="module")
def close_up(gray) -> tuple[np.ndarray, np.ndarray]:
    """A rotated close-up of the photo, and the homography to it."""
    cosine, sine = ZOOM * np.cos(np.radians(DEGREES)), ZOOM * np.sin(np.radians(DEGREES))
    homography = np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]])
    homography[:2, 2] = (200, 150) - homography[:2, :2] @ (230, 150)
    picture = cv2.warpAffine(gray, homography[:2], (400, 300), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT_101)
    return np.clip(picture, 0, 1), homography


@pytest.fixture(scope="module")
def extractor() -> Extractor:
    return Extractor(MODEL, max_keypoints=300, max_size=None, threads=1)


@pytest.fixture(scope="module")
def first_look(gray, close_up, extractor) -> MatchedImages:
    return match_images(gray, close_up[0], extractor, "homography")


@pytest.fixture(scope="module")
def both_looks(gray, close_up, extractor) -> MatchedImages:
    return match_images(gray, close_up[0], [extractor, extractor], "homography")


def correct(pair: MatchedImages, homography: np.ndarray) -> np.ndarray:
    """Which matches lie within 3 px of the truth."""
    predicted = warp_points(homography, pair.found.first_xy)[0]
    return np.linalg.norm(predicted - pair.found.second_xy, axis=1) < 3


def test_more_correct_matches_are_found(first_look, both_looks, close_up):
    before, after = (correct(pair, close_up[1]) for pair in (first_look, both_looks))
    assert before.sum() >= 8
    assert after.sum() > 2 * before.sum()
    assert after.mean() > 0.8
    assert both_looks.found.added == (both_looks.found.matches.indices[:, 0] >= 300).sum() > before.sum()


def test_the_first_look_is_part_of_the_result(first_look, both_looks, gray, close_up, extractor):
    ours, theirs = extractor.extract(gray), extractor.extract(close_up[0])
    found = match_and_verify(ours, theirs, "homography")
    np.testing.assert_array_equal(first_look.found.matches.indices, found.matches.indices)
    assert first_look.found.looks == ()
    assert first_look.found.added == 0
    count = len(found.matches)
    np.testing.assert_array_equal(both_looks.found.matches.indices[:count], found.matches.indices)
    np.testing.assert_array_equal(both_looks.first.keypoints.xy[: len(ours)], ours.keypoints.xy)
    assert both_looks.found.looks[0] == (len(ours), len(theirs))
    assert np.sum(both_looks.found.looks, axis=0).tolist() == [len(both_looks.first), len(both_looks.second)]
    assert both_looks.first.scale == ours.scale


def test_matches_are_rows_of_the_features(both_looks):
    here, there = both_looks.found.matches.indices.T
    np.testing.assert_array_equal(both_looks.first.keypoints.xy[here], both_looks.found.first_xy)
    np.testing.assert_array_equal(both_looks.second.keypoints.xy[there], both_looks.found.second_xy)
    assert len(both_looks.first) == len(both_looks.first.descriptors)
    assert len(both_looks.found.geometry.inliers) == len(here) == len(both_looks.found.matches.distances)


def test_keypoints_of_the_second_look_are_seen_alike(both_looks):
    """Keypoints of one size and angle in the regions differ in the images by the zoom and rotation."""
    found = both_looks.found
    added = found.matches.indices[:, 0] >= found.looks[0][0]
    here, there = found.matches.indices[added].T
    first, second = both_looks.first.keypoints[here], both_looks.second.keypoints[there]
    assert np.median(second.size / first.size) == pytest.approx(ZOOM, rel=0.15)
    rotation = (second.angle - first.angle - DEGREES + 180) % 360 - 180
    assert abs(np.median(rotation)) < 5


def test_upright_keypoints_match_once_the_regions_are_aligned(gray, close_up, extractor):
    """A look of keypoints without scale and rotation finds nothing by itself here."""
    upright = Extractor("logpolar-sf", max_keypoints=200, max_size=None, threads=1)
    alone = match_images(gray, close_up[0], upright, "homography")
    after = match_images(gray, close_up[0], [extractor, upright], "homography")
    assert correct(alone, close_up[1]).sum() < 8
    assert correct(after, close_up[1])[after.found.matches.indices[:, 0] >= 300].sum() > 50


def test_regions_are_what_both_show(first_look, gray, close_up):
    here, there = shared_regions(first_look, 600)
    corners = np.array([[0, 0], [399, 0], [399, 299], [0, 299]], np.float64)
    seen = warp_points(np.linalg.inv(close_up[1]), corners)[0]
    assert (np.abs(np.array(here.centre) - seen.mean(axis=0)) < 25).all()
    assert max(here.size) < np.ptp(seen, axis=0).max() + 20
    assert there.factor * ZOOM == pytest.approx(here.factor, rel=0.1)
    assert there.degrees == pytest.approx(DEGREES, abs=5)
    assert here.degrees == 0
    assert here.factor <= 4
    assert max(here.longer, there.longer) == pytest.approx(640, abs=1) or here.factor == 4


@pytest.mark.parametrize("other", [False, True])
def test_other_features_find_what_the_first_look_missed(gray, extractor, other):
    """They look at the whole images, too, at the scale of the first look."""
    images = gray, gray[40:400, 100:500]
    sides = [extractor.extract(image) for image in images]
    none = VerifiedMatches(
        "homography", Matches.empty(), Geometry(None, np.zeros(0, np.bool_)), *[np.zeros((0, 2))] * 2
    )
    pair, asked = MatchedImages(*sides, none), []

    def extract(number, region):
        asked.append(region)
        return extractor.extract_region(images[number], region)

    found = look_again(pair, (partial(extract, 0), partial(extract, 1)), other=other).found
    if not other:
        assert found is none
        return
    assert asked[:2] == [whole_region(side) for side in sides]
    assert len(found.looks) == 3
    assert found.geometry.common_scene
    apart = np.linalg.norm(found.first_xy - found.second_xy - (100, 40), axis=1)
    assert (apart < 2).mean() > 0.9
    assert len(apart) > 200


def test_features_that_agree_on_nothing_add_nothing(first_look, gray):
    """The second look sees another picture."""
    noise = np.random.default_rng(0).uniform(0, 1, gray.shape).astype(np.float32)
    looking = Extractor("logpolar-96-small", max_keypoints=200, max_size=None, threads=1)
    extract = partial(looking.extract_region, gray), partial(looking.extract_region, noise)
    assert look_again(first_look, extract, other=True) is first_look


def test_the_whole_image_is_a_region():
    features = Features(Keypoints.empty(), np.zeros((0, 4), np.float32), (400, 300), 0.5)
    region = whole_region(features)
    np.testing.assert_allclose(region.corners()[[0, 2]], [[-0.5, -0.5], [399.5, 299.5]])
    assert region.longer == 200


def pair_of(first: np.ndarray, second: np.ndarray, size=(400, 300)) -> MatchedImages:
    """All points are inliers."""
    indices = np.stack([np.arange(len(first))] * 2, axis=1).astype(np.int32)
    sides = [Features(Keypoints.from_points(xy), np.zeros((len(xy), 4), np.float32), size) for xy in (first, second)]
    matches = Matches(indices, np.zeros(len(first), np.float32))
    geometry = Geometry(np.eye(3), np.ones(len(first), np.bool_), 50.0)
    return MatchedImages(*sides, VerifiedMatches("homography", matches, geometry, first, second))


RANDOM = np.random.default_rng(0).uniform(0, 1, (40, 2))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (100 * RANDOM[:7], 100 * RANDOM[:7]),  # too few
        (300 * RANDOM, 10 * RANDOM),  # no photo shows things 30 times smaller
        (np.full((20, 2), 50.0), np.full((20, 2), 50.0)),  # all in one place
        (3 * RANDOM - 6, 3 * RANDOM - 6),  # outside
    ],
    ids=["few", "zoom", "one place", "outside"],
)
def test_no_region(first, second):
    pair = pair_of(first, second)
    assert shared_regions(pair) is None
    never = pytest.fail
    assert look_again(pair, (never, never)) is pair


def test_photos_of_very_different_size():
    """One has 30 times as many pixels a side, and was described at the size of the other."""
    pair = pair_of(9000 * RANDOM, 300 * RANDOM, (12000, 9000))
    pair = replace(pair, first=replace(pair.first, scale=1 / 30), second=replace(pair.second, image_size=(400, 300)))
    here, there = shared_regions(pair)
    assert there.factor == pytest.approx(30 * here.factor, rel=0.01)
    assert max(here.longer, there.longer) == pytest.approx(1024, rel=0.01)


def test_nothing_is_enlarged_too_much():
    here, there = shared_regions(pair_of(40 * RANDOM + 100, 20 * RANDOM + 100))
    assert here.factor == pytest.approx(2, rel=0.01)
    assert there.factor == 4
    assert there.factor == pytest.approx(2 * here.factor, rel=0.01)


def test_regions_are_seen_at_least_as_the_images_were(first_look):
    scaled = [replace(side, scale=3.0) for side in (first_look.first, first_look.second)]
    here, there = shared_regions(replace(first_look, first=scaled[0], second=scaled[1]), 64)
    assert max(here.longer, there.longer) == pytest.approx(3 * 512, abs=2) or here.factor == 4


def test_without_a_geometry_there_is_one_look(gray, close_up, extractor):
    pair = match_images(gray, close_up[0], [extractor, extractor], "none")
    assert pair.found.looks == ()


def test_a_look_that_adds_nothing_changes_nothing(first_look):
    nothing = Features(Keypoints.empty(), np.zeros((0, 128), np.float32), (512, 512))
    assert look_again(first_look, (lambda region: nothing, lambda region: nothing)) is first_look


def test_unguided_matches_of_both_looks_are_kept(first_look, gray, close_up, extractor):
    """Here only the first look had been guided."""
    found = replace(first_look.found, unguided=first_look.found.matches[np.arange(10)])
    extract = partial(extractor.extract_region, gray), partial(extractor.extract_region, close_up[0])
    after = look_again(replace(first_look, found=found), extract).found
    assert after.unguided is not None
    assert (after.unguided.indices[:, 0] >= after.looks[0][0]).sum() == after.added
    assert (after.unguided.indices[:, 0] < after.looks[0][0]).sum() == 10


def test_unguided(gray, close_up, extractor):
    options = EstimationOptions(guided=False)
    pair = match_images(gray, close_up[0], [extractor, extractor], "homography", estimation=options)
    assert pair.found.added > 0
    assert pair.found.unguided is None
