from __future__ import annotations

import cv2
import numpy as np
import pytest

from logpolar.keypoints.orientation import gradient_angles


@pytest.mark.parametrize("degrees", [0, 37, 90, 200, 345])
def test_a_ramp_points_uphill(degrees):
    """Clockwise on screen: x towards y."""
    y, x = np.mgrid[:60, :60].astype(np.float32)
    gray = (0.5 + 0.004 * (x * np.cos(np.radians(degrees)) + y * np.sin(np.radians(degrees)))).astype(np.float32)
    found = gradient_angles(gray, np.array([[30.0, 30.0]], np.float32), np.array([6.0], np.float32))
    assert (found[0] - degrees + 180) % 360 - 180 == pytest.approx(0, abs=1.5)


def test_angles_turn_with_the_image(gray):
    image = cv2.resize(gray, (256, 256), interpolation=cv2.INTER_AREA)
    xy = np.random.default_rng(0).uniform(90, 165, (200, 2)).astype(np.float32)
    size = np.full(len(xy), 6, np.float32)
    turned = cv2.rotate(image, cv2.ROTATE_90_CLOCKWISE)  # (x, y) -> (255 - y, x)
    there = np.stack([255 - xy[:, 1], xy[:, 0]], axis=1)
    change = gradient_angles(turned, there, size) - gradient_angles(image, xy, size)
    assert np.mean(np.abs((change - 90 + 180) % 360 - 180) < 5) > 0.9


def test_nothing_to_see():
    flat, here = np.zeros((20, 20), np.float32), np.array([[0.0, 0.0], [19.0, 19.0]], np.float32)
    assert gradient_angles(flat, here, np.full(2, 6, np.float32)).tolist() == [0, 0]
    assert gradient_angles(flat, here[:0], np.zeros(0, np.float32)).shape == (0,)
