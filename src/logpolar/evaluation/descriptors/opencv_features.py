"""OpenCV's detectors and whole features by their names: ``opencv:NAME[,key=value,...]``.

NAME is a class of this OpenCV (which builds have what differs), the options are those of its ``create``. Where that
takes how many keypoints to find, it is told, unless the spec says; and of more than there should be the strongest are
kept. Positions, sizes and angles are taken as the class reports them.
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
from logpolar.evaluation.descriptors.whole_features import Extract, strongest, unit_vectors
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import Detector, FeatureDetector
from logpolar.types import FloatArray

MODEL_FILE = "modelPath"
"""The option that names a network's file."""

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
    """What extracts keypoints with descriptors, the options of the spec, and the identity."""
    feature, options, identity = _make(spec, most)
    try:
        feature.detectAndCompute(_NOISE, None)
    except cv2.error as error:
        if error.code == cv2.Error.StsNotImplemented:
            raise spec.error(f"OpenCV's {spec.file} does not describe; it may do as --detector") from error
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
    for key in options:
        if key not in known:
            raise spec.error(f"unknown option '{key}' (known: {', '.join(known)})")
    identity = {"kind": "opencv", "class": spec.file, **options, **_digest(spec), "keypoints": most}
    counts = {key: most for key in _COUNTS if key in known and key not in options}
    try:
        feature = create(**counts, **options)
    except (cv2.error, TypeError, ValueError) as error:
        raise spec.error(f"OpenCV cannot make it of these options ({in_one_line(error)})") from error
    return feature, options, {**identity, "opencv": cv2.__version__}


def _classes() -> Mapping[str, Any]:
    """By name; builds with contrib have more in ``xfeatures2d``."""
    places = [cv2, *([cv2.xfeatures2d] if hasattr(cv2, "xfeatures2d") else [])]
    return {
        name: each
        for place in places
        for name, each in vars(place).items()
        if isinstance(each, type) and issubclass(each, cv2.Feature2D) and hasattr(each, "create")
    }


def _parameters(documentation: str) -> list[str]:
    """Names that ``create`` takes, of all its forms: that is the only place where OpenCV says them."""
    forms = re.findall(r"^create\(([^)]*)\)", documentation, re.MULTILINE)
    return list(dict.fromkeys(name for form in forms for name in re.findall(r"\w+", form)))


def _digest(spec: Spec) -> dict[str, str]:
    """Of a network's file, if there is one."""
    if MODEL_FILE not in spec.given:
        return {}
    return {"sha256": hashlib.sha256(spec.read_file(spec.given[MODEL_FILE])).hexdigest()}
