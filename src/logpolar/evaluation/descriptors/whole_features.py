"""Features that come whole: a detector and a descriptor that belong together, and describe nobody else's keypoints.

Convention:
    Descriptors come out as unit vectors whose Euclidean distances have the order of the feature's own distances. Of
    binary ones, bits become -1 and 1 (cells of two bits: one of four places), all divided by the root of their number:
    distances are the root of the Hamming distance, times a constant. So a ratio of r between distances is one of r^2
    between Hamming distances. Zeros fill bits up to a power of 4, which changes no distance but makes sums exact:
    Hamming distances that are equal stay so.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.images import to_bytes, to_gray
from logpolar.keypoints import Keypoints
from logpolar.types import FloatArray

Extract = Callable[[NDArray[np.uint8]], tuple[Keypoints, FloatArray]]
"""A gray view in, keypoints and their descriptors, unit vectors, out."""

_REMEMBERED = 2  # views of a pair: both are detected before either is described


class WholeFeature:
    """Detects and describes in two steps what can be had in one only; a view is extracted once if described soon."""

    def __init__(self, extract: Extract) -> None:
        self._extract = extract
        self._known: OrderedDict[str, tuple[Keypoints, FloatArray]] = OrderedDict()

    def detect(self, gray: FloatArray) -> Keypoints:
        return self._found(to_bytes(gray))[0]

    def describe(self, view: NDArray[np.uint8], keypoints: Keypoints) -> FloatArray:
        """Descriptors of the very keypoints that ``detect`` finds in the view; all others are an error."""
        found, descriptors = self._found(to_bytes(to_gray(view)))
        if not np.array_equal(found.table, keypoints.table):
            raise ValueError("a feature with keypoints of its own describes no others")
        return descriptors

    def _found(self, view: NDArray[np.uint8]) -> tuple[Keypoints, FloatArray]:
        key = hashlib.sha256(repr(view.shape).encode() + view.tobytes()).hexdigest()
        if key not in self._known:
            self._known[key] = self._extract(view)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return self._known[key]


def strongest(keypoints: Keypoints, descriptors: FloatArray, most: int) -> tuple[Keypoints, FloatArray]:
    """At most that many, as ``Keypoints.strongest`` has them, with their descriptors."""
    order = np.argsort(-keypoints.response, kind="stable")[:most]
    return keypoints[order], descriptors[order]


def unit_vectors(raw: NDArray[np.uint8] | FloatArray, norm: int) -> FloatArray:
    """Descriptors (N, D) of OpenCV as unit vectors; ``norm`` says how it compares them, see ``defaultNorm``."""
    if norm == cv2.NORM_HAMMING:
        bits = np.unpackbits(_filled(raw, units_per_byte=8), axis=1)
        return np.asarray((2 * bits.astype(np.float32) - 1) / np.sqrt(bits.shape[1]), np.float32)
    if norm == cv2.NORM_HAMMING2:
        packed = _filled(raw, units_per_byte=4)
        cells = (packed[:, :, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3).reshape(len(packed), -1)
        places = np.eye(4, dtype=np.float32)[cells].reshape(len(packed), 4 * cells.shape[1])
        return np.asarray(places / np.sqrt(cells.shape[1]), np.float32)
    length = np.linalg.norm(raw.astype(np.float32), axis=1, keepdims=True)
    return np.asarray(raw / np.maximum(length, 1e-12), np.float32)


def _filled(raw: NDArray[np.uint8] | FloatArray, units_per_byte: int) -> NDArray[np.uint8]:
    """With zeros behind, so that the number of bits or cells is a power of 4, whose root is one of 2."""
    units = 16
    while units < raw.shape[1] * units_per_byte:
        units *= 4
    return np.pad(np.asarray(raw, np.uint8), ((0, 0), (0, units // units_per_byte - raw.shape[1])))
