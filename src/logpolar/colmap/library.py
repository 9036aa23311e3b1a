"""pycolmap, loaded when it is needed."""

from __future__ import annotations

from typing import Any

from logpolar.errors import LogpolarError, MissingExtraError


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
