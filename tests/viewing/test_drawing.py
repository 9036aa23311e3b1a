from __future__ import annotations

import cv2
import numpy as np
import pytest

from logpolar.viewing import drawing
from logpolar.viewing.drawing import draw_matches, stack, with_caption, write_picture
from logpolar.viewing.options import DrawingOptions

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


@pytest.mark.parametrize("most", [0, 10])
def test_number_of_lines(monkeypatch, most):
    drawn = []
    monkeypatch.setattr(drawing.cv2, "line", lambda *given: drawn.append(given[3]))
    black, points = np.zeros((9, 9), np.uint8), np.stack([np.arange(600.0), np.zeros(600)], axis=1)
    options = DrawingOptions(max_lines=most, inliers_only=True)
    draw_matches(black, black, points, points, np.arange(600) < 500, options=options)
    assert set(drawn) == {GREEN}
    assert len(drawn) == (most or 500)


def test_colour_by_quality():
    """The best match is yellow and the worst violet, whether it is an inlier or not."""
    black, points = np.zeros((40, 40), np.uint8), np.array([[5, 5], [5, 20], [5, 35]], np.float32)
    options = DrawingOptions(colour_by="quality")
    mask = np.array([True, False, True])
    picture = draw_matches(black, black, points, points, mask, quality=np.array([0.9, 0.5, 0.1]), options=options)
    yellow, violet = (37, 231, 253), (84, 1, 68)
    np.testing.assert_allclose(picture[5, 5], yellow, atol=8)
    np.testing.assert_allclose(picture[35, 5], violet, atol=8)
    assert not coloured(picture, GREEN).any() and not coloured(picture, RED).any()
    with pytest.raises(ValueError, match="give the quality"):
        draw_matches(black, black, points, points, options=options)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_by_exif(orientation):
    """As OpenCV shows a file with that orientation, and the point still on the white pixel."""
    stored = np.zeros((20, 30, 3), np.uint8)
    stored[4, 7] = 255
    stored[:, 0] = (0, 0, 200)
    point = np.array([[7, 4]], np.float32)
    picture = draw_matches(stored, stored, point, point, orientations=(orientation, 1))
    shown = cv2.imdecode(jpeg_with_orientation(stored, orientation), cv2.IMREAD_COLOR)
    height, width = shown.shape[:2]
    assert picture.shape[1] == width + 8 + 30
    there = np.argwhere(cv2.cvtColor(shown, cv2.COLOR_BGR2GRAY) > 150)[0]
    assert coloured(picture[there[0], there[1]], GREEN)
    far = np.abs(np.mgrid[:height, :width] - there[:, None, None]).max(axis=0) > 9
    line = coloured(picture[:height, :width], GREEN) | coloured(picture[:height, :width] * 2, GREEN)
    assert np.abs(picture[:height, :width].astype(int) - shown)[far & ~line].mean() < 12


def jpeg_with_orientation(image: np.ndarray, orientation: int) -> np.ndarray:
    """A JPEG file whose EXIF data has nothing but the orientation."""
    entry = (0x0112).to_bytes(2, "little") + (3).to_bytes(2, "little") + (1).to_bytes(4, "little")
    tiff = b"II*\0" + (8).to_bytes(4, "little") + (1).to_bytes(2, "little") + entry
    tiff += orientation.to_bytes(4, "little") + bytes(4)
    block = b"Exif\0\0" + tiff
    data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 98])[1].tobytes()
    marker = b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block
    return np.frombuffer(data[:2] + marker + data[2:], np.uint8)


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
