"""Making variants of a model, with what was measured of them on their cards (needs onnx; bfloat16 needs openvino)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.files import CorrespondenceFile, file_names
from logpolar.errors import LogpolarError, ModelError
from logpolar.evaluation.pairs import Score, mean_score, score_file
from logpolar.features.extractor import Extractor
from logpolar.images import downscale, find_images, read_gray, to_gray
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import SiftDetector
from logpolar.models import Model, load_model, save_variant
from logpolar.models.cards import ModelCard, ModelPrecision, Variant
from logpolar.models.describers import open_describer
from logpolar.models.quantisation import to_int8
from logpolar.models.runtimes.base import check_patches
from logpolar.models.runtimes.openvino_cpu import has_bfloat16
from logpolar.sampling import sample_patches
from logpolar.settings import FILE_ENDINGS
from logpolar.types import FloatArray

_PER_IMAGE = 64
"""Keypoints of an image, drawn from all of it, that patches are cut around."""

_MOST_IMAGES = 128
_LEAST_PATCHES = 256


def calibration_patches(model: Model, sources: Sequence[str], max_size: int | None) -> FloatArray:
    """Patches (N, rows, columns) from photos (files, folders, globs) and correspondence files, in a random order.

    64 keypoints of an image, of 128 images at most, drawn the same way each time. Of a correspondence file only
    the images to train on are used.
    """
    random = np.random.default_rng(0)
    photos = [each for each in sources if Path(each).suffix.lower() not in FILE_ENDINGS]
    found: list[FloatArray] = []
    share = max(_MOST_IMAGES // max(len(sources), 1), 1) if len(photos) < len(sources) else _MOST_IMAGES
    for path in (Path(each) for each in sources if each not in photos):
        found += _from_file(model, path, share, random)
    if photos:
        paths = list(find_images(photos).values())
        for number in random.permutation(len(paths))[:_MOST_IMAGES].tolist():
            gray = downscale(read_gray(paths[number]), max_size)
            found.append(_cut(model, gray, SiftDetector(None)(gray), random))
    patches = np.concatenate(found) if found else np.zeros((0, 1, 1), np.float32)
    if len(patches) < _LEAST_PATCHES:
        raise LogpolarError(
            f"{len(patches)} keypoints in {', '.join(sources)} are too few; {_LEAST_PATCHES} are needed"
        )
    return np.asarray(patches[random.permutation(len(patches))], np.float32)


def _from_file(model: Model, path: Path, most: int, random: np.random.Generator) -> list[FloatArray]:
    with CorrespondenceFile(path) as file:
        used = [number for number, image in enumerate(file.images) if image.part == "train"]
        return [
            _cut(model, to_gray(file.read_image(number)), file.read_keypoints(number), random)
            for number in random.permutation(used)[:most].tolist()
        ]


def _cut(model: Model, gray: FloatArray, keypoints: Keypoints, random: np.random.Generator) -> FloatArray:
    chosen = random.permutation(len(keypoints))[:_PER_IMAGE]
    return sample_patches(gray, keypoints[chosen], model.sampling)


def make_variant(path: Path, model: Model, precision: ModelPrecision, patches: FloatArray, source: str) -> Model:
    """Write the variant of a model, calibrated on three quarters of the patches and compared on the rest.

    The file's name is the variant's.
    """
    if model.card.variant:
        raise ModelError(f"model '{model.name}' is a variant itself; name its parent '{model.card.variant.parent}'")
    if precision == "bfloat16" and not has_bfloat16():
        raise ModelError(
            "this processor has no bfloat16, so nothing could be measured; make the variant on one that has"
        )
    seen, unseen = np.split(patches, [3 * len(patches) // 4])
    weights, graph = to_int8(model, seen) if precision == "int8" else (model.weights, model.graph)
    calibration = {"patches": len(seen), "source": source} if precision == "int8" else {}
    card = replace(
        model.card,
        name=path.stem,
        description=f"{model.card.description} In {precision}, made from {model.name}.",
        figures={},
        variant=Variant(precision, model.name, model.digest, calibration),
    )
    bare = Model(card, weights, graph, "")
    describer = open_describer(bare)
    expected, found = open_describer(model).describe_patches(unseen), describer.describe_patches(unseen)
    cosine = (expected * found).sum(axis=1)
    figures = {
        f"cosine with {model.name}": {
            "patches": len(unseen),
            "average": round(float(cosine.mean()), 6),
            "smallest": round(float(cosine.min()), 6),
        }
    }
    card = replace(card, figures=figures)
    check = describer.describe_patches(check_patches(card.network.rows, card.network.columns))
    save_variant(path, weights, graph, card, check)
    return load_model(path)


def measure_variant(path: Path, files: Sequence[Path], part: str | None, most: int, title: str) -> dict[str, Score]:
    """Scores of a variant and of nothing else on correspondence files, added to the card in its file."""
    variant = load_model(path)
    extractor = Extractor(variant, max_size=None)
    scores = {}

    def describe(view: NDArray[np.uint8], keypoints: Keypoints) -> FloatArray:
        return extractor.extract(view, keypoints).descriptors

    for file_path, name in zip(files, file_names(files), strict=True):
        with CorrespondenceFile(file_path) as file:
            scores[name] = score_file(file, describe, part, most)
    scores["mean"] = mean_score(list(scores.values()))
    figures = {name: score.to_dict() for name, score in scores.items()}
    with_figures(path, {title: figures})
    return scores


def with_figures(path: Path, figures: dict[str, Any]) -> None:
    """Add measured figures to the card of a variant's file."""
    model = load_model(path)
    assert model.check is not None
    card: ModelCard = replace(model.card, figures={**model.card.figures, **figures})
    save_variant(path, model.weights, model.graph, card, model.check)
