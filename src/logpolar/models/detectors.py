"""The network detector: gray image in, keypoints of one size out.

It is a ``keypoints.detection.Detector`` as ``SiftDetector`` is, but lives here: it runs a model file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from logpolar.errors import ImageError, ModelError, in_one_line
from logpolar.keypoints import Keypoints
from logpolar.keypoints.keypoints import MAX_SIZE
from logpolar.keypoints.orientation import gradient_angles
from logpolar.keypoints.peaks import find_peaks
from logpolar.models.files import DetectorModel, load_detector
from logpolar.models.runtimes.base import check_patches
from logpolar.models.runtimes.onnxruntime_cpu import open_session
from logpolar.settings import DEFAULT_MAX_KEYPOINTS, ORIENTATIONS, Orientation
from logpolar.types import FloatArray

_CONTRAST_FLOOR = 0.02
"""As in ``detector_network``, which needs torch."""

_STEP = 8
"""Sides of tiles are multiples of this: the network works at an eighth of the resolution."""

_CHECK_TOLERANCE = 0.5
"""Of a variant's scores; those of an image are a few units apart."""

MAX_TILE = 1536
"""Longest side of a tile, in pixels, without its overlap: a tile takes about 400 MB."""


@dataclass(frozen=True, eq=False)
class NetworkDetector:
    """Keypoints at the peaks of a network's scores; all have one size, that of the model's card by default.

    ``model``: a shipped detector's name, the path of a model file, or a loaded ``DetectorModel``.
    ``orientation``: ``"upright"``, angle 0, or ``"gradient"``, that of the strongest gradients around, for images that
    may be rotated by any angle.
    """

    model: str | Path | DetectorModel
    max_keypoints: int | None = DEFAULT_MAX_KEYPOINTS  # the strongest; None keeps all
    orientation: Orientation = "upright"
    size: float | None = None  # pixels; None for the card's
    threads: int = 0  # 0 for all cores
    max_tile: int = MAX_TILE
    _network: _Network = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.orientation not in ORIENTATIONS:
            raise ValueError(f"orientation must be {' or '.join(ORIENTATIONS)}, not {self.orientation!r}")
        if self.max_tile < _STEP or self.max_tile % _STEP:
            raise ValueError(f"max_tile must be a multiple of {_STEP}, not {self.max_tile}")
        loaded = self.model if isinstance(self.model, DetectorModel) else load_detector(self.model)
        size = loaded.card.size if self.size is None else self.size
        if not 0 < size <= MAX_SIZE:
            raise ValueError(f"size must lie between 0 and {MAX_SIZE:g} pixels, not {size}")
        object.__setattr__(self, "model", loaded)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "_network", _Network(loaded, self.threads))

    @property
    def settings(self) -> dict[str, Any]:
        """What determines the keypoints; tiles and threads do not."""
        card, digest = self._network.model.card, self._network.model.digest
        found = {"name": "NetworkDetector", "model": card.name, "model_hash": digest, "size": self.size}
        return {**found, "max_keypoints": self.max_keypoints, "orientation": self.orientation}

    def limited(self, max_keypoints: int) -> NetworkDetector:
        """With another limit."""
        return replace(self, max_keypoints=max_keypoints)

    def __call__(self, gray: FloatArray) -> Keypoints:
        if not np.isfinite(gray.sum(dtype=np.float64)):  # without an array of the image's size
            raise ImageError("the image has values that are NaN or infinite; fill them in first")
        found = [self._peaks(gray, rows, columns) for rows in self._sides(gray, 0) for columns in self._sides(gray, 1)]
        xy, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.argsort(-scores, kind="stable")[: self.max_keypoints]
        xy, scores = xy[order], scores[order]
        size = np.full(len(xy), self.size, np.float32)
        upright = self.orientation == "upright"
        angle = np.zeros(len(xy), np.float32) if upright else gradient_angles(gray, xy, size)
        return Keypoints(xy, size, angle, scores)

    def _sides(self, gray: FloatArray, axis: int) -> Iterator[slice]:
        """Equal intervals of a side, multiples of 8 but for the last."""
        length = gray.shape[axis]
        count = -(-length // self.max_tile)
        side = -(-length // (count * _STEP)) * _STEP
        return (slice(start, min(start + side, length)) for start in range(0, length, side))

    def _peaks(self, gray: FloatArray, rows: slice, columns: slice) -> tuple[FloatArray, FloatArray]:
        """Positions and scores of the peaks in a tile, seen with as much around it as they depend on: no seams."""
        card, margin = self._network.model.card, self._network.model.card.network.reach + _STEP
        seen = tuple(
            slice(max(own.start - margin, 0), min(own.stop + margin, length))
            for own, length in zip((rows, columns), gray.shape, strict=True)
        )
        tile = gray[seen]
        padding = (0, -tile.shape[0] % _STEP, 0, -tile.shape[1] % _STEP)  # at the image's edge: its reflection
        padded = np.asarray(cv2.copyMakeBorder(tile, *padding, cv2.BORDER_REFLECT_101), np.float32)
        scores = self._network(normalise_locally(padded, card.network.window))[: tile.shape[0], : tile.shape[1]]
        start = seen[0].start, seen[1].start
        within = [slice(own.start - s, own.stop - s) for own, s in zip((rows, columns), start, strict=True)]
        xy, values = find_peaks(scores, self.max_keypoints, card.min_score, (within[0], within[1]))
        return xy + np.array(start[::-1], np.float32), values

    def network_scores(self, normalised: FloatArray) -> FloatArray:
        """The network's scores of an image that is already normalised, with sides that are multiples of 8."""
        return self._network(normalised)


def normalise_locally(gray: FloatArray, window: int) -> FloatArray:
    """Zero mean and unit contrast over squares of 2 window + 1 pixels; see ``detector_network.normalise_locally``."""
    if window == 0:
        return np.asarray(2 * gray - 1, np.float32)
    centred = gray - np.float32(0.5)
    square = (2 * window + 1, 2 * window + 1)
    mean = cv2.boxFilter(centred, cv2.CV_32F, square, borderType=cv2.BORDER_REFLECT_101)
    power = cv2.sqrBoxFilter(centred, cv2.CV_32F, square, borderType=cv2.BORDER_REFLECT_101)
    deviation = np.sqrt(np.maximum(power - mean * mean, 0))
    return np.asarray((centred - mean) / (deviation + np.float32(_CONTRAST_FLOOR)), np.float32)


class _Network:
    """A detector's network in onnxruntime."""

    def __init__(self, model: DetectorModel, threads: int) -> None:
        self.model = model
        model.check_graph()
        self._session = open_session(f"detector '{model.name}'", model.graph, model.weights, threads)
        _check_scores(model, self)

    def __call__(self, image: FloatArray) -> FloatArray:
        try:
            scores = np.asarray(self._session.run(None, {"image": image[None, None]})[0], np.float32)
        except Exception as error:  # onnxruntime's errors share no base class
            raise ModelError(f"detector '{self.model.name}': damaged graph ({in_one_line(error)})") from error
        if scores.shape != (1, 1, *image.shape):
            raise ModelError(f"detector '{self.model.name}': damaged graph (scores of shape {scores.shape})")
        return np.asarray(scores[0, 0])


def check_image() -> FloatArray:
    """An image of waves and edges, the same on every machine, to check variants with."""
    return normalise_locally(np.asarray(check_patches(64, 64)[3], np.float32), 16)


def _check_scores(model: DetectorModel, network: _Network) -> None:
    """Raise ``ModelError`` if a variant's scores differ from those in its file; see ``runtimes.base.check_variant``."""
    if model.check is None or model.card.variant is None:
        return
    found = network(check_image())
    if found.shape != model.check.shape or not np.abs(found - model.check).max() <= _CHECK_TOLERANCE:
        raise ModelError(
            f"detector '{model.name}': this processor does not compute {model.card.variant.precision} as its file "
            f"says, or the file is damaged; use '{model.card.variant.parent}' instead"
        )
