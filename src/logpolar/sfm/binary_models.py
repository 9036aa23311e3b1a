"""Check that the binary files of a sparse model are complete.

pycolmap reads past the end of a truncated file and fills the memory with garbage points.
"""

from __future__ import annotations

import struct
from pathlib import Path

from logpolar.errors import StorageError, in_words
from logpolar.storage.inputs import check_regular

CAMERA_PARAMETERS = (3, 4, 4, 5, 8, 8, 12, 5, 4, 5, 12)
"""Number of parameters by id of the camera model."""


class _UnknownError(Exception):
    """A camera model newer than this code: the length of its entry is unknown."""


def check_complete(place: Path) -> None:
    """Raise if a file of the model has fewer entries than it announces."""
    tables = {
        **{"cameras.bin": _end_of_camera, "images.bin": _end_of_image, "points3D.bin": _end_of_point},
        **{"rigs.bin": _end_of_rig, "frames.bin": _end_of_frame},
    }
    for name, end_of in tables.items():
        path = place / name
        if not path.exists():
            continue
        check_regular(path)
        try:
            data = path.read_bytes()
            (count,), end = struct.unpack_from("<Q", data), 8
            for _ in range(count):
                end = end_of(data, end)
                if end > len(data):
                    raise ValueError("the entry extends past the end of the file")
        except OSError as error:
            raise StorageError(f"{path}: {in_words(error)}") from error
        except (struct.error, ValueError, IndexError) as error:
            raise StorageError(f"{path}: truncated or damaged, not a complete COLMAP model") from error
        except _UnknownError:
            continue


def _end_of_camera(data: bytes, start: int) -> int:
    """Id and model, width and height, parameters."""
    (model,) = struct.unpack_from("<i", data, start + 4)
    if not 0 <= model < len(CAMERA_PARAMETERS):
        raise _UnknownError
    return start + 24 + 8 * CAMERA_PARAMETERS[model]


def _end_of_image(data: bytes, start: int) -> int:
    """Id, quaternion, translation and camera; the name; a number of points (x, y, point)."""
    points = data.index(b"\0", start + 64) + 1
    (count,) = struct.unpack_from("<Q", data, points)
    return int(points + 8 + 24 * count)


def _end_of_point(data: bytes, start: int) -> int:
    """Id, position, colour and error; a number of track elements (image, point)."""
    (count,) = struct.unpack_from("<Q", data, start + 43)
    return int(start + 51 + 8 * count)


def _end_of_rig(data: bytes, start: int) -> int:
    """Id and number of sensors; type and id of the first one, then of each other, which may have a pose."""
    (count,) = struct.unpack_from("<I", data, start + 4)
    end = int(start + 8 + 8 * min(count, 1))
    for _ in range(count - 1):
        end += 9 + 56 * (data[end + 8] != 0)
    return end


def _end_of_frame(data: bytes, start: int) -> int:
    """Id, rig, quaternion and translation; a number of sensors (type, id) with their data."""
    (count,) = struct.unpack_from("<I", data, start + 64)
    return int(start + 68 + 16 * count)
