"""Output files: checks before any work is done for them, paths from names in files, and atomic writes."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from logpolar.errors import LogpolarError, StorageError, in_words

_LONGEST = 255
"""Bytes of a file name that file systems allow."""

_SLACK = 2**19
"""Bytes that a database takes without content, with its log."""


def check_place(path: Path, error: type[LogpolarError] = LogpolarError) -> None:
    """Raise unless ``path`` is, or could become, a file in an existing folder."""
    if path.is_dir():
        raise error(f"{path}: is a folder, not a file")
    if path.exists() and not path.is_file():  # opening a pipe can wait for ever
        raise error(f"{path}: is a pipe or a device, not a file")
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


def check_space(path: Path, needed: int) -> None:
    """Raise unless the disk has this much space for a file, for libraries that crash on a full one."""
    needed += _SLACK
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        missing = f"{free / 2**20:.1f} MB are free, about {needed / 2**20:.1f} MB are needed"
        raise StorageError(f"{path}: no space left on the disk ({missing})")


def bytes_of(path: Path) -> int:
    """Size of a file, or of the files in a folder."""
    return sum(each.stat().st_size for each in path.iterdir()) if path.is_dir() else path.stat().st_size


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
    long = any(len(os.fsencode(part)) > _LONGEST for part in path.parts)
    if path.anchor or ".." in path.parts or not path.name or "\0" in name or long:
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

    Of two processes one waits for the other. An ``OSError`` names ``path``, not the temporary file.
    """
    half = path.with_name(f".{path.name}.half")
    try:
        with _held(half):
            try:
                yield half
                flush(half)
                half.replace(path)
            finally:
                half.unlink(missing_ok=True)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def _held(path: Path, wait: bool = True) -> Iterator[None]:
    """Create a file and lock it; the lock dies with its holder. Raises ``BlockingIOError`` if it is not to wait."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with contextlib.suppress(ImportError):  # Windows has no flock; it refuses to replace an open file instead
                import fcntl

                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), path.stat()):
                    break
            os.close(handle)  # its holder has removed or renamed it meanwhile
        except BaseException:
            os.close(handle)
            raise
    try:
        if os.name != "posix":
            os.close(handle)
        yield
    finally:
        if os.name == "posix":
            os.close(handle)


class Lock:
    """Keeps other processes from writing the same file or folder; released when the process ends, even if killed.

    With ``wait`` it is their turn after this one, otherwise they are told.
    """

    def __init__(self, path: Path, wait: bool = False) -> None:
        check_place(path, StorageError)
        self._path = path.with_name(path.name + ".lock")
        self._held = contextlib.ExitStack()
        try:
            self._held.enter_context(_held(self._path, wait))
        except BlockingIOError as error:
            raise StorageError(f"{path}: another process is writing this file") from error
        except OSError as error:
            raise StorageError(f"{path}: cannot be written ({in_words(error)})") from error

    def release(self) -> None:
        self._path.unlink(missing_ok=True)
        self._held.close()

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        self.release()


def flush(path: Path) -> None:
    """Flush a file, or a folder's list of files, to the disk."""
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)  # Windows flushes only what it may write
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
