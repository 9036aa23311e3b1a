"""Photos that COLMAP can read: others are converted, and videos become frames, once, into a folder of their own.

Photos that COLMAP reads itself appear in that folder as links. A file of another type is not a photo; it is counted.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np

from logpolar.errors import ImageError, LogpolarError
from logpolar.images.exif import exif_block
from logpolar.images.folders import IMAGE_SUFFIXES, find_images
from logpolar.images.reading import read_image, silent_stderr, to_bytes, to_gray
from logpolar.storage.atomic_io import write_whole
from logpolar.storage.documents import write_json
from logpolar.storage.inputs import parse_json, read_bytes
from logpolar.types import Image

VIDEO_SUFFIXES = frozenset({".mp4", ".mov", ".avi", ".mkv", ".m4v", ".webm", ".mts", ".mpg", ".mpeg"})
_CONVERTED = frozenset({".webp", ".jp2", ".avif", ".heic", ".heif", ".exr"})
"""Types that COLMAP does not read."""

_QUALITY = 95
_RECORD = "source.json"


@dataclass
class Prepared:
    """Where the photos are, and what was done."""

    folder: Path
    converted: int = 0
    frames: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # name -> reason, of photos that cannot be converted
    unread: Counter[str] = field(default_factory=Counter)  # suffix -> files that are no photos


def prepare_photos(source: str | Path, output: Path, fps: float = 2.0) -> Prepared:
    """Photos of a folder or frames of a video; ``output`` is made only if something must be converted."""
    source = Path(source)
    if source.is_file() and source.suffix.lower() in VIDEO_SUFFIXES:
        return Prepared(output, frames=extract_frames(source, output, fps))
    if not source.is_dir():
        return Prepared(source)  # what reads it says what is wrong
    unread = Counter(
        path.suffix.lower() or "no suffix"
        for path in source.rglob("*")
        if path.is_file() and path.suffix.lower() not in IMAGE_SUFFIXES and not path.name.startswith(".")
    )
    images = find_images([source])
    if not any(path.suffix.lower() in _CONVERTED for path in images.values()):
        return Prepared(source, unread=unread)
    prepared = Prepared(output, unread=unread)
    wanted = set()
    for name, path in images.items():
        converts = path.suffix.lower() in _CONVERTED
        place = output / (f"{name}.jpg" if converts else name)
        wanted.add(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            if not converts:
                _link(path, place)
            elif not place.exists():
                _convert(path, place)
            prepared.converted += converts
        except LogpolarError as error:
            prepared.failed[name] = str(error)
    for place in (each for each in output.rglob("*") if each.is_file() or each.is_symlink()):
        if place not in wanted and place.name != _RECORD:
            place.unlink()  # its photo was removed
    return prepared


def _link(path: Path, place: Path) -> None:
    if place.is_symlink() or place.exists():
        place.unlink()
    try:
        place.symlink_to(os.path.relpath(path.resolve(), place.parent.resolve()))
    except OSError:  # a file system without links
        shutil.copyfile(path, place)


def _convert(path: Path, place: Path) -> None:
    """As JPEG with its EXIF data: lens and position."""
    pixels = _eight_bits(read_image(path))
    exif = exif_block(path)
    options = [cv2.IMWRITE_JPEG_QUALITY, _QUALITY]
    if exif:
        block = np.frombuffer(exif, np.uint8)
        _, data = cv2.imencodeWithMetadata(".jpg", pixels, [cv2.IMAGE_METADATA_EXIF], [block], options)
    else:
        _, data = cv2.imencode(".jpg", pixels, options)
    write_whole(place, data.tobytes())


def _eight_bits(pixels: Image) -> Image:
    if pixels.dtype != np.uint8:
        return to_bytes(to_gray(pixels))
    return np.ascontiguousarray(pixels[..., :3]) if pixels.ndim == 3 else pixels


def extract_frames(video: Path, output: Path, fps: float) -> int:
    """The sharpest frame of each window of 1 / ``fps`` seconds as JPEG files; the number of frames.

    Frames of an earlier call with the same video and rate are kept. Sharpness is the variance of the Laplacian.
    """
    status = video.stat()
    made_of = {"video": video.name, "bytes": status.st_size, "changed": status.st_mtime_ns, "fps": fps}
    try:
        before = parse_json(read_bytes(output / _RECORD))
    except LogpolarError:
        before = {}
    if isinstance(before, dict) and before.get("made_of") == made_of:
        return int(before["frames"])
    with silent_stderr():
        capture = cv2.VideoCapture(str(video))
        rate = capture.get(cv2.CAP_PROP_FPS)
        window = max(round((rate if 0 < rate < 1000 else 25.0) / fps), 1)
        best: tuple[float, Image | None] = (-1.0, None)
        count = number = 0
        output.mkdir(parents=True, exist_ok=True)
        while True:
            there, frame = capture.read()
            if there:
                number += 1
                sharpness = float(cv2.Laplacian(cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY), cv2.CV_32F).var())
                best = max(best, (sharpness, frame), key=lambda item: item[0])
            if best[1] is not None and (number % window == 0 or not there):
                data = cv2.imencode(".jpg", best[1], [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])[1]
                write_whole(output / f"frame_{count:06}.jpg", data.tobytes())
                best, count = (-1.0, None), count + 1
            if not there:
                break
        capture.release()
    if not count:
        shutil.rmtree(output, ignore_errors=True)
        raise ImageError(f"{video}: no frames: not a video, or one in a format that OpenCV cannot decode")
    write_json(output / _RECORD, {"made_of": made_of, "frames": count})
    return count
