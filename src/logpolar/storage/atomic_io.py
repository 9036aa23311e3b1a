"""Output files: checks before any work is done for them, paths from names in files, and atomic writes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from logpolar.errors import LogpolarError, StorageError, in_words


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


def check_page(path: Path, *inputs: Path) -> None:
    """``check_output`` for an HTML page, which browsers know by its suffix."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise LogpolarError(f"{path}: pages are written as .html")
    check_output(path, *inputs)


def within(folder: Path, name: str) -> Path:
    """The path of a name that was read from a file; raises unless it stays inside the folder.

    Such names are data of strangers. Every file that is read, written or removed by one gets its path here.
    """
    path = Path(name)
    if path.anchor or ".." in path.parts or not path.name or "\0" in name:
        raise StorageError(f"{name[:200]!r} is not the name of a file inside {folder}")
    return folder / path


def made_within(folder: Path, name: str) -> Path:
    """``within`` for a file to write or remove: links in the folder do not lead outside either."""
    path = within(folder, name)
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise StorageError(f"{path}: a link on the way leads outside {folder}")
    return path


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
