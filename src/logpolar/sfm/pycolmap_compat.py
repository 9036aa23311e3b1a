"""pycolmap, loaded when it is needed, and what its versions do differently."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from logpolar.errors import LogpolarError, MissingExtraError
from logpolar.errors import first_line as first_line


def import_pycolmap(what: str) -> Any:
    """The module; ``what`` needs it, as an error will say."""
    # pycolmap brings a zlib that breaks OpenCV's PNG writer, unless OpenCV was loaded before.
    import cv2  # noqa: F401

    try:
        import pycolmap
    except ImportError as error:
        raise MissingExtraError(what, "sfm") from error
    except RuntimeError as error:  # what pycolmap makes of a missing CUDA library
        raise LogpolarError(f"pycolmap is installed, but does not load: {error.__cause__ or error}") from error
    return pycolmap


def import_pycolmap_4(what: str) -> Any:
    """The module, of version 4 or newer, whose own features and matchers are called otherwise than before."""
    pycolmap = import_pycolmap(what)
    if pycolmap.__version__.partition(".")[0] in ("0", "1", "2", "3"):
        raise LogpolarError(f"{what} needs pycolmap 4 or newer, not {pycolmap.__version__}")
    return pycolmap


@contextlib.contextmanager
def quiet(pycolmap: Any) -> Iterator[None]:
    """COLMAP tells of each image that it registers, of each that it cannot, and of what our own errors say."""
    level, pycolmap.logging.minloglevel = pycolmap.logging.minloglevel, pycolmap.logging.Level.FATAL.value
    try:
        yield
    finally:
        pycolmap.logging.minloglevel = level


def open_database(pycolmap: Any, path: Path) -> Any:
    """A new or existing database; an older one is brought to the present layout. To be closed."""
    try:
        return pycolmap.Database.open(str(path))
    except TypeError:  # up to 3.12, where ``open`` is no function of the class
        return pycolmap.Database(str(path))


def verification_options(pycolmap: Any, seed: int) -> Any:
    """How two views are verified: COLMAP's defaults."""
    options = pycolmap.TwoViewGeometryOptions()
    pycolmap.set_random_seed(seed)  # for versions before 3.13, whose options have none
    set_known(options.ransac, random_seed=seed)
    return options


def set_known(options: Any, **values: Any) -> None:
    """Set those options that this version of pycolmap has."""
    for name, value in values.items():
        if hasattr(options, name):
            setattr(options, name, value)
