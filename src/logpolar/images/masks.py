"""Masks of photos: black pixels are left alone. COLMAP's naming: the mask of ``a/b.jpg`` is ``a/b.jpg.png``.

``a/b.png`` is accepted as well, unless that is the name of another photo's mask.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from logpolar.errors import ImageError
from logpolar.images.reading import read_image


def find_masks(folder: str | Path, names: Iterable[str]) -> dict[str, Path]:
    """Masks by name of the photo, of those that have one; raises unless there is any."""
    folder, found = Path(folder), dict[str, Path]()
    if not folder.is_dir():
        raise ImageError(f"{folder}: no such folder of masks")
    for name in names:
        places = folder / f"{name}.png", folder / PurePosixPath(name).with_suffix(".png")
        path = next((place for place in places if place.is_file()), None)
        if path:
            found[name] = path
    if not found:
        raise ImageError(f"{folder}: has no mask of any photo; the mask of photo.jpg is called photo.jpg.png")
    return found


def read_mask(path: Path, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Which pixels (height, width) of a photo of (width, height) may be used."""
    pixels = read_image(path)
    if pixels.shape[1::-1] != size:
        shape = f"{pixels.shape[1]} x {pixels.shape[0]}"
        raise ImageError(f"{path}: the mask has {shape} pixels, its photo {size[0]} x {size[1]}")
    used = pixels[..., :3].any(axis=2) if pixels.ndim == 3 else pixels > 0
    return np.asarray(used)


def unmasked(used: NDArray[np.bool_], xy: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Which positions (N, 2) lie on usable pixels."""
    height, width = used.shape
    column, row = np.clip(np.rint(xy), 0, [width - 1, height - 1]).astype(np.intp).T
    return np.asarray(used[row, column])
