"""COLMAP's own SIFT, matcher, verification and mapper, as a baseline for our features.

All settings are COLMAP's defaults except the number of keypoints. COLMAP keeps whole levels of the scale space, from
the coarsest on, until there are ``max_num_features`` keypoints or more, not counting second orientations: it returns a
third more than asked for. Here the keypoints of the largest scale are kept, as COLMAP prefers them, and the limit
includes second orientations.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from logpolar.errors import LogpolarError, StorageError
from logpolar.keypoints import Keypoints
from logpolar.sfm.cameras import CameraMode
from logpolar.sfm.database_files import remove_database
from logpolar.sfm.mapper import DATABASE, MapperOptions, SfmReport, claim_folder, map_database, read_report
from logpolar.sfm.pycolmap_compat import (
    camera_mode,
    colmap_errors,
    import_pycolmap_4,
    open_database,
    quiet,
    verification_options,
)
from logpolar.storage.atomic_io import check_space


@dataclass(frozen=True)
class SiftOptions:
    """How photos become a model with COLMAP's features, all pairs matched."""

    keypoints: int = 2048  # per image, at most
    max_size: int = 1600  # larger images are downscaled to this longer side
    camera_mode: CameraMode = "auto"
    min_model_size: int = 3
    seed: int = 0


def reconstruct_with_sift(
    photos: str | Path,
    output: str | Path,
    options: SiftOptions | None = None,
    progress: bool = False,
) -> SfmReport:
    """Database, models and report in a folder, as ``pipeline.reconstruct`` leaves them, with COLMAP's features.

    A second call with the same photos and options returns the first one's result.
    """
    from logpolar.images import find_images

    pycolmap = import_pycolmap_4("COLMAP's SIFT")
    photos, output, options = Path(photos), Path(output), options or SiftOptions()
    names = sorted(find_images([photos]))
    if len(names) < 2:
        raise LogpolarError(f"{photos}: a reconstruction needs at least two photos")
    content = [names, asdict(options), str(pycolmap.__version__)]
    made_of = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    before = read_report(output)
    if before and before.made_of == made_of:
        return before
    output.mkdir(exist_ok=True)
    claim_folder(output, reset=True)
    database = output / DATABASE
    remove_database(database)
    check_space(database, 400 * options.keypoints * len(names))  # descriptors, keypoints, matches and SQLite's log
    with colmap_errors(f"{database}: COLMAP could not write it"), quiet():
        _extract(pycolmap, database, photos, names, options)
        verification = verification_options(options.seed)
        pycolmap.match_exhaustive(str(database), verification_options=verification, device=pycolmap.Device.cpu)
    mapping = MapperOptions(options.seed, options.min_model_size)
    return map_database(database, photos, output, mapping, made_of, progress=progress)


def _extract(pycolmap: Any, database: Path, photos: Path, names: list[str], options: SiftOptions) -> None:
    extraction = pycolmap.FeatureExtractionOptions()
    extraction.max_image_size, extraction.sift.max_num_features = options.max_size or -1, options.keypoints
    mode, device = camera_mode(options.camera_mode), pycolmap.Device.cpu
    pycolmap.extract_features(str(database), str(photos), names, mode, extraction_options=extraction, device=device)
    with contextlib.closing(open_database(database)) as file:
        if file.num_images() != len(names):
            raise StorageError(f"{photos}: COLMAP can read only {file.num_images()} of {len(names)} photos")
        _keep_coarsest(pycolmap, file, options.keypoints)


def _keep_coarsest(pycolmap: Any, file: Any, most: int) -> None:
    """Keep only the keypoints of the largest scales in each image, with their descriptors."""
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
