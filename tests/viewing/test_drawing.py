from __future__ import annotations

import cv2
import numpy as np
import pytest

from logpolar.viewing import drawing
from logpolar.viewing.drawing import draw_matches, stack, with_caption, write_picture

NOTHING = np.zeros((0, 2), np.float32)
NO_MASK = np.zeros(0, np.bool_)
GREEN, RED = (80, 200, 60), (60, 60, 230)


def coloured(picture: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """Where a picture has nearly this colour, or that of a translucent line on black."""
    close = [np.abs(picture.astype(int) - np.array(colour) * opacity).max(axis=-1) < 30 for opacity in (0.55, 1)]
    return np.logical_or(*close)


def test_images_lie_side_by_side_on_white(photo):
    first, second = photo[:100, :150], photo[:60, :80]
    picture = draw_matches(first, second, NOTHING, NOTHING, NO_MASK)
    assert picture.shape == (100, 150 + 8 + 80, 3)
    np.testing.assert_array_equal(picture[:, :150], first)
    np.testing.assert_array_equal(picture[:60, 158:], second)
    assert (picture[60:, 158:] == 255).all()


def test_good_matches_are_green_and_others_red():
    black = np.zeros((50, 50, 3), np.uint8)
    first = np.array([[10, 10], [10, 40]], np.float32)
    second = np.array([[30, 10], [30, 40]], np.float32)
    picture = draw_matches(black, black, first, second, np.array([True, False]))
    for (x, y), (end_x, _), colour in zip(first.astype(int), second.astype(int), (GREEN, RED), strict=True):
        for column in (x, 45, 50 + 8 + end_x):  # start, the line in between, end
            assert coloured(picture[y, column], colour)
    assert not coloured(picture[:25], RED).any()
    assert not coloured(picture[25:], GREEN).any()


def test_large_images_are_reduced_and_points_with_them():
    large = np.zeros((1600, 1200), np.uint8)
    small = np.zeros((20, 20), np.uint8)
    points = np.array([[1000, 1400]], np.float32)
    picture = draw_matches(large, small, points, np.array([[5, 5]], np.float32), np.array([True]))
    assert picture.shape == (800, 600 + 8 + 20, 3)
    assert coloured(picture[700, 500], GREEN)


def test_no_more_than_250_lines_of_a_colour(monkeypatch):
    drawn = []
    monkeypatch.setattr(drawing.cv2, "line", lambda canvas, start, end, colour, *rest: drawn.append((start[0], colour)))
    black, points = np.zeros((9, 9), np.uint8), np.stack([np.arange(1000.0), np.zeros(1000)], axis=1)
    draw_matches(black, black, points, points, np.arange(1000) < 900)
    green = [start / 16 for start, colour in drawn if colour == GREEN]
    assert green == list(range(0, 900, 4))
    assert len(drawn) - len(green) == 100


def test_without_a_mask_all_are_green():
    black, points = np.zeros((30, 30), np.uint8), np.array([[5, 5], [20, 20]], np.float32)
    picture = draw_matches(black, black, points, points)
    assert coloured(picture, GREEN).any()
    assert not coloured(picture, RED).any()


@pytest.mark.parametrize("kind", ["uint16", "float", "bgra"])
def test_other_kinds_of_image_can_be_drawn(photo, kind):
    patch = photo[:64, :64]
    image = {
        "uint16": patch.astype(np.uint16) * 257,
        "float": patch.astype(np.float32) / 255,
        "bgra": np.dstack([patch, np.zeros((64, 64), np.uint8)]),
    }[kind]
    picture = draw_matches(image, image, NOTHING, NOTHING, NO_MASK)
    gray, expected = (cv2.cvtColor(p, cv2.COLOR_BGR2GRAY).astype(float) for p in (picture[:, :64], patch))
    assert np.abs(gray - expected).max() <= 2


def test_points_outside_the_images_do_no_harm():
    black = np.zeros((30, 30), np.uint8)
    far = np.array([[-1e30, 1e30]], np.float32)
    assert draw_matches(black, black, far, -far, np.array([True])).shape == (30, 68, 3)


def test_caption_is_a_strip_above(photo):
    picture = with_caption(photo, "some words")
    assert picture.shape == (photo.shape[0] + 36, *photo.shape[1:])
    np.testing.assert_array_equal(picture[36:], photo)
    assert picture[:36].min() < 100 < picture[:36].mean()


def test_stack_fills_up_with_white():
    wide, narrow = np.zeros((10, 40, 3), np.uint8), np.zeros((20, 30, 3), np.uint8)
    picture = stack([wide, narrow])
    assert picture.shape == (10 + 8 + 20 + 8, 40, 3)
    assert (picture[18:38, 30:] == 255).all()
    assert (picture[18:38, :30] == 0).all()


@pytest.mark.parametrize("name", ["picture.png", "picture.PNG", "picture.jpg", "picture.webp"])
def test_written_picture_can_be_read(tmp_path, photo, name):
    write_picture(tmp_path / name, photo)
    back = cv2.imread(str(tmp_path / name))
    assert back.shape == photo.shape
    assert np.abs(back.astype(float) - photo).mean() < (1e-9 if name.lower().endswith("png") else 5)
