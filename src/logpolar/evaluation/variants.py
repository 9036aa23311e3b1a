"""Images to calibrate variants of models with, and the scores of a variant on scenes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from logpolar.datasets.files import CorrespondenceFile, file_names
from logpolar.evaluation.pairs import Score, mean_score, score_file
from logpolar.images import find_images, read_downscaled, to_gray
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import SiftDetector
from logpolar.models.describers import open_describer
from logpolar.models.quantisation import add_figures
from logpolar.settings import FILE_ENDINGS
from logpolar.types import FloatArray

_MAX_IMAGES = 128
_MAX_WHOLE = 32
"""Images that keypoints are drawn from, and those that a detector sees as a whole."""


def calibration_images(
    sources: Sequence[str], max_size: int | None, random: np.random.Generator
) -> Iterator[tuple[FloatArray, Keypoints]]:
    """Gray images and keypoints from photos (files, folders, globs) and the train split of correspondence files.

    128 images at most, drawn at random.
    """
    photos = [each for each in sources if Path(each).suffix.lower() not in FILE_ENDINGS]
    per_file = max(_MAX_IMAGES // len(sources), 1)
    for path in (Path(each) for each in sources if each not in photos):
        with CorrespondenceFile(path) as file:
            used = [number for number, image in enumerate(file.images) if image.split == "train"]
            for number in random.permutation(used)[:per_file].tolist():
                yield to_gray(file.read_image(number)), file.read_keypoints(number)
    if photos:
        for gray in calibration_photos(photos, max_size, random, _MAX_IMAGES):
            yield gray, SiftDetector(None)(gray)


def calibration_photos(
    sources: Sequence[str], max_size: int | None, random: np.random.Generator, most: int = _MAX_WHOLE
) -> Iterator[FloatArray]:
    """Gray photos (files, folders, globs), drawn at random."""
    paths = list(find_images(sources).values())
    for number in random.permutation(len(paths))[:most].tolist():
        yield read_downscaled(paths[number], max_size)[0]


def measure_variant(path: Path, files: Sequence[Path], split: str | None, most: int, title: str) -> dict[str, Score]:
    """Scores of a variant on correspondence files, and their mean; added to the card in its file."""
    describer = open_describer(path)
    scores = {}
    for file_path, name in zip(files, file_names(files), strict=True):
        with CorrespondenceFile(file_path) as file:
            scores[name] = score_file(file, describer, split, most)
    scores["mean"] = mean_score(list(scores.values()))
    add_figures(path, {title: {name: score.to_dict() for name, score in scores.items()}})
    return scores
