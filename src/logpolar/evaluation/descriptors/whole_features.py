"""Whole features: a detector and a descriptor that belong together and describe only their own keypoints."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.images import to_bytes
from logpolar.keypoints import Keypoints
from logpolar.models.describers import Describer
from logpolar.types import FloatArray

Extract = Callable[[NDArray[np.uint8]], tuple[Keypoints, FloatArray]]
"""A gray view in, keypoints and their descriptors, unit vectors, out."""

_REMEMBERED = 2  # views of a pair: both are detected before either is described


class WholeFeature(Describer):
    """Splits extraction into detection and description; a view is extracted once if described soon."""

    def __init__(self, extract: Extract) -> None:
        self._extract = extract
        self._known: OrderedDict[str, tuple[Keypoints, FloatArray]] = OrderedDict()

    def detect(self, gray: FloatArray) -> Keypoints:
        return self._found(gray)[0]

    def describe(self, gray: FloatArray, keypoints: Keypoints) -> FloatArray:
        """Descriptors of exactly the keypoints that ``detect`` finds; all others are an error."""
        found, descriptors = self._found(gray)
        if not np.array_equal(found.table, keypoints.table):
            raise ValueError("a whole feature describes only its own keypoints")
        return descriptors

    def _found(self, gray: FloatArray) -> tuple[Keypoints, FloatArray]:
        view = to_bytes(gray)
        key = hashlib.sha256(repr(view.shape).encode() + view.tobytes()).hexdigest()
        if key not in self._known:
            self._known[key] = self._extract(view)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return self._known[key]


def unit_rows(raw: NDArray[Any]) -> FloatArray:
    """Vectors (N, D) divided by their lengths; zeros stay zeros."""
    length = np.linalg.norm(raw.astype(np.float32), axis=1, keepdims=True)
    return np.asarray(raw / np.maximum(length, 1e-12), np.float32)


def strongest(keypoints: Keypoints, descriptors: FloatArray, most: int) -> tuple[Keypoints, FloatArray]:
    """At most that many, as by ``Keypoints.strongest``, with their descriptors."""
    order = np.argsort(-keypoints.response, kind="stable")[:most]
    return keypoints[order], descriptors[order]
