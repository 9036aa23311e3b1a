"""Output files: checks before any work is done for them, and atomic writes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from logpolar.errors import LogpolarError, in_words


def check_place(path: Path, error: type[LogpolarError] = LogpolarError) -> None:
    """Raise unless ``path`` is, or could become, a file in an existing folder."""
    if path.is_dir():
        raise error(f"{path}: is a folder, not a file")
    if not path.parent.is_dir():
        state = "is not a folder" if path.parent.exists() else "does not exist"
        raise error(f"{path}: the folder {path.parent} {state}")


def check_output(path: Path, *inputs: Path) -> None:
    """Raise unless a file can be written to ``path`` without overwriting an input."""
    if any(path.exists() and each.exists() and path.samefile(each) for each in inputs):
        raise LogpolarError(f"{path}: would overwrite an input")
    check_place(path)
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise LogpolarError(f"{path}: cannot be written ({in_words(error)})") from error
    if not existed:
        path.unlink()


def check_picture(path: Path, *inputs: Path) -> None:
    """``check_output`` for a picture, whose file name suffix selects its format."""
    if path.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise LogpolarError(f"{path}: pictures are written as .png, .jpg or .webp")
    check_output(path, *inputs)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically: at any moment ``path`` has all of the old content or all of the new."""
    with replacing(path) as half:
        half.write_bytes(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write a file to, which replaces ``path`` atomically on success and is removed on failure.

    An ``OSError`` names ``path``, not the temporary file.
    """
    half = path.with_name(f".{path.name}.half")
    try:
        yield half
        flush(half)
        half.replace(path)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from error
    finally:
        half.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Flush a file, or a folder's list of files, to the disk."""
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)  # Windows flushes only what it may write
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
