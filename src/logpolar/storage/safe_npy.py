"""Pickled objects in ``.npy`` files, read without executing code.

Some benchmarks ship dictionaries pickled by ``numpy.save``. Ordinary unpickling would run any code that their author,
or someone who replaced the file, put there.
"""

from __future__ import annotations

import math
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.lib import format as npy

from logpolar.errors import LogpolarError, in_words
from logpolar.storage.inputs import check_regular


def read_object(path: str | Path) -> Any:
    """A plain value stored by ``numpy.save(path, value)``.

    Allowed are dictionaries, lists, tuples, sets, text, bytes, numbers, and numpy arrays and scalars of these; anything
    else is refused.
    """
    check_regular(Path(path), LogpolarError)
    try:
        with Path(path).open("rb") as file:
            version = npy.read_magic(file)
            read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = read_header(file)
            if shape != () or not dtype.hasobject:
                raise LogpolarError(f"{path}: not one pickled value, but an array of shape {shape}, type {dtype}")
            # Python 2 and its numpy stored text as Latin 1.
            stored = _PlainUnpickler(file, encoding="latin1").load()
    except OSError as error:
        raise LogpolarError(f"{path}: {in_words(error)}") from error
    except _RefusedError as error:
        raise LogpolarError(f"{path}: refused: not plain data ({error})") from error
    except LogpolarError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise LogpolarError(f"{path}: not a numpy array, or a damaged one") from error
    return stored.item() if isinstance(stored, np.ndarray) and stored.shape == () else stored


class _RefusedError(Exception):
    """A pickle needs more than plain data."""


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """``codecs.encode``, by which old protocols store bytes, for this encoding only."""
    if encoding != "latin1":
        raise _RefusedError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin1")


_RECONSTRUCT: Any
_RECONSTRUCT, _SCALAR = np.zeros(0).__reduce__()[0], np.float64(0).__reduce__()[0]
_NDARRAY = "numpy.ndarray"
"""In the place of the type, which nobody is to call."""


def _empty_array(kind: str, shape: tuple[int, ...], code: bytes) -> Any:
    """An array before its state is set: empty, as numpy stores it."""
    if kind != _NDARRAY or shape != (0,):
        raise _RefusedError("it asks for memory")
    return _RECONSTRUCT(np.ndarray, shape, code)


def _check_keys(keys: Iterable[Any]) -> None:
    """Hashing a tuple of tuples of the same tuples takes for ever."""
    if not all(isinstance(key, _KEYS) for key in keys):
        raise _RefusedError("keys other than text and numbers")


def _plain_set(kind: Callable[[list[Any]], Any], items: Iterable[Any]) -> Any:
    items = list(items)
    _check_keys(items)
    return kind(items)


_KEYS = (str, bytes, int, float, complex, type(None), np.generic)
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): np.dtype,
    # numpy 2 renamed its inner modules; either version reads files of both.
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _empty_array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _SCALAR for core in ("core", "_core")},
    ("_codecs", "encode"): _latin1,
    ("collections", "OrderedDict"): OrderedDict,
    **{
        (module, kind.__name__): partial(_plain_set, kind)
        for module in ("builtins", "__builtin__")
        for kind in (set, frozenset)
    },
}


_Unpickler: Any = pickle._Unpickler
"""The one in Python: that in C takes as much memory as the largest index of a stored object asks for."""


class _PlainUnpickler(_Unpickler):  # type: ignore[misc]
    dispatch: ClassVar[dict[int, Any]] = dict(_Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            asked = f"{module}.{name}".encode("unicode_escape").decode()  # anything, line breaks for example
            raise _RefusedError(f"it asks for {asked}")
        return _ALLOWED[module, name]

    def load_build(self) -> None:
        """Set an object's state; numpy allocates objects by the shape, before it sees how many there are."""
        state, target = self.stack[-1], self.stack[-2]
        if isinstance(target, np.ndarray) and isinstance(state[-1], list) and len(state[-1]) != math.prod(state[1]):
            raise _RefusedError("it asks for memory")
        super().load_build()

    def load_keyed(self, code: int, keys: slice) -> None:
        _check_keys(self.stack[keys])
        _Unpickler.dispatch[code](self)

    dispatch[pickle.BUILD[0]] = load_build
    for _code, _keys in (
        (pickle.SETITEM[0], slice(-2, -1)),
        (pickle.SETITEMS[0], slice(0, None, 2)),
        (pickle.DICT[0], slice(0, None, 2)),
        (pickle.ADDITEMS[0], slice(0, None)),
        (pickle.FROZENSET[0], slice(0, None)),
    ):
        dispatch[_code] = partial(load_keyed, code=_code, keys=_keys)
    for unused in (pickle.BYTEARRAY8, pickle.NEXT_BUFFER, pickle.PERSID, pickle.BINPERSID):
        del dispatch[unused[0]]
