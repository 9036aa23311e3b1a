from __future__ import annotations

import cv2
import numpy as np
import pytest

from logpolar.errors import ImageError
from logpolar.images.masks import find_masks, read_mask, unmasked


def write(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), pixels)
    return path


def test_both_names_are_found(tmp_path):
    colmaps = write(tmp_path / "a" / "b.jpg.png", np.zeros((4, 4), np.uint8))
    plain = write(tmp_path / "c.png", np.zeros((4, 4), np.uint8))
    assert find_masks(tmp_path, ["a/b.jpg", "c.jpg", "d.jpg"]) == {"a/b.jpg": colmaps, "c.jpg": plain}


def test_a_folder_without_masks_is_refused(tmp_path):
    with pytest.raises(ImageError, match=r"no mask of any photo.*photo\.jpg\.png"):
        find_masks(tmp_path, ["a.jpg"])
    with pytest.raises(ImageError, match="no such folder"):
        find_masks(tmp_path / "none", ["a.jpg"])


@pytest.mark.parametrize("channels", [None, 3, 4])
def test_black_pixels_are_masked(tmp_path, channels):
    used = np.zeros((4, 6), bool)
    used[1:3, 2:] = True
    pixels = np.where(used, 255, 0).astype(np.uint8)
    if channels:
        pixels = np.stack([pixels] * 3 + [np.full_like(pixels, 255)] * (channels - 3), axis=2)  # opaque
    mask = read_mask(write(tmp_path / "m.png", pixels), (6, 4))
    assert (mask == used).all()
    xy = np.array([[2, 1], [1.4, 1], [1.6, 0.6], [5.4, 2.4], [9, 9], [-3, 1]])
    assert unmasked(mask, xy).tolist() == [True, False, True, True, False, False]


def test_bad_masks_are_named(tmp_path):
    with pytest.raises(ImageError, match=r"m\.png: the mask has 6 x 4 pixels, its photo 4 x 6"):
        read_mask(write(tmp_path / "m.png", np.zeros((4, 6), np.uint8)), (4, 6))
    (tmp_path / "text.png").write_text("no mask")
    with pytest.raises(ImageError, match=r"text\.png: not an image"):
        read_mask(tmp_path / "text.png", (4, 4))
