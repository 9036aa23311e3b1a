"""Reading, decoding and encoding images, and converting any image to gray float32 in [0, 1].

EXIF orientation is ignored: pixels are taken as stored, so that keypoints agree with COLMAP and hloc.

Images above a limit (``max_pixels``) are refused before they are decoded. Large ones are decoded as gray, JPEGs at
reduced size, and downscaled in strips.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.errors import ImageError
from logpolar.images.headers import image_size, promises_too_much
from logpolar.images.heif import decode_heif, is_heif
from logpolar.images.remote import FetchedImage, RemoteImage
from logpolar.images.resizing import downscale, fitted_size
from logpolar.settings import DEFAULT_MEGAPIXELS, MEGAPIXELS_VARIABLE
from logpolar.storage.inputs import MAX_BYTES, read_bytes
from logpolar.types import Color, FloatArray, Image

_GRAY_CODES = {
    ("bgr", 3): cv2.COLOR_BGR2GRAY,
    ("bgr", 4): cv2.COLOR_BGRA2GRAY,
    ("rgb", 3): cv2.COLOR_RGB2GRAY,
    ("rgb", 4): cv2.COLOR_RGBA2GRAY,
}

_PIL_MODES = ("1", "L", "RGB", "RGBA", "I", "I;16", "F")
"""Modes of PIL images whose arrays can be used as they are; others (palette, CMYK, ...) are converted to RGB."""

EncodedImage: TypeAlias = RemoteImage | FetchedImage
"""The bytes of an image file from elsewhere."""

_LARGE = 2**26
"""Pixels above which an image is decoded and downscaled with as little memory as possible."""

_STRIP = 256

_REDUCED = {
    8: cv2.IMREAD_REDUCED_GRAYSCALE_8,
    4: cv2.IMREAD_REDUCED_GRAYSCALE_4,
    2: cv2.IMREAD_REDUCED_GRAYSCALE_2,
}

_stderr_lock = threading.Lock()  # all threads of a process share one stderr


def max_pixels() -> int:
    """Largest number of pixels of an image that is read; set by the environment, which worker processes share."""
    given = os.environ.get(MEGAPIXELS_VARIABLE, "")
    if not given:
        return 1_000_000 * DEFAULT_MEGAPIXELS
    try:
        return int(1e6 * float(given))
    except (ValueError, OverflowError) as error:
        raise ImageError(f"{MEGAPIXELS_VARIABLE} must be a number of megapixels, not '{given}'") from error


def read_image(path: str | Path) -> Image:
    """The image as stored: gray, BGR or BGRA; 8 or 16 bit or float. Raises ``ImageError`` with the reason."""
    try:
        return _decode(_read(path), cv2.IMREAD_UNCHANGED)
    except ImageError as error:
        raise _named(error, path) from error


def _read(path: str | Path | EncodedImage) -> bytes:
    data = read_bytes(path, ImageError, 2 * MAX_BYTES) if isinstance(path, str | Path) else path.read()
    if not data:
        raise ImageError("the file is empty")
    return data


def _named(error: ImageError, path: str | Path | EncodedImage) -> ImageError:
    return ImageError(str(error) if str(path) in str(error) else f"{path}: {error}")


def read_checked(path: str | Path) -> bytes:
    """The content of an image file, which is not larger than the limit; for readers of what else is in it."""
    try:
        data = read_bytes(path, ImageError, 2 * MAX_BYTES)
        _check_pixels(data)
        return data
    except ImageError as error:
        raise _named(error, path) from error


def check_size(width: int, height: int) -> None:
    """Raise ``ImageError`` if an image has more pixels than the limit."""
    if width * height > max_pixels():
        raise ImageError(
            f"has {width} x {height} pixels, more than the limit of {max_pixels() / 1e6:g} megapixels; raise it by "
            "`logpolar --max-megapixels` if the file can be trusted"
        )


def _check_pixels(data: bytes) -> None:
    size = image_size(data)
    if size:
        check_size(*size)
    if promises_too_much(data):
        raise ImageError("a damaged image, or a truncated one: its file is shorter than it declares")


def _decode(data: bytes | NDArray[np.uint8], flags: int) -> Image:
    _check_pixels(bytes(data))
    if is_heif(bytes(data[:32])):
        return decode_heif(bytes(data))
    try:
        with silent_stderr():
            image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise ImageError(f"cannot be decoded ({error.err})") from error
    if image is None:
        raise ImageError("not an image, or a damaged one")
    return image


@contextlib.contextmanager
def silent_stderr() -> Iterator[None]:
    """Keep OpenCV, libpng and libjpeg from writing to stderr: our own error gives the reason."""
    with _stderr_lock:
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
    return read_downscaled(path, None)[0]


def read_downscaled(
    path: str | Path | EncodedImage, max_size: int | None, factor: float = 1.0
) -> tuple[FloatArray, tuple[int, int]]:
    """``to_gray`` of a file, downscaled as by ``downscale``, and the width and height of the image before that.

    ``factor``: below 1, the fraction of its size that is enough, whatever ``max_size``.
    """
    try:
        data = _read(path)
        size = image_size(data)
        if not size or size[0] * size[1] <= _LARGE:
            gray = to_gray(_decode(data, cv2.IMREAD_UNCHANGED))
            return downscale(gray, _limit(gray.shape, max_size, factor)), (gray.shape[1], gray.shape[0])
        max_size = _limit(size, max_size, factor)
        try:
            pixels = _decode(data, _reduction(data, size, max_size))
        except ImageError:  # some decoders, that of float TIFF for example, do not convert to gray
            pixels = _decode(data, cv2.IMREAD_UNCHANGED)
        del data
        if pixels.size > _LARGE and max_size and pixels.dtype in (np.uint8, np.uint16, np.float32):
            return _downscaled_in_strips(pixels, max_size), size
        return downscale(to_gray(pixels), max_size), size
    except ImageError as error:
        raise _named(error, path) from error


def _limit(size: tuple[int, ...], max_size: int | None, factor: float) -> int | None:
    if factor >= 1:
        return max_size
    enough = math.ceil(max(size) * factor)
    return enough if max_size is None else min(enough, max_size)


def _reduction(data: bytes, size: tuple[int, int], max_size: int | None) -> int:
    """How to decode a large image: as gray, and JPEGs by the largest factor that keeps ``max_size`` and every pixel."""
    plain = cv2.IMREAD_GRAYSCALE | cv2.IMREAD_ANYDEPTH | cv2.IMREAD_IGNORE_ORIENTATION
    if max_size and data.startswith(b"\xff\xd8"):
        for factor, flags in _REDUCED.items():
            if size[0] % factor == size[1] % factor == 0 and max(size) // factor >= max_size:
                return flags | cv2.IMREAD_IGNORE_ORIENTATION
    return plain


def _downscaled_in_strips(pixels: Image, max_size: int) -> FloatArray:
    """``downscale`` of ``to_gray``, first the width, strip by strip, then the height: a box filter is separable."""
    if pixels.dtype == np.float32 and not np.isfinite(pixels).all():
        raise ImageError("some values are NaN or infinite; fill them in first")
    bounds = _value_range(pixels[..., :3] if pixels.ndim == 3 else pixels)
    height, width = pixels.shape[:2]
    columns, rows = fitted_size((width, height), max_size)
    narrow = np.empty((height, columns), np.float32)
    for start in range(0, height, _STRIP):
        strip = _normalised(_in_gray(pixels[start : start + _STRIP], "bgr"), *bounds)
        narrow[start : start + _STRIP] = cv2.resize(strip, (columns, len(strip)), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.resize(narrow, (columns, rows), interpolation=cv2.INTER_AREA), np.float32)


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
    return _normalised(_in_gray(image, color), low, high)


def _in_gray(image: Image, color: Color) -> Image:
    return cv2.cvtColor(image, _GRAY_CODES[color, image.shape[2]]) if image.ndim == 3 else image


def _normalised(gray: Image, low: float, high: float) -> FloatArray:
    """Values from black to white as 0 ... 1."""
    values = (gray - np.float32(low)) * np.float32(1 / (high - low))
    return np.ascontiguousarray(np.clip(values, 0, 1), np.float32)


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
    if not len(data):
        raise ImageError("not an image, or a damaged one")
    return np.asarray(_decode(data, cv2.IMREAD_GRAYSCALE | cv2.IMREAD_IGNORE_ORIENTATION), np.uint8)
