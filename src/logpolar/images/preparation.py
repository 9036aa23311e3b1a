"""Photos that COLMAP can read: others are converted, and videos become frames, once, into a folder of their own.

Photos that COLMAP reads itself appear in that folder as links. A file of another type is not a photo; it is counted.
The folder has a record, without which it is not ours: then nothing in it is replaced or removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Collection, Generator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from logpolar.errors import ImageError, LogpolarError, StorageError
from logpolar.images.exif import exif_block
from logpolar.images.folders import IMAGE_SUFFIXES, find_images
from logpolar.images.reading import check_size, read_image, silent_stderr, to_bytes, to_gray
from logpolar.storage.atomic_io import write_whole
from logpolar.storage.documents import write_json
from logpolar.storage.inputs import check_regular, parse_json, read_bytes
from logpolar.types import Image

VIDEO_SUFFIXES = frozenset({".mp4", ".mov", ".avi", ".mkv", ".m4v", ".webm", ".mts", ".mpg", ".mpeg"})
_CONVERTED = frozenset({".webp", ".jp2", ".avif", ".heic", ".heif", ".exr"})
"""Types that COLMAP does not read."""

_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip", b"pnot")
"""With one of them begin MP4 and QuickTime."""

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


def is_video(source: str | Path) -> bool:
    """Whether a file's name says that it is a video."""
    return Path(source).is_file() and Path(source).suffix.lower() in VIDEO_SUFFIXES


def prepare_photos(source: str | Path, output: Path, fps: float = 2.0) -> Prepared:
    """Photos of a folder or frames of a video; ``output`` is made only if something must be converted."""
    source = Path(source)
    if is_video(source):
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
    here, there = source.resolve(), output.resolve()
    if here.is_relative_to(there) or there.is_relative_to(here):
        raise StorageError(f"{output}: converted photos would lie among those of {source}; choose another output")
    claim_folder(output)
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
    _remove_others(output, wanted)
    return prepared


def claim_folder(folder: Path) -> dict[str, Any]:
    """Mark a new folder as ours, or raise for someone else's; what our record says of the frames in it."""
    record = folder / _RECORD
    if record.is_file():
        with contextlib.suppress(LogpolarError, ValueError):
            before = parse_json(read_bytes(record))
            if isinstance(before, dict) and "made_of" in before:
                write_json(record, {"made_of": None})  # until it is complete
                return before
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StorageError(f"{folder}: was not made by this command, which would replace photos in it; move it away")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(record, {"made_of": None})
    return {}


def _remove_others(folder: Path, wanted: Collection[Path]) -> None:
    """Photos and frames of another time."""
    for place in [each for each in folder.rglob("*") if each.is_file() or each.is_symlink()]:
        if place not in wanted and place.name != _RECORD:
            place.unlink()


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
    frames = _frames(video, fps)
    first = next(frames, None)
    if first is None:
        raise ImageError(f"{video}: no frames: not a video, or one in a format that OpenCV cannot decode")
    status = video.stat()
    made_of = {"video": video.name, "bytes": status.st_size, "changed": status.st_mtime_ns, "fps": fps}
    before = claim_folder(output)
    if before.get("made_of") == made_of and isinstance(count := before.get("frames"), int):
        frames.close()
    else:
        places: set[Path] = set()
        for frame in chain([first], frames):
            place = output / f"frame_{len(places):06}.jpg"
            write_whole(place, cv2.imencode(".jpg", frame, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])[1].tobytes())
            places.add(place)
        _remove_others(output, places)
        count = len(places)
    write_json(output / _RECORD, {"made_of": made_of, "frames": count})
    return count


def _frames(video: Path, fps: float) -> Generator[Image]:
    """The sharpest frame of each window."""
    _check_container(video)
    with silent_stderr():
        capture = cv2.VideoCapture(str(video))
        try:
            check_size(int(capture.get(cv2.CAP_PROP_FRAME_WIDTH)), int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT)))
        except ImageError as error:
            raise ImageError(f"{video}: {error}") from error
        rate = capture.get(cv2.CAP_PROP_FPS)
        window = max(round((rate if 0 < rate < 1000 else 25.0) / fps), 1)
    best: tuple[float, Image | None] = (-1.0, None)
    number, there = 0, True
    try:
        while there:
            with silent_stderr():
                there, frame = capture.read()
            if there:
                number += 1
                sharpness = float(cv2.Laplacian(cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY), cv2.CV_32F).var())
                best = max(best, (sharpness, frame), key=lambda item: item[0])
            if best[1] is not None and (number % window == 0 or not there):
                yield best[1]
                best = (-1.0, None)
    finally:
        capture.release()


def _check_container(video: Path) -> None:
    """Raise unless a file is a video itself: playlists, which the decoder follows, name other files."""
    check_regular(video, ImageError)
    with video.open("rb") as file:
        start = file.read(12)
    kinds = start[4:8] in _BOXES, start.startswith((b"RIFF", b"\x1a\x45\xdf\xa3", b"\0\0\1", b"G")), start[4:5] == b"G"
    if not any(kinds):
        raise ImageError(f"{video}: no frames: not a video, or one in a format that OpenCV cannot decode")
