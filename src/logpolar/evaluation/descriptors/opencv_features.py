"""OpenCV's detectors and whole features by name: ``opencv:NAME[,key=value,...]``.

NAME is a class of this build of OpenCV; the options are those of its ``create``, which is also passed the number of
keypoints unless the spec gives it. Only the strongest keypoints are kept. Positions, sizes and angles are taken as the
class reports them.

Convention:
    Descriptors become unit vectors whose Euclidean distances have the order of the feature's own distances. Bits of
    binary ones become -1 and 1 (cells of two bits: one-hot vectors of four), divided by the square root of their
    number: Euclidean distances are proportional to the square root of Hamming distances, so a ratio of r between
    distances is one of r^2 between Hamming distances. Bits are zero-padded to a power of 4, which changes no distance
    but makes sums exact: equal Hamming distances stay equal.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.errors import in_one_line
from logpolar.evaluation.descriptors.specs import Spec, plain_value
from logpolar.evaluation.descriptors.whole_features import Extract, strongest, unit_rows
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import Detector, FeatureDetector
from logpolar.types import FloatArray

MODEL_FILE = "modelPath"
"""The option for the file of a network."""

_COUNTS = ("nfeatures", "maxCorners", "maxKeypoints")
_NOISE = np.random.default_rng(0).integers(0, 256, (96, 128), np.uint8)


def open_opencv_detector(spec: Spec, most: int) -> tuple[Detector, dict[str, Any]]:
    """A detector and its identity."""
    feature, _, identity = _make(spec, most)
    try:
        feature.detect(_NOISE, None)
    except cv2.error as error:
        raise spec.error(f"OpenCV's {spec.file} fails ({in_one_line(error)})") from error
    return FeatureDetector(feature, most), identity


def open_opencv_feature(spec: Spec, most: int) -> tuple[Extract, dict[str, Any], dict[str, Any]]:
    """Extracts keypoints with descriptors; also the options of the spec, and the identity."""
    feature, options, identity = _make(spec, most)
    try:
        feature.detectAndCompute(_NOISE, None)
    except cv2.error as error:
        if error.code == cv2.Error.StsNotImplemented:
            raise spec.error(f"OpenCV's {spec.file} is a detector only; use it as --detector") from error
        raise spec.error(f"OpenCV's {spec.file} fails ({in_one_line(error)})") from error

    def extract(view: NDArray[np.uint8]) -> tuple[Keypoints, FloatArray]:
        found, raw = feature.detectAndCompute(view, None)
        if raw is None:
            raw = np.zeros((0, feature.descriptorSize()), np.uint8)
        return strongest(Keypoints.from_opencv(found), unit_vectors(raw, feature.defaultNorm()), most)

    return extract, options, identity


def _make(spec: Spec, most: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The object, the options of the spec, and the identity."""
    kinds = _classes()
    if spec.file not in kinds:
        raise spec.error(f"OpenCV {cv2.__version__} has no feature '{spec.file}' (it has: {', '.join(sorted(kinds))})")
    create = kinds[spec.file].create
    known = _parameters(create.__doc__ or "")
    options = {key: plain_value(value) for key, value in spec.given.items()}
    spec.check_known(known)
    identity = {"kind": "opencv", "class": spec.file, **options, **_digest(spec), "keypoints": most}
    counts = {key: most for key in _COUNTS if key in known and key not in options}
    try:
        feature = create(**counts, **options)
    except (cv2.error, TypeError, ValueError) as error:
        raise spec.error(f"OpenCV refuses these options ({in_one_line(error)})") from error
    return feature, options, {**identity, "opencv": cv2.__version__}


def _classes() -> Mapping[str, Any]:
    """Features by name; builds with contrib have more in ``xfeatures2d``."""
    places = [cv2, *([cv2.xfeatures2d] if hasattr(cv2, "xfeatures2d") else [])]
    return {
        name: each
        for place in places
        for name, each in vars(place).items()
        if isinstance(each, type) and issubclass(each, cv2.Feature2D) and hasattr(each, "create")
    }


def _parameters(documentation: str) -> list[str]:
    """Parameters of all overloads of ``create``; OpenCV lists them in the docstring only."""
    forms = re.findall(r"^create\(([^)]*)\)", documentation, re.MULTILINE)
    return list(dict.fromkeys(name for form in forms for name in re.findall(r"\w+", form)))


def _digest(spec: Spec) -> dict[str, str]:
    """Digest of a network's file, if there is one."""
    if MODEL_FILE not in spec.given:
        return {}
    return {"sha256": hashlib.sha256(spec.read_file(spec.given[MODEL_FILE])).hexdigest()}


def unit_vectors(raw: NDArray[np.uint8] | FloatArray, norm: int) -> FloatArray:
    """Descriptors (N, D) of OpenCV as unit vectors; ``norm``: OpenCV's ``defaultNorm`` of the feature."""
    if norm == cv2.NORM_HAMMING:
        bits = np.unpackbits(_padded(raw, units_per_byte=8), axis=1)
        return np.asarray((2 * bits.astype(np.float32) - 1) / np.sqrt(bits.shape[1]), np.float32)
    if norm == cv2.NORM_HAMMING2:
        packed = _padded(raw, units_per_byte=4)
        cells = (packed[:, :, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3).reshape(len(packed), -1)
        places = np.eye(4, dtype=np.float32)[cells].reshape(len(packed), 4 * cells.shape[1])
        return np.asarray(places / np.sqrt(cells.shape[1]), np.float32)
    return unit_rows(raw)


def _padded(raw: NDArray[np.uint8] | FloatArray, units_per_byte: int) -> NDArray[np.uint8]:
    """Zero-padded until the number of bits or cells is a power of 4, whose square root is exact."""
    units = 16
    while units < raw.shape[1] * units_per_byte:
        units *= 4
    return np.pad(np.asarray(raw, np.uint8), ((0, 0), (0, units // units_per_byte - raw.shape[1])))
