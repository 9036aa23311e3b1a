"""pycolmap, imported on demand, and the differences between its versions."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from logpolar.errors import LogpolarError, MissingExtraError, StorageError, first_line


def import_pycolmap(what: str) -> Any:
    """The module; ``what`` needs it, for the error if it is missing."""
    # pycolmap's zlib breaks OpenCV's PNG writer unless OpenCV is loaded first.
    import cv2  # noqa: F401

    terminate = signal.getsignal(signal.SIGTERM)
    try:
        import pycolmap
    except ImportError as error:
        raise MissingExtraError(what, "sfm") from error
    except RuntimeError as error:  # raised by pycolmap for a missing CUDA library
        raise LogpolarError(f"pycolmap is installed, but does not load: {error.__cause__ or error}") from error
    if terminate is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminate)  # COLMAP's own handler prints a C++ stack trace
    return pycolmap


def import_pycolmap_4(what: str) -> Any:
    """The module, version 4 or newer: earlier ones have another interface to features and matchers."""
    pycolmap = import_pycolmap(what)
    if pycolmap.__version__.partition(".")[0] in ("0", "1", "2", "3"):
        raise LogpolarError(f"{what} needs pycolmap 4 or newer, not {pycolmap.__version__}")
    return pycolmap


_loud = False


@contextlib.contextmanager
def verbose(on: bool = True) -> Iterator[None]:
    """Within this, COLMAP's log is printed, even where ``quiet`` silences it."""
    global _loud
    before, _loud = _loud, on
    try:
        yield
    finally:
        _loud = before


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence COLMAP's log: it reports every image it registers or fails to, and what our own errors say."""
    import pycolmap

    if _loud:
        yield
        return
    level, pycolmap.logging.minloglevel = pycolmap.logging.minloglevel, pycolmap.logging.Level.FATAL.value
    try:
        yield
    finally:
        pycolmap.logging.minloglevel = level


@contextlib.contextmanager
def colmap_errors(what: str) -> Iterator[None]:
    """Turn errors of pycolmap into ours: what failed, and the first line of its reason."""
    try:
        yield
    except (RuntimeError, ValueError, LookupError, TypeError, OverflowError, MemoryError) as error:
        raise StorageError(f"{what} ({first_line(error)})") from error


def open_database(path: Path) -> Any:
    """A new or existing database; older layouts are upgraded. The caller closes it."""
    pycolmap = import_pycolmap("COLMAP databases")
    try:
        return pycolmap.Database.open(str(path))
    except TypeError:  # up to 3.12, where ``open`` is an instance method
        return pycolmap.Database(str(path))


def camera_mode(name: str) -> Any:
    """pycolmap's camera mode of ``auto``, ``single``, ``per-folder`` or ``per-image``."""
    import pycolmap

    return getattr(pycolmap.CameraMode, name.upper().replace("-", "_"))


def verification_options(seed: int) -> Any:
    """COLMAP's defaults for two-view verification."""
    import pycolmap

    options = pycolmap.TwoViewGeometryOptions()
    pycolmap.set_random_seed(seed)  # before 3.13 the options have no seed
    set_known(options.ransac, random_seed=seed)
    return options


def set_known(options: Any, **values: Any) -> None:
    """Set those options that this version of pycolmap has."""
    for name, value in values.items():
        if hasattr(options, name):
            setattr(options, name, value)
