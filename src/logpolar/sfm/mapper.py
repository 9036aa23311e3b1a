"""COLMAP's incremental mapper on a database whose cameras are not known, and what its models hold."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logpolar.errors import LogpolarError, StorageError
from logpolar.sfm.pycolmap_compat import first_line, import_pycolmap, quiet, set_known


class NoModelError(LogpolarError):
    """Nothing could be reconstructed, which is no fault of the files."""


@dataclass(frozen=True)
class RegisteredImage:
    name: str
    points: int  # of the model, that it sees
    centre: tuple[float, float, float]  # of its camera


def map_database(
    database: Path, photos: Path, place: Path, images: int, min_model_size: int, seed: int, progress: bool = False
) -> dict[int, Any]:
    """Models by number, pycolmap's; their files take the place of earlier ones in ``place`` when all are there.

    ``images``: how many there are in the database. Raises ``NoModelError`` if there is no model.
    """
    from tqdm import tqdm

    pycolmap = import_pycolmap("structure from motion")
    half = place.with_name(f".{place.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir()
    options = pycolmap.IncrementalPipelineOptions()
    options.min_model_size = min_model_size
    set_known(options, random_seed=seed)
    bar = tqdm(total=images, desc="mapping", unit="image", leave=False, disable=None if progress else True)
    try:
        with bar, _colmap_errors(database), quiet(pycolmap):
            models = pycolmap.incremental_mapping(
                str(database), str(photos), str(half), options, next_image_callback=lambda: bar.update() and None
            )
        if not models:
            reason = "no two of them show enough of the same things from different places"
            raise NoModelError(f"no model came of these {images} photos: {reason}")
        shutil.rmtree(place, ignore_errors=True)
        half.rename(place)
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return dict(models)


@contextlib.contextmanager
def _colmap_errors(database: Path) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, IndexError) as error:
        raise StorageError(f"{database}: COLMAP could not map it ({first_line(error)})") from error


def largest_model(models: Mapping[int, Any]) -> tuple[int, Any]:
    """The model with most images, of several that with most points, and its number."""
    return max(models.items(), key=lambda item: (item[1].num_reg_images(), item[1].num_points3D()))


def registered_images(model: Any) -> Iterator[RegisteredImage]:
    """Sorted by name."""
    for image in sorted((model.images[number] for number in model.reg_image_ids()), key=lambda image: str(image.name)):
        x, y, z = (float(value) for value in image.projection_center())
        yield RegisteredImage(image.name, sum(point.has_point3D() for point in image.points2D), (x, y, z))
