"""COLMAP's own way from photos to a model: its SIFT, its matcher, its verification, its mapper; to compare with ours.

All settings are COLMAP's defaults, but for the number of keypoints. COLMAP keeps whole levels of the scale space, from
the coarsest on, until there are ``max_num_features`` keypoints or more, and does not count second orientations: it
ends with a third more than it was asked for. Here those of the largest scale are kept, as COLMAP prefers them, and no
image has more than it is allowed to, second orientations included.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from logpolar.errors import LogpolarError, StorageError
from logpolar.keypoints import Keypoints
from logpolar.sfm.database_files import verified_pairs
from logpolar.sfm.export import CameraMode
from logpolar.sfm.mapper import map_database
from logpolar.sfm.pipeline import (
    DATABASE,
    MODELS,
    REPORT,
    StructureReport,
    read_report,
    report_models,
    write_report,
)
from logpolar.sfm.pycolmap_compat import first_line, import_pycolmap_4, open_database, quiet, verification_options


@dataclass(frozen=True)
class SiftOptions:
    """How photos become a model by COLMAP alone, every photo matched with every other."""

    keypoints: int = 2048  # of an image, at most
    max_size: int = 1600  # larger images are reduced to so many pixels on the longer side
    camera_mode: CameraMode = "auto"
    min_model_size: int = 3
    seed: int = 0


def reconstruct_by_sift(
    photos: str | Path,
    output: str | Path,
    options: SiftOptions | None = None,
    overwrite: bool = False,
    progress: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> StructureReport:
    """Database, models and report in a folder, as ``reconstruct_structure`` leaves them, without any feature of ours.

    A second call with the same photos and options gives what the first one found.
    """
    from logpolar.images import find_images

    pycolmap = import_pycolmap_4("COLMAP's SIFT")
    photos, output, options = Path(photos), Path(output), options or SiftOptions()
    names = sorted(find_images([photos]))
    if len(names) < 2:
        raise LogpolarError(f"{photos}: a model needs two photos or more")
    content = [names, asdict(options), str(pycolmap.__version__)]
    made_of = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    before = read_report(output)
    if not overwrite and before and before.made_of == made_of:
        return before
    output.mkdir(exist_ok=True)
    for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", REPORT):
        (output / name).unlink(missing_ok=True)
    database = output / DATABASE
    with _colmap_errors(database), quiet(pycolmap):
        say(f"COLMAP's features of {len(names)} photos")
        _extract(pycolmap, database, photos, names, options)
        say("COLMAP's matches")
        verification = verification_options(pycolmap, options.seed)
        pycolmap.match_exhaustive(str(database), verification_options=verification, device=pycolmap.Device.cpu)
    pairs, verified = len(names) * (len(names) - 1) // 2, verified_pairs(database)
    say(f"mapping: {verified} of {pairs} pairs passed verification")
    settings = options.min_model_size, options.seed
    models = map_database(database, photos, output / MODELS, len(names), *settings, progress)
    report = report_models(models, len(names), {}, pairs, verified, made_of)
    write_report(output, report)
    return report


@contextlib.contextmanager
def _colmap_errors(database: Path) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, IndexError) as error:
        raise StorageError(f"{database}: COLMAP could not make it ({first_line(error)})") from error


def _extract(pycolmap: Any, database: Path, photos: Path, names: list[str], options: SiftOptions) -> None:
    extraction = pycolmap.FeatureExtractionOptions()
    extraction.max_image_size, extraction.sift.max_num_features = options.max_size or -1, options.keypoints
    mode = getattr(pycolmap.CameraMode, options.camera_mode.upper().replace("-", "_"))
    pycolmap.extract_features(
        str(database), str(photos), names, mode, extraction_options=extraction, device=pycolmap.Device.cpu
    )
    with contextlib.closing(open_database(pycolmap, database)) as file:
        if file.num_images() != len(names):
            raise StorageError(f"{photos}: COLMAP can read {file.num_images()} of {len(names)} photos only")
        _keep_coarsest(pycolmap, file, options.keypoints)


def _keep_coarsest(pycolmap: Any, file: Any, most: int) -> None:
    """Take all keypoints but so many of the largest scales out of each image, with their descriptors."""
    kept = []
    for image in file.read_all_images():
        rows, stored = file.read_keypoints(image.image_id), file.read_descriptors(image.image_id)
        coarsest = np.argsort(-Keypoints.from_colmap(rows).size, kind="stable")[:most]
        chosen = np.sort(coarsest)  # in COLMAP's order
        descriptors = pycolmap.FeatureDescriptors(type=stored.type, data=stored.data[chosen])
        kept.append((image.image_id, rows[chosen], descriptors))
    file.clear_keypoints()
    file.clear_descriptors()
    for number, rows, descriptors in kept:
        file.write_keypoints(number, rows)
        file.write_descriptors(number, descriptors)
