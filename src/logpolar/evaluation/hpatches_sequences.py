"""HPatches sequences: image pairs with known homographies, keypoints, and correspondences.

A folder holds sequences ``i_*`` (illumination changes) and ``v_*`` (viewpoint changes), each with images 1 to 6, as
``.ppm``, ``.png`` or ``.jpg``, and homographies ``H_1_2`` to ``H_1_6``, with or without ``.txt``: three lines of three
numbers that map pixels of image 1 to pixels of the other, the centre of the top-left pixel being (0, 0).

Modes:
    - ``paper``: as in the published tables. Pair 1-2 only, without the 12 sequences of ``SKIPPED``; sequences in the
      order of their names until a split has more than ``pool_limit`` correspondences. Correspondences may have any
      scale mismatch and spacing.
    - ``full``: pairs 1-2 to 1-6 of all sequences, correspondences as for training: mismatch within 8x, 7 px apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.correspondences import ImagePair, find_correspondences
from logpolar.datasets.image_transforms import ImageTransform
from logpolar.datasets.options import SecondViewRules
from logpolar.errors import LogpolarError, in_words
from logpolar.evaluation.descriptors.keypoint_sources import KeypointSource, sift_source
from logpolar.evaluation.options import HPatchesOptions
from logpolar.evaluation.pairs import with_new_ratio
from logpolar.geometry.cameras import Matrix
from logpolar.geometry.homography import read_homography
from logpolar.images import read_gray, resize_matrix, to_bytes
from logpolar.keypoints import Keypoints
from logpolar.types import FloatArray

SPLITS = {"v": "viewpoint", "i": "illumination"}
"""Split of a sequence by the first letter of its name."""

SKIPPED = frozenset(
    {
        *("v_talent", "v_artisans", "v_there", "v_grace", "v_sunseason", "v_colors", "v_astronautis", "v_underground"),
        *("i_leuven", "i_contruction", "i_crownnight", "i_dc"),
    }
)
"""Sequences that the paper leaves out."""

_SUFFIXES = (".ppm", ".png", ".jpg")


@dataclass(frozen=True, eq=False)
class NamedPair:
    """A pair of a sequence. Pairs of one sequence share the objects of the first image and its keypoints."""

    sequence: str
    split: str  # viewpoint or illumination
    number: int  # of the second image
    pair: ImagePair
    homography: Matrix  # (3, 3), from pixels of the pair's first image to those of its second


@dataclass(frozen=True, eq=False)
class _Sequence:
    name: str
    images: dict[int, Path]
    homographies: dict[int, Matrix]  # by the number of the second image

    @property
    def split(self) -> str:
        return SPLITS[self.name[0]]


class Sequences:
    """Image pairs of a folder of sequences. All files but the images are read and checked at once.

    Keypoints are detected once for each source, image, rotation and zoom.
    """

    def __init__(self, folder: str | Path, options: HPatchesOptions) -> None:
        self._options, paper = options, options.mode == "paper"
        numbers = (2,) if paper else (2, 3, 4, 5, 6)
        self._sequences = [_read_sequence(path, numbers) for path in _find_sequences(Path(folder), paper)]
        self._detected: dict[tuple[int, Path, float, float], Keypoints] = {}

    def pairs(
        self, source: KeypointSource | None = None, rotation: float | None = None, zoom: float | None = None
    ) -> Iterator[NamedPair]:
        """Pairs in the order of names, one at a time. By default all is as in the options, with SIFT keypoints."""
        options = self._options
        source = source or sift_source(options.keypoints, options.contrast)
        rotation, zoom = (options.rotation if rotation is None else rotation), (options.zoom if zoom is None else zoom)
        pool: Counter[str] = Counter()
        for sequence in self._sequences:
            if options.mode == "full" or pool[sequence.split] <= options.pool_limit:
                for named in self._pairs_of(sequence, source, rotation, zoom):
                    pool[named.split] += len(named.pair.correspondences)
                    yield named

    def files(self) -> Iterator[tuple[dict[int, Path], dict[int, Matrix]]]:
        """Images of each sequence, and homographies from the first to the others, by number."""
        for sequence in self._sequences:
            yield sequence.images, sequence.homographies

    def _pairs_of(
        self, sequence: _Sequence, source: KeypointSource, rotation: float, zoom: float
    ) -> Iterator[NamedPair]:
        options = self._options
        first, first_place = _load(sequence.images[1], options.max_size)
        first_detected = self._detect(source, first, sequence.images[1])
        first_keypoints = source.resized(first, first_detected)
        for number, homography in sequence.homographies.items():
            path = sequence.images[number]
            second, second_place = _load(path, options.max_size, zoom, rotation)
            second_detected = self._detect(source, second, path, zoom, rotation)
            second_keypoints = source.resized(second, second_detected)
            between = second_place @ homography @ np.linalg.inv(first_place)
            shape = second.shape[1], second.shape[0]
            random = np.random.default_rng(options.seed)
            found, _ = find_correspondences(first_detected, second_detected, between, shape, options.rules, random)
            if source.fixed_size is not None:
                here, there = found.indices.T
                found = with_new_ratio(replace(found, first=first_keypoints[here], second=second_keypoints[there]))
            pair = ImagePair(first, second, first_keypoints, second_keypoints, found)
            yield NamedPair(sequence.name, sequence.split, number, pair, between)

    def _detect(
        self, source: KeypointSource, view: NDArray[np.uint8], path: Path, zoom: float = 1.0, rotation: float = 0.0
    ) -> Keypoints:
        key = id(source), path, zoom, rotation
        if key not in self._detected:
            self._detected[key] = source.detect(view)
        return self._detected[key]


def _load(path: Path, max_size: int, zoom: float = 1.0, rotation: float = 0.0) -> tuple[NDArray[np.uint8], Matrix]:
    """The image, 8 bit, limited in size, then zoomed and rotated, and the map (3, 3) of its pixels."""
    gray = read_gray(path)
    longer = max(gray.shape)
    # Both factors at once: resampling twice would blur twice.
    factor = zoom * (min(max_size / longer, 1) if max_size else 1)
    gray, enlarged = _enlarge(gray, factor)
    height, width = gray.shape
    transform = ImageTransform.of(width, height, SecondViewRules(max(1 / factor, 1), rotation))
    return to_bytes(transform.image(gray)), transform.matrix @ enlarged


def _enlarge(gray: FloatArray, factor: float) -> tuple[FloatArray, Matrix]:
    """The image enlarged by a factor above 1, otherwise itself, and the map (3, 3) of its pixels."""
    if factor <= 1:
        return gray, np.eye(3)
    height, width = gray.shape
    size = round(width * factor), round(height * factor)
    large = np.clip(cv2.resize(gray, size, interpolation=cv2.INTER_CUBIC), 0, 1)  # cubic interpolation overshoots
    return np.asarray(large, np.float32), resize_matrix((width, height), size)


def _find_sequences(folder: Path, skip: bool) -> list[Path]:
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name[:2] in ("i_", "v_"))
    except OSError as error:
        raise LogpolarError(f"{folder}: {in_words(error)}") from error
    if not names:
        raise LogpolarError(f"{folder}: no HPatches sequences in this folder (folders named i_... or v_...)")
    kept = [name for name in names if not (skip and name in SKIPPED)]
    if not kept:
        raise LogpolarError(f"{folder}: only sequences that the paper leaves out; use --mode full")
    return [folder / name for name in kept]


def _read_sequence(folder: Path, numbers: tuple[int, ...]) -> _Sequence:
    images = {number: _find_image(folder, number) for number in (1, *numbers)}
    return _Sequence(folder.name, images, {number: _read_homography(folder, number) for number in numbers})


def _find_image(folder: Path, number: int) -> Path:
    for suffix in _SUFFIXES:
        if (folder / f"{number}{suffix}").is_file():
            return folder / f"{number}{suffix}"
    raise LogpolarError(f"{folder}: no image {number} ({', '.join(f'{number}{suffix}' for suffix in _SUFFIXES)})")


def _read_homography(folder: Path, number: int) -> Matrix:
    path = next((folder / name for name in (f"H_1_{number}", f"H_1_{number}.txt") if (folder / name).is_file()), None)
    if path is None:
        raise LogpolarError(f"{folder}: no homography H_1_{number}")
    return read_homography(path)
