"""HDF5 files open for writing, for which a full disk is one error and not the end of the process.

The HDF5 library crashes if a write fails, while it writes or later, when it closes what it could not write. It is shown
a file that never fails: after an error of the disk, content goes to the memory, and the error is raised at the end.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py


@contextlib.contextmanager
def writing(path: Path, mode: str = "w") -> Iterator[h5py.File]:
    """A file, open for writing ("w": empty, "a": as it is) during the block; raises ``OSError`` if it is not whole.

    Readers of HDF5 lock their files, and so does this: a file that someone has open raises at once.
    """
    disk = _Disk(path, mode)
    try:
        with h5py.File(disk, mode) as file:
            yield file
    except BaseException:
        if disk.error is not None:
            raise disk.error from None  # whatever HDF5 made of it
        raise
    finally:
        disk.close()
    if disk.error is not None:
        raise disk.error


class _Disk:
    """What h5py needs of a file object; ``error`` is the first one of the disk."""

    def __init__(self, path: Path, mode: str) -> None:
        self.error: OSError | None = None
        self._late: list[tuple[int, bytes]] = []  # writes since the error
        self._place = 0
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with contextlib.suppress(ImportError):  # Windows has no flock
                import fcntl

                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._handle)
            raise
        self._end = os.fstat(self._handle).st_size
        if mode == "w":
            self.truncate(0)

    def close(self) -> None:
        os.close(self._handle)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._end}[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, count: int) -> bytes:
        """By the presence of this method h5py knows a file object; it calls ``readinto``."""
        content = bytearray(count)
        self.readinto(content)
        return bytes(content)

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        target[:] = self._read(len(target)).ljust(len(target), b"\0")
        for start, content in self._late:
            first, last = max(start, self._place), min(start + len(content), self._place + len(target))
            if first < last:
                target[first - self._place : last - self._place] = content[first - start : last - start]
        self._place += len(target)
        return len(target)

    def _read(self, count: int) -> bytes:
        os.lseek(self._handle, self._place, os.SEEK_SET)
        parts = []
        while count and (part := os.read(self._handle, count)):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def write(self, buffer: Any) -> int:
        content = memoryview(buffer).cast("B")
        if self.error is None:
            try:
                os.lseek(self._handle, self._place, os.SEEK_SET)
                rest = content
                while rest:
                    rest = rest[os.write(self._handle, rest) :]
            except OSError as error:
                self.error = error
        if self.error is not None:
            self._late.append((self._place, bytes(content)))
        self._place += len(content)
        self._end = max(self._end, self._place)
        return len(content)

    def truncate(self, size: int) -> int:
        try:
            os.ftruncate(self._handle, size)
        except OSError as error:
            self.error = self.error or error
        self._end = size
        return size

    def flush(self) -> None:
        """Nothing is kept back."""
