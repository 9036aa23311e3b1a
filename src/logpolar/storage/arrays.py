"""Arrays of HDF5 files that may be damaged or come from strangers, checked against a declaration before use.

HDF5 can declare arrays far larger than the file, keep them in other files, and link to anything on the disk; h5py
reports damage by half a dozen types of errors. Here all of it is a ``StorageError`` in one line that names the file and
the key.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from logpolar.errors import LogpolarError, StorageError
from logpolar.storage.inputs import check_regular

MAX_BYTES = 2**30
"""Largest array that is read: the descriptors of two million keypoints."""

_TEXT_BYTES = 2**10
"""What a text, whose length is not declared, counts as."""

_DAMAGE = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    OSError,
    RuntimeError,
    LogpolarError,
)
"""Raised by h5py, numpy, json and decoders for missing, unreadable or ill-typed content."""


@dataclass(frozen=True)
class Array:
    """Declares an array: its shape, its values, and whether it may be missing.

    A letter in the shape stands for a length, the same in all arrays of a group; D, a dimension, is not zero. ``kinds``
    are numpy's kinds of types, or "T" for text. Without ``bounds`` any value is valid, else NaN is not.
    """

    shape: tuple[int | str, ...]
    kinds: str = "iuf"
    bounds: tuple[float, float] | None = (-1e9, 1e9)
    optional: bool = False


@contextlib.contextmanager
def damage(path: Path, words: str, what: str) -> Iterator[None]:
    """Turn whatever h5py and numpy raise in this block into one line; ``words`` name such a file."""
    try:
        yield
    except StorageError:
        raise
    except _DAMAGE as error:
        text = " ".join(f"{what}: {error}".split())
        text = text if len(text) <= 300 else f"{text[:300]}..."
        raise StorageError(f"{path}: this {words} is damaged ({text})") from error


@contextlib.contextmanager
def opened(path: Path, words: str = "HDF5 file") -> Iterator[h5py.File]:
    """An HDF5 file, open for reading during the block, in which damage is a ``StorageError``."""
    file = open_file(path)
    try:
        with damage(path, words, "its structure"):
            yield file
    finally:
        close(file)


def open_file(path: Path) -> h5py.File:
    """Open a file for reading; ``close`` it."""
    if not path.exists():
        raise StorageError(f"{path}: no such file")
    check_regular(path)
    try:
        return h5py.File(path, "r")
    except _DAMAGE as error:
        raise StorageError(f"{path}: not an HDF5 file, or a damaged one; delete it or choose another") from error


def close(file: h5py.File) -> None:
    """Close a file that was open for reading; closing a damaged one can fail, and nothing is lost by that."""
    with contextlib.suppress(RuntimeError, OSError, ValueError):
        file.close()


def has(group: h5py.Group, name: str) -> bool:
    """Whether a group has a member of this name, without following links."""
    return bool(group.id.links.exists(name.encode(errors="surrogateescape")))


def find(group: h5py.Group, key: str) -> Any:
    """What is at a path; None if nothing is. Links, which may lead out of the file or in circles, are errors."""
    for name in key.split("/"):
        if name in ("", "."):
            continue
        if not isinstance(group, h5py.Group) or not has(group, name):
            return None
        if group.id.links.get_info(name.encode(errors="surrogateescape")).type != h5py.h5l.TYPE_HARD:
            raise ValueError(f"'{name}' is a link")
        group = group[name]
    return group


def check(item: Any, declared: Array, lengths: dict[str, int]) -> None:
    """Raise ``ValueError`` unless an open object is a dataset as declared, with its content in this file.

    ``lengths`` are the known values of letters; new ones are added.
    """
    if not isinstance(item, h5py.Dataset):
        raise ValueError("is missing" if item is None else "is not an array")
    shape = item.shape
    if ("T" if _is_text(item) else item.dtype.kind) not in declared.kinds:
        raise ValueError(f"has values of type {item.dtype}")
    if shape is None or len(shape) != len(declared.shape):
        raise ValueError(f"has shape {shape}, not {_shown(declared.shape)}")
    for length, expected in zip(shape, declared.shape, strict=True):
        known = lengths.setdefault(expected, length) if isinstance(expected, str) else expected
        if length != known or (expected == "D" and not length):
            values = ", ".join(f"{letter} = {value}" for letter, value in lengths.items() if letter in declared.shape)
            raise ValueError(f"has shape {shape}, not {_shown(declared.shape)}" + f" with {values}" * bool(values))
    if item.external or item.is_virtual:
        raise ValueError("is kept in other files")
    if math.prod(shape) and not item.id.get_storage_size():
        raise ValueError("has a size, but no content")


def read(item: h5py.Dataset, declared: Array, rows: slice | None = None) -> NDArray[Any]:
    """The values of a checked dataset, or some rows; raises ``ValueError`` if they are too many or out of bounds."""
    text, shape = _is_text(item), item.shape if rows is None else (len(range(len(item))[rows]), *item.shape[1:])
    size = max(math.prod(shape), math.prod(item.chunks or ())) * (_TEXT_BYTES if text else item.dtype.itemsize)
    if size > MAX_BYTES:
        raise ValueError(f"would take {size / 2**30:.3g} GB, more than {MAX_BYTES / 2**30:.3g}")
    values = np.asarray((item.asstr() if text else item)[() if rows is None else rows])
    if declared.bounds and values.size:
        least, most = declared.bounds
        if not (float(values.min()) >= least and float(values.max()) <= most):
            raise ValueError(f"has values that are not between {least:g} and {most:g}")
    return values


def read_group(
    file: h5py.File, path: Path, words: str, name: str, schema: Mapping[str, Array], lengths: dict[str, int]
) -> dict[str, NDArray[Any]]:
    """The arrays of a group by key, less the optional ones that are missing; ``lengths`` as in ``check``."""
    found = {}
    for key, declared in schema.items():
        with damage(path, words, f"{name}/{key}"):
            item = find(file, f"{name}/{key}")
            if item is not None or not declared.optional:
                check(item, declared, lengths)
                found[key] = read(item, declared)
    return found


def read_numbers(file: h5py.File, path: Path, words: str, key: str) -> NDArray[Any]:
    """An array of numbers of any shape."""
    with damage(path, words, key):
        item = find(file, key)
        declared = Array(getattr(item, "shape", None) or (), bounds=None)
        check(item, declared, {})
        return read(item, declared)


def _is_text(item: h5py.Dataset) -> bool:
    return h5py.check_string_dtype(item.dtype) is not None


def _shown(shape: tuple[int | str, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
