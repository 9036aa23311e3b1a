from __future__ import annotations

import cv2
import numpy as np
import pytest

from logpolar.images import to_bytes
from logpolar.training.conditions import alter_images, change_conditions, smooth_field


@pytest.fixture(scope="module")
def view(gray):
    return to_bytes(gray)[:200, :260]


def test_seed_determines_the_copy(view):
    before = view.copy()
    one, same, other = (change_conditions(view, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert np.array_equal(view, before)
    assert one.shape == view.shape
    assert one.dtype == np.uint8


def test_geometry_is_unchanged(view):
    """The edges of many copies together correlate with those of the image, and less so after any shift."""
    edges = np.mean([_edges(change_conditions(view, np.random.default_rng(seed))) for seed in range(30)], axis=0)
    truth = _edges(view)

    def similarity(shift: tuple[int, int]) -> float:
        return float(np.corrcoef(np.roll(edges, shift, (0, 1))[8:-8, 8:-8].ravel(), truth[8:-8, 8:-8].ravel())[0, 1])

    unshifted = similarity((0, 0))
    assert unshifted > 0.6
    assert all(similarity(shift) < unshifted for shift in ((2, 0), (-2, 0), (0, 2), (0, -2)))


def _edges(view: np.ndarray) -> np.ndarray:
    values = cv2.GaussianBlur(view.astype(np.float32), (0, 0), 1.5)
    strength = np.hypot(cv2.Sobel(values, -1, 1, 0), cv2.Sobel(values, -1, 0, 1))
    return strength / (strength.mean() + 1)


def test_some_copies_invert_contrast(view):
    """At night a dark wall can be brighter than the sky."""
    correlations = [
        np.corrcoef(change_conditions(view, np.random.default_rng(seed)).ravel(), view.ravel())[0, 1]
        for seed in range(40)
    ]
    assert min(correlations) < 0.3
    assert max(correlations) > 0.9


@pytest.mark.parametrize("shape", [(1, 1), (3, 200), (64, 48)])
def test_any_shape(shape):
    for seed in range(8):
        assert change_conditions(np.full(shape, 128, np.uint8), np.random.default_rng(seed)).shape == shape
    assert smooth_field(shape, np.random.default_rng(0)).shape == shape


def test_order_of_copies(view):
    images = [view, view[:50, :70]]
    copies = alter_images(images, 2, 5)
    assert [copy.shape for copy in copies] == [image.shape for image in images] * 2
    assert not np.array_equal(copies[0], copies[2])
    np.testing.assert_array_equal(copies[3], change_conditions(images[1], np.random.default_rng((5, 1, 1))))
    assert alter_images(images, 0, 5) == []
