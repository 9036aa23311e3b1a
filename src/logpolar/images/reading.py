"""Images: reading files, finding them in folders, turning any array into gray float32 in [0, 1].

Pixels are taken as they are stored: an EXIF orientation is not applied, so that keypoints agree with COLMAP and hloc.
"""

from __future__ import annotations

import contextlib
import glob
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.errors import ImageError, in_words
from logpolar.types import FloatArray, Image

_ENDINGS = ("jpg", "jpeg", "png", "bmp", "tif", "tiff", "webp", "ppm", "pgm", "pbm", "pnm", "jp2", "exr", "hdr", "avif")
IMAGE_SUFFIXES = frozenset(f".{ending}" for ending in _ENDINGS)
"""File name endings that count as images when a folder is searched."""

_stderr_lock = threading.Lock()  # a process has one stderr, whatever the number of threads that decode


def read_image(path: str | Path) -> Image:
    """The image as stored: gray, BGR or BGRA; 8 or 16 bit or float. Raises ``ImageError`` with the reason."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ImageError(f"{path}: {in_words(error)}") from error
    if not data:
        raise ImageError(f"{path}: the file is empty")
    try:
        with _stderr_lock, _silent_stderr():
            image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise ImageError(f"{path}: cannot be decoded ({error.err})") from error
    if image is None:
        raise ImageError(f"{path}: not an image, or a damaged one")
    return image


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Keep OpenCV, libpng and libjpeg from writing to stderr: what they have to say is in our own error."""
    previous = cv2.utils.logging.getLogLevel()
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        stderr = os.dup(2)
    except OSError:  # there is no stderr to keep clean
        stderr = None
    try:
        if stderr is not None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 2)
            os.close(nowhere)
        yield
    finally:
        if stderr is not None:
            os.dup2(stderr, 2)
            os.close(stderr)
        cv2.utils.logging.setLogLevel(previous)


def read_gray(path: str | Path) -> FloatArray:
    """``to_gray`` of a file; errors name the file."""
    image = read_image(path)
    try:
        return to_gray(image)
    except ImageError as error:
        raise ImageError(f"{path}: {error}") from error


def to_gray(image: Image) -> FloatArray:
    """Gray float32 in [0, 1] from (H, W), (H, W, 1), BGR (H, W, 3) or BGRA (H, W, 4; alpha is ignored).

    8 bit: divided by 255. 16 bit: divided by the range of the smallest of 10, 12, 14 or 16 bits that holds the
    largest value, since cameras store 12 bit data in 16 bit files. Float: taken as it is if it lies in [0, 1],
    otherwise stretched from its smallest to its largest value; NaN and infinity are refused. Boolean: 0 and 1.
    """
    image = np.asarray(image)
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[:, :, 0]
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (3, 4)):
        raise ImageError(f"an image has the shape (H, W), (H, W, 3) or (H, W, 4), not {image.shape}")
    if image.size == 0:
        raise ImageError(f"the image has no pixels: shape {image.shape}")
    if image.dtype in (np.float16, np.float64):
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused below
            image = image.astype(np.float32)
    if image.dtype not in (np.uint8, np.uint16, np.float32, np.bool_):
        raise ImageError(f"images of type {image.dtype} are not supported (8 or 16 bit unsigned, float, bool)")
    if image.dtype == np.bool_:
        image = image.astype(np.float32)
    if image.dtype == np.float32:
        bad = int(np.size(image) - np.isfinite(image).sum())
        if bad:
            raise ImageError(f"{bad} of {image.size} values are NaN or infinite; fill them in first")
    low, high = _value_range(image[:, :, :3] if image.ndim == 3 else image)
    if image.ndim == 3:
        image = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY if image.shape[2] == 3 else cv2.COLOR_BGRA2GRAY)
    gray = (image - np.float32(low)) * np.float32(1 / (high - low))
    return np.ascontiguousarray(np.clip(gray, 0, 1), np.float32)


def _value_range(image: Image) -> tuple[float, float]:
    """The values that stand for black and white, by the rules of ``to_gray``."""
    if image.dtype == np.uint8:
        return 0, 255
    low, high = float(image.min()), float(image.max())
    if image.dtype == np.uint16:
        return 0, next(2**bits - 1 for bits in (10, 12, 14, 16) if high < 2**bits)
    if low >= 0 and high <= 1:
        return 0, 1
    return low, high if high > low else low + 1


def to_bytes(gray: FloatArray) -> NDArray[np.uint8]:
    """8 bit copy of a gray image in [0, 1], for detectors and pictures."""
    return np.asarray(np.rint(gray * np.float32(255)), np.uint8)


def encode_gray(pixels: NDArray[np.uint8], quality: int) -> bytes:
    """JPEG of an 8 bit gray image; quality 100 stands for PNG, without loss."""
    ending, options = (".png", []) if quality == 100 else (".jpg", [cv2.IMWRITE_JPEG_QUALITY, quality])
    return cv2.imencode(ending, pixels, options)[1].tobytes()


def decode_gray(data: bytes | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """8 bit gray image of an encoded one, which may be in colour; EXIF orientation is not applied."""
    pixels = None
    if len(data):
        with _stderr_lock, _silent_stderr():
            flags = cv2.IMREAD_GRAYSCALE | cv2.IMREAD_IGNORE_ORIENTATION
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if pixels is None:
        raise ImageError("not an image, or a damaged one")
    return np.asarray(pixels, np.uint8)


def shrink(gray: FloatArray, max_size: int | None) -> FloatArray:
    """The image with its longer side reduced to ``max_size`` pixels (area average), or itself if it is no longer."""
    height, width = gray.shape
    if max_size is None or max(height, width) <= max_size:
        return gray
    factor = max_size / max(height, width)
    shape = max(round(width * factor), 1), max(round(height * factor), 1)
    return np.asarray(cv2.resize(gray, shape, interpolation=cv2.INTER_AREA), np.float32)


def find_images(paths: Iterable[str | Path]) -> dict[str, Path]:
    """Image files by name, sorted: from files, folders (searched to any depth) and globs.

    A file inside a folder is named by its path below that folder with ``/``, as hloc and COLMAP name images; a file
    given by itself is named by its file name. Two files of the same name, a path that does not exist, or a folder or
    glob without an image raise ``ImageError``.
    """
    found: dict[str, Path] = {}
    for path in paths:
        for name, file in _images_at(str(path)):
            if name in found and found[name].resolve() != file.resolve():
                raise ImageError(f"two images would both be called '{name}': {found[name]} and {file}")
            found[name] = file
    return dict(sorted(found.items()))


def _images_at(path: str) -> list[tuple[str, Path]]:
    place = Path(path)
    if place.is_dir():
        files = sorted(file for file in place.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file())
        if not files:
            raise ImageError(f"{path}: no images in this folder")
        return [(file.relative_to(place).as_posix(), file) for file in files]
    if place.exists():
        return [(place.name, place)]
    if glob.has_magic(path):
        matches = [Path(match) for match in sorted(glob.glob(path, recursive=True))]  # noqa: PTH207 - absolute globs
        files = [match for match in matches if match.suffix.lower() in IMAGE_SUFFIXES and match.is_file()]
        if not files:
            raise ImageError(f"{path}: no image matches")
        return [(file.name, file) for file in files]
    raise ImageError(f"{path}: no such file or folder")


def unnamed_images(names: Iterable[str]) -> dict[str, str]:
    """Names that HDF5, whose text is UTF-8, cannot hold, with the reason."""
    bad = [name for name in names if name.encode(errors="ignore").decode() != name]
    return {name: f"{name!a}: the file's name cannot be written in UTF-8" for name in bad}
