from __future__ import annotations

import numpy as np
import pytest

from logpolar.errors import ImageError, ModelError
from logpolar.models import load_model
from logpolar.models.detectors import NetworkDetector
from logpolar.models.files import load_detector
from logpolar.settings import DEFAULT_MODEL


@pytest.fixture(scope="module")
def detector(detector_file):
    return NetworkDetector(detector_file, 100, threads=1)


def test_keypoints_have_one_size_and_are_the_strongest(detector, gray):
    found = detector(gray[:200, :240])
    assert len(found) == 100
    assert set(found.size.tolist()) == {5.0}
    assert set(found.angle.tolist()) == {0.0}
    assert (np.diff(found.response) <= 0).all()
    more = detector.limited(150)(gray[:200, :240])
    assert np.array_equal(more.xy[:100], found.xy)


def test_tiles_have_no_seams(detector_file, gray):
    image = gray[:301, :410]
    whole = NetworkDetector(detector_file, None, threads=1).scores(image)
    tiled = NetworkDetector(detector_file, None, threads=1, max_tile=72).scores(image)
    assert np.abs(whole - tiled).max() < 1e-4 * whole.std()
    first = NetworkDetector(detector_file, 200, threads=1)(image)
    second = NetworkDetector(detector_file, 200, threads=1, max_tile=72)(image)
    assert np.abs(first.xy - second.xy).max() < 1e-2


def test_keypoints_move_with_the_image(detector, gray):
    """By multiples of 8 pixels, the step of the network's coarsest layer, away from edges."""
    here, there = (
        detector.limited(1000)(gray[top : top + 250, left : left + 250]).xy for top, left in ((0, 0), (16, 8))
    )
    inner = here[((here > 70) & (here < 180)).all(axis=1)]
    distance = np.linalg.norm(inner[:, None] - (8, 16) - there[None], axis=2).min(axis=1)
    assert len(inner) > 20
    assert np.mean(distance < 0.01) > 0.95


@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (3, 3), (5, 5), (17, 9)])
@pytest.mark.parametrize("orientation", ["upright", "gradient"])
def test_small_images(detector_file, shape, orientation):
    image = np.random.default_rng(0).random(shape).astype(np.float32)
    found = NetworkDetector(detector_file, orientation=orientation, threads=1)(image)
    assert np.isfinite(found.table).all()
    assert ((found.xy >= 0) & (found.xy <= np.array(shape[::-1]) - 1)).all()


def test_a_blank_image_has_keypoints_at_its_edges_at_most(detector):
    found = detector(np.full((200, 200), 0.4, np.float32))
    assert not ((found.xy > 70) & (found.xy < 130)).all(axis=1).any()


def test_noise_is_defined(detector):
    image = np.random.default_rng(0).random((80, 90)).astype(np.float32)
    assert np.array_equal(detector(image).xy, detector(image).xy)


def test_pixels_that_are_not_numbers_are_refused(detector):
    with pytest.raises(ImageError, match="NaN"):
        detector(np.array([[0.0, np.nan]], np.float32))


def test_settings_name_the_model(detector_file, detector):
    assert detector.settings == {
        "name": "NetworkDetector",
        "model": "tiny-detector",
        "model_hash": load_detector(detector_file).digest,
        "size": 5.0,
        "max_keypoints": 100,
        "orientation": "upright",
    }


def test_options_are_checked(detector_file):
    with pytest.raises(ValueError, match="orientation"):
        NetworkDetector(detector_file, orientation="sideways")
    with pytest.raises(ValueError, match="max_tile"):
        NetworkDetector(detector_file, max_tile=100)


def test_halves_of_a_model_pair_are_not_mixed_up(detector_file):
    with pytest.raises(ModelError, match="is the model of a detector"):
        load_model(detector_file)
    with pytest.raises(ModelError, match="no detector"):
        NetworkDetector("nothing-of-that-name")
    with pytest.raises(ModelError, match=f"no detector '{DEFAULT_MODEL}'"):
        NetworkDetector(DEFAULT_MODEL)
