"""Finding photos in files, folders and globs."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from logpolar.errors import ImageError

_ENDINGS = (
    "jpg",
    "jpeg",
    "png",
    "bmp",
    "tif",
    "tiff",
    "webp",
    "ppm",
    "pgm",
    "pbm",
    "pnm",
    "jp2",
    "exr",
    "hdr",
    "avif",
    "heic",
    "heif",
)
IMAGE_SUFFIXES = frozenset(f".{ending}" for ending in _ENDINGS)
"""File name suffixes of images."""


def find_images(paths: Iterable[str | Path]) -> dict[str, Path]:
    """Image files by name, sorted, from files, folders (searched recursively) and globs.

    A file found in a folder is named by its path relative to that folder, with ``/``, as in hloc and COLMAP; any other
    by its file name. Name collisions, paths that do not exist, and folders and globs without images raise
    ``ImageError``.
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


def images_in(folder: Path) -> list[Path]:
    """Image files directly in a folder, sorted."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)


def unnamed_images(names: Iterable[str]) -> dict[str, str]:
    """Names that are not valid UTF-8 and so cannot be stored in HDF5, with the reason."""
    bad = [name for name in names if name.encode(errors="ignore").decode() != name]
    return {name: f"{name!a}: the file's name cannot be written in UTF-8" for name in bad}


def copied_files(images: Mapping[str, Path]) -> Iterator[tuple[str, list[str]]]:
    """Photos whose files are equal, each first one with the others; copies add no view."""
    by_size: dict[int, list[str]] = {}
    for name, path in sorted(images.items()):
        if path.is_file():
            by_size.setdefault(path.stat().st_size, []).append(name)
    for names in by_size.values():
        groups: dict[str, list[str]] = {}
        for name in names if len(names) > 1 else ():
            groups.setdefault(hashlib.sha256(images[name].read_bytes()).hexdigest(), []).append(name)
        yield from ((first, others) for first, *others in groups.values() if others)
