from __future__ import annotations

import json

import cv2
import numpy as np
import pytest
from PIL import Image as PIL

from logpolar.errors import ImageError, KeypointError, ModelError
from logpolar.features import extractor as extractor_module
from logpolar.features.extractor import Extractor
from logpolar.features.regions import Region, extract_region
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import FeatureDetector, SiftDetector
from logpolar.sampling import sample_patches
from sampling.test_torch_lookup import turn_image, turned_keypoints


@pytest.fixture(scope="module")
def extractor() -> Extractor:
    return Extractor("logpolar-96", SiftDetector(max_keypoints=50, spread=0), max_size=None)


@pytest.fixture(scope="module")
def few() -> Extractor:
    """Cheaper."""
    return Extractor("logpolar-96-small", max_keypoints=20, max_size=None)


def cosine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return (first * second).sum(axis=1)


def test_features_of_a_file_and_of_its_array_are_the_same(extractor, photo, tmp_path):
    cv2.imwrite(str(tmp_path / "photo.png"), photo)
    by_path, by_array = extractor.extract(tmp_path / "photo.png"), extractor.extract(photo)
    np.testing.assert_array_equal(by_path.descriptors, by_array.descriptors)
    assert by_path.image_size == (512, 512)
    assert len(by_path) == 50
    assert by_path.descriptors.shape == (50, 128)
    np.testing.assert_allclose(np.linalg.norm(by_path.descriptors, axis=1), 1, atol=1e-5)


def test_descriptors_are_the_networks_of_the_models_own_patches(extractor, gray):
    features = extractor.extract(gray)
    patches = sample_patches(gray, features.keypoints, extractor.model.sampling)
    np.testing.assert_allclose(features.descriptors, extractor.describer.describe_patches(patches), atol=1e-6)


def test_keypoints_come_back_in_pixels_of_the_original(photo):
    large = cv2.resize(photo, (1536, 1536), interpolation=cv2.INTER_CUBIC)
    extractor = Extractor("logpolar-96-small", max_keypoints=500, max_size=512)
    small, reduced = extractor.extract(photo), extractor.extract(large)
    assert reduced.image_size == (1536, 1536)
    expected = small.keypoints.resized(3, 3)
    distance = np.linalg.norm(expected.xy[:, None] - reduced.keypoints.xy[None], axis=2)
    assert np.median(distance.min(axis=1)) < 0.5
    assert reduced.keypoints.xy.max() > 1400


def test_a_region_of_a_file_is_that_of_its_array(photo, gray, tmp_path):
    """In pixels of the original, whatever the limits of size."""
    cv2.imwrite(str(tmp_path / "photo.png"), photo)
    region = Region((250.0, 200.0), (200.0, 160.0), 20.0, 2.0)
    small = Extractor("logpolar-96-small", max_keypoints=30, max_size=128)
    found = [small.extract_region(each, region) for each in (tmp_path / "photo.png", photo)]
    expected = extract_region(gray, region, small.detector, small.describer)
    for each in found:
        assert each.image_size == (512, 512)
        np.testing.assert_array_equal(each.keypoints.xy, expected.keypoints.xy)
        np.testing.assert_array_equal(each.descriptors, expected.descriptors)


def test_regions_of_huge_photos_are_read_smaller(photo, tmp_path, monkeypatch):
    cv2.imwrite(str(tmp_path / "photo.png"), photo)
    extractor = Extractor("logpolar-96-small", max_keypoints=30)
    region = Region((250.0, 200.0), (200.0, 160.0), 0.0, 1.0)
    whole = extractor.extract_region(tmp_path / "photo.png", region)
    monkeypatch.setattr(extractor_module, "_LARGEST_SIDE", 256)
    reduced = extractor.extract_region(tmp_path / "photo.png", region)
    assert reduced.image_size == whole.image_size == (512, 512)
    assert (np.abs(reduced.keypoints.xy - region.centre) <= (101, 81)).all()
    apart = np.linalg.norm(reduced.keypoints.xy[:, None] - whole.keypoints.xy[None], axis=2).min(axis=1)
    assert np.median(apart) < 2


def test_small_images_are_enlarged(photo):
    """A reduced photo gives keypoints in its own pixels, more of them than without, and where the photo has them."""
    small = cv2.resize(photo, (128, 128), interpolation=cv2.INTER_AREA)
    plain, enlarged = (Extractor("logpolar-96-small", max_keypoints=2000, min_size=size) for size in (0, 384))
    found = enlarged.extract(small)
    assert len(found) > 1.5 * len(plain.extract(small))
    assert found.image_size == (128, 128) and found.keypoints.xy.max() < 128
    at_full_size = plain.extract(photo).keypoints.resized(1 / 4, 1 / 4)
    distance = np.linalg.norm(found.keypoints.xy[:, None] - at_full_size.xy[None], axis=2).min(axis=1)
    assert np.median(distance) < 1  # of a pixel: a shift by the resize would show as a quarter of it, a scale as more
    again = enlarged.extract(small, found.keypoints[:5]).descriptors
    np.testing.assert_allclose(again, found.descriptors[:5], atol=2e-3)


def test_given_keypoints_are_described_in_their_order(extractor, gray):
    found = extractor.extract(gray)
    order = np.random.default_rng(0).permutation(len(found))
    again = extractor.extract(gray, found.keypoints[order])
    np.testing.assert_array_equal(again.descriptors, found.descriptors[order])
    np.testing.assert_array_equal(again.keypoints.xy, found.keypoints.xy[order])


@pytest.mark.parametrize("count", [0, 1, 7, 1024, 1025])
def test_any_number_of_keypoints(few, gray, count):
    random = np.random.default_rng(0)
    keypoints = Keypoints.from_points(random.uniform(0, 511, (count, 2)), random.uniform(2, 9, count))
    features = few.extract(gray, keypoints)
    assert features.descriptors.shape == (count, 128)
    np.testing.assert_allclose(np.linalg.norm(features.descriptors, axis=1), 1, atol=1e-5)
    if count:
        last = few.extract(gray, keypoints[count - 1 :])
        np.testing.assert_allclose(last.descriptors[0], features.descriptors[-1], atol=1e-6)


@pytest.mark.parametrize("degrees", [10, 50, 90, 130, 170, 180, 270])
def test_descriptors_stay_when_the_image_turns(extractor, gray, degrees):
    keypoints = SiftDetector(max_keypoints=300, spread=0)(gray)
    if degrees % 90 == 0:
        keypoints = keypoints[:60]
        turned = np.ascontiguousarray(np.rot90(gray, -degrees // 90))
        _, affine = turn_image(gray, degrees)
    else:
        # Only what both images show: a support that reaches past the edge sees another picture when turned.
        keypoints = keypoints[np.linalg.norm(keypoints.xy - 255.5, axis=1) + 48 * keypoints.size < 256]
        turned, affine = turn_image(gray, degrees)
    assert len(keypoints) >= 20
    before = extractor.extract(gray, keypoints).descriptors
    after = extractor.extract(turned, turned_keypoints(keypoints, affine, degrees)).descriptors
    assert cosine(before, after).mean() >= 0.95


def test_a_detector_that_finds_nonsense_is_refused(gray):
    extractor = Extractor(detector=lambda image: Keypoints.from_points([[np.nan, 3]]))
    with pytest.raises(KeypointError, match="finite"):
        extractor.extract(gray)


def test_outside_keypoints_are_described(extractor, gray):
    features = extractor.extract(gray, Keypoints.from_points([[-50, 600], [1e5, 3]]))
    assert np.isfinite(features.descriptors).all()


@pytest.mark.parametrize("size", [0, -3, np.nan])
def test_impossible_keypoints_are_refused(extractor, gray, size):
    with pytest.raises(KeypointError, match="size"):
        extractor.extract(gray, Keypoints.from_points([[5, 5]], size=size))


@pytest.mark.parametrize("image", [np.zeros((1, 1), np.uint8), np.full((300, 200, 3), 90, np.uint8)])
def test_images_without_keypoints_have_empty_features(extractor, image):
    features = extractor.extract(image)
    assert len(features) == 0
    assert features.descriptors.shape == (0, 128)
    assert features.image_size == image.shape[1::-1]


def test_a_tiny_image_can_be_described(extractor):
    features = extractor.extract(np.full((1, 1), 7, np.uint8), Keypoints.from_points([[0, 0]]))
    assert np.isfinite(features.descriptors).all()


def test_unknown_model():
    with pytest.raises(ModelError, match=r"no model 'nonesuch'.*logpolar-96"):
        Extractor("nonesuch")


def test_settings_tell_extractors_apart():
    sift, orb = Extractor().settings, Extractor(detector=FeatureDetector(cv2.ORB.create())).settings
    assert sift != orb
    assert sift != Extractor("paper-cartesian-12").settings
    assert sift != Extractor(max_size=800).settings
    assert sift != Extractor(min_size=0).settings != Extractor(detector=SiftDetector(spread=0)).settings != sift
    assert sift == Extractor(threads=1).settings
    assert len(sift["model_hash"]) == 64
    assert orb != Extractor(detector=FeatureDetector(cv2.ORB.create(nfeatures=7))).settings
    assert Extractor(detector=lambda gray: Keypoints.empty()).settings != Extractor(detector=other_detector).settings
    json.dumps(orb)


def other_detector(gray):
    return Keypoints.empty()


class TestInputs:
    def test_faint_keypoints_fill_up_the_number(self, gray):
        faint = np.asarray(0.4 + 0.1 * gray, np.float32)
        assert len(SiftDetector(200)(faint)) < 20
        assert len(Extractor("logpolar-96-small", max_keypoints=200, max_size=None).extract(faint)) == 200

    def test_max_keypoints(self, few, photo):
        assert len(few.extract(photo)) == 20
        sift = SiftDetector(20, contrast_threshold=0)
        assert few.settings == Extractor("logpolar-96-small", sift, max_size=None).settings
        orb = FeatureDetector(cv2.ORB.create(nfeatures=900), max_keypoints=20)
        assert len(Extractor("logpolar-96-small", orb, max_keypoints=300).extract(photo)) == 300

    @pytest.mark.parametrize(("detector", "count"), [(None, 0), (other_detector, 5)])
    def test_limits_that_cannot_be(self, detector, count):
        with pytest.raises(ValueError, match="max_keypoints"):
            Extractor(detector=detector, max_keypoints=count)

    def test_bare_positions(self, few, gray):
        points = [[10, 20], [200.5, 30]]
        expected = few.extract(gray, Keypoints.from_points(points))
        for given in (points, np.array(points), np.array(points, np.float32)):
            found = few.extract(gray, given)
            np.testing.assert_array_equal(found.descriptors, expected.descriptors)
            assert isinstance(found.keypoints, Keypoints)
        assert few.extract(gray, np.zeros((0, 2))).descriptors.shape == (0, 128)

    @pytest.mark.parametrize("shape", [(5, 3), (4,), (2, 2, 2)])
    def test_positions_of_another_shape(self, few, gray, shape):
        with pytest.raises(KeypointError, match=r"must have shape \(N, 2\), not") as caught:
            few.extract(gray, np.ones(shape))
        assert "\n" not in str(caught.value)

    def test_the_order_of_colours(self, few, photo):
        rgb, points = np.ascontiguousarray(photo[:, :, ::-1]), [[100, 200], [300, 300]]
        expected = few.extract(photo, points).descriptors
        np.testing.assert_array_equal(few.extract(rgb, points, color="rgb").descriptors, expected)
        np.testing.assert_array_equal(few.extract(PIL.fromarray(rgb), points).descriptors, expected)
        assert np.abs(few.extract(rgb, points).descriptors - expected).max() > 1e-3
        with pytest.raises(ValueError, match="'bgr' or 'rgb'"):
            few.extract(rgb, points, color="hsv")

    def test_many(self, few, photo, gray, tmp_path):
        cv2.imwrite(str(tmp_path / "photo.png"), photo)
        expected = few.extract(photo).descriptors
        rgb = PIL.fromarray(np.ascontiguousarray(photo[:, :, ::-1]))
        paths = [tmp_path / "photo.png", str(tmp_path / "photo.png")]
        for images in (paths, iter(paths), [photo, photo], np.stack([photo, photo]), [rgb, rgb]):
            found = list(few.extract_many(images))
            assert len(found) == 2
            np.testing.assert_array_equal(found[1].descriptors, expected)
        assert list(few.extract_many([])) == []

    @pytest.mark.parametrize(
        ("images", "words"),
        [
            (["{path}", np.zeros((9, 9))], "number 1 is an array"),
            ([np.zeros((9, 9)), "{path}"], "number 1 is a path"),
            ([np.zeros((9, 9)), None], "number 1 is of type NoneType"),
            ([3], "number 0 is of type int"),
            ("photo.png", "several images"),
        ],
    )
    def test_many_of_mixed_types(self, few, photo, tmp_path, images, words):
        cv2.imwrite(str(tmp_path / "photo.png"), photo)
        given = [tmp_path / "photo.png" if isinstance(each, str) else each for each in images]
        with pytest.raises(ImageError, match=words):
            list(few.extract_many(images if isinstance(images, str) else given))
