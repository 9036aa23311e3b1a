"""Reading, decoding and encoding images, and converting any image to gray float32 in [0, 1].

EXIF orientation is ignored: pixels are taken as stored, so that keypoints agree with COLMAP and hloc.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.errors import ImageError, in_words
from logpolar.types import Color, FloatArray, Image

_GRAY_CODES = {
    ("bgr", 3): cv2.COLOR_BGR2GRAY,
    ("bgr", 4): cv2.COLOR_BGRA2GRAY,
    ("rgb", 3): cv2.COLOR_RGB2GRAY,
    ("rgb", 4): cv2.COLOR_RGBA2GRAY,
}

_PIL_MODES = ("1", "L", "RGB", "RGBA", "I", "I;16", "F")
"""Modes of PIL images whose arrays can be used as they are; others (palette, CMYK, ...) are converted to RGB."""

_stderr_lock = threading.Lock()  # all threads of a process share one stderr


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
        with _stderr_lock, silent_stderr():
            image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise ImageError(f"{path}: cannot be decoded ({error.err})") from error
    if image is None:
        raise ImageError(f"{path}: not an image, or a damaged one")
    return image


@contextlib.contextmanager
def silent_stderr() -> Iterator[None]:
    """Keep OpenCV, libpng and libjpeg from writing to stderr: our own error gives the reason."""
    previous = cv2.utils.logging.getLogLevel()
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        stderr = os.dup(2)
    except OSError:  # there is no stderr
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


def to_gray(image: Any, color: Color = "bgr") -> FloatArray:
    """Gray float32 in [0, 1] of an array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), or of a PIL image.

    ``color`` is the order of an array's colour channels, OpenCV's by default. It cannot be checked: an RGB array read
    as BGR gives slightly different gray values and no error. PIL images are always RGB. Alpha is ignored.

    8 bit: divided by 255. 16 bit: divided by the range of the smallest of 10, 12, 14 or 16 bits that holds the
    largest value, since cameras store 12 bit data in 16 bit files. Float: unchanged if in [0, 1], otherwise
    stretched from minimum to maximum; NaN and infinity are refused. Boolean: 0 and 1.
    """
    if color not in ("bgr", "rgb"):
        raise ValueError(f"color must be 'bgr' or 'rgb', not {color!r}")
    if hasattr(image, "convert") and hasattr(image, "mode"):  # PIL, which need not be installed
        color = "rgb"
        image = image if image.mode in _PIL_MODES else image.convert("RGB")
    image = np.asarray(image)
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[:, :, 0]
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (3, 4)):
        raise ImageError(f"an image has the shape (H, W), (H, W, 3) or (H, W, 4), not {image.shape}")
    if image.size == 0:
        raise ImageError(f"the image has no pixels: shape {image.shape}")
    if image.dtype in (np.float16, np.float64):
        with np.errstate(over="ignore"):  # overflow becomes infinite, which is refused below
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
        image = cv2.cvtColor(image, _GRAY_CODES[color, image.shape[2]])
    gray = (image - np.float32(low)) * np.float32(1 / (high - low))
    return np.ascontiguousarray(np.clip(gray, 0, 1), np.float32)


def _value_range(image: Image) -> tuple[float, float]:
    """The values of black and white, see ``to_gray``."""
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
    """JPEG of an 8 bit gray image; quality 100 means lossless PNG."""
    ending, options = (".png", []) if quality == 100 else (".jpg", [cv2.IMWRITE_JPEG_QUALITY, quality])
    return cv2.imencode(ending, pixels, options)[1].tobytes()


def decode_gray(data: bytes | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """8 bit gray image from encoded data, gray or colour; EXIF orientation is ignored."""
    pixels = None
    if len(data):
        with _stderr_lock, silent_stderr():
            flags = cv2.IMREAD_GRAYSCALE | cv2.IMREAD_IGNORE_ORIENTATION
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if pixels is None:
        raise ImageError("not an image, or a damaged one")
    return np.asarray(pixels, np.uint8)
