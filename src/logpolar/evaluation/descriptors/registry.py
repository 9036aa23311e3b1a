"""The methods that evaluations compare, opened by a spec: ``NAME[:FILE][,key=value,...]``.

| spec | what it is | options |
|---|---|---|
| ``logpolar-96``, ``FILE.safetensors`` | a shipped model, or a model file | |
| ``logpolar-sf`` | a shipped model with its own keypoints | |
| ``sift``, ``rootsift`` | OpenCV's | lambda |
| ``tfeat:FILE``, ``hardtfeat:FILE``, ``hardnet:FILE`` | kornia's networks with a file of weights | lambda, antialias |
| ``sosnet:FILE``, ``hynet:FILE`` | the same | the same |
| ``mkd:FILE`` | kornia's MKD with a file of whitenings | the same, and size, set |
| ``onnx:FILE``, ``torchscript:FILE`` | any network of square patches | the same, size, normalise, scale, channels |
| ``python:FILE.py:NAME`` | a function of your own, see ``python_functions`` | |
| ``opencv:NAME`` | a whole feature of OpenCV | those of its class |
| ``kornia:NAME`` | a whole feature of kornia | weights, those of its class |

Convention:
    All descriptors are unit vectors, those of networks divided by their Euclidean length.
    lambda is the side of the patch in keypoint sizes (default 12), except for SIFT: see ``features.sift``.
    The other options are those of ``patch_networks``.
    Whole features describe only their own keypoints: see ``whole_features``, ``opencv_features``, ``kornia_features``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2

from logpolar.errors import LogpolarError
from logpolar.evaluation.descriptors.keypoint_sources import KeypointSource
from logpolar.evaluation.descriptors.opencv_features import MODEL_FILE, open_opencv_feature
from logpolar.evaluation.descriptors.patch_networks import (
    KORNIA_CLASSES,
    NETWORK_OPTIONS,
    open_network,
    settings_of,
)
from logpolar.evaluation.descriptors.python_functions import PythonDescriber, load_python
from logpolar.evaluation.descriptors.specs import Spec, parse_spec
from logpolar.evaluation.descriptors.whole_features import WholeFeature
from logpolar.features.sift import SIFT_LAMBDA, root_sift, sift
from logpolar.keypoints import Keypoints
from logpolar.models import load_model, shipped_models
from logpolar.models.describers import Describer, open_describer
from logpolar.models.detectors import NetworkDetector
from logpolar.models.files import PAIRS
from logpolar.sampling.patterns import pattern_to_dict
from logpolar.types import FloatArray

_LABELS = {
    "sift": "SIFT",
    "rootsift": "RootSIFT",
    "tfeat": "TFeat",
    "hardtfeat": "HardTFeat",
    "hardnet": "HardNet",
    "sosnet": "SOSNet",
    "hynet": "HyNet",
    "mkd": "MKD",
}

_FEATURE_KINDS = {"opencv": "OpenCV", "kornia": "kornia"}
"""Libraries of whole features by kind."""


@dataclass(frozen=True, eq=False)
class Method:
    """A method under test.

    ``identity``: all that determines the numbers, as plain JSON values, for comparison with stored results; None
    if weights are missing. Device and runtime are not part of it: they change the last bits only.
    """

    spec: str
    name: str  # in tables
    identity: dict[str, Any] | None = None
    describer: Describer | None = None
    source: KeypointSource | None = None  # of a whole feature, which describes no other keypoints


class SiftDescriber(Describer):
    """OpenCV's SIFT or RootSIFT of given keypoints."""

    def __init__(self, root: bool = False, lambda_: float = SIFT_LAMBDA) -> None:
        self._root, self._lambda = root, lambda_

    def describe(self, gray: FloatArray, keypoints: Keypoints) -> FloatArray:
        return (root_sift if self._root else sift)(gray, keypoints, lambda_=self._lambda)


def open_method(spec: str, keypoints: int | None = None, *, device: str = "cpu", **engine: Any) -> Method:
    """The method of a spec; see above. ``device`` and ``engine``: see ``models.describers.open_describer``.

    ``keypoints``: the most that whole features find in an image; None where keypoints are given, which refuses them.

    Raises ``LogpolarError``, one line with the spec, for anything that cannot be opened. SIFT and ONNX files run on
    the CPU on any device; precision, runtime and threads are those of the library's models.
    """
    parsed = parse_spec(spec)
    if device != "cpu" and device.partition(":")[0] != "cuda":
        raise LogpolarError(f"the device must be cpu or cuda, not '{device}'")
    if parsed.name in ("sift", "rootsift"):
        return _open_sift(parsed)
    if parsed.name == "python":
        return _open_python(parsed)
    if parsed.name in NETWORK_OPTIONS:
        return _open_network(parsed, device)
    if parsed.name in _FEATURE_KINDS:
        return _open_feature(parsed, device, keypoints)
    if parsed.head in PAIRS:
        return _open_pair(parsed, keypoints, device=device, **engine)
    return _open_model(parsed, device=device, **engine)


def lacks_weights(text: str) -> bool:
    """Whether the spec names a file that does not exist."""
    spec = parse_spec(text)
    if spec.name in _FEATURE_KINDS:
        file = spec.given.get("weights") or spec.given.get(MODEL_FILE, "")
    elif spec.name == "python":
        file = spec.file.rpartition(":")[0]
    else:
        file = spec.file if spec.name in NETWORK_OPTIONS else spec.head if spec.head.endswith(".safetensors") else ""
    return bool(file) and not Path(file).exists()


def takes_lambda(text: str) -> bool:
    """Whether the support of a method can be chosen, and the spec does not."""
    spec = parse_spec(text)
    return "lambda" not in spec.given and (spec.name in ("sift", "rootsift") or spec.name in NETWORK_OPTIONS)


def _open_sift(spec: Spec) -> Method:
    if ":" in spec.head:
        raise spec.error(f"{spec.name} takes no file")
    defaults = {"lambda": SIFT_LAMBDA}
    options = spec.options(defaults)
    identity = {"kind": spec.name, **options, "opencv": cv2.__version__}
    label = _label(_LABELS[spec.name], options, defaults)
    return Method(spec.text, label, identity, SiftDescriber(spec.name == "rootsift", options["lambda"]))


def _open_python(spec: Spec) -> Method:
    spec.options({})
    try:
        function = load_python(spec.file)
    except LogpolarError as error:
        raise spec.error(str(error)) from error
    identity = {"kind": "python", "function": function.name, "sha256": function.digest}
    return Method(spec.text, function.name, identity, PythonDescriber(function))


def _open_network(spec: Spec, device: str) -> Method:
    settings, content = settings_of(spec), spec.read_file()
    describer = open_network(spec, content, settings, device)
    identity = {"kind": spec.name, "sha256": hashlib.sha256(content).hexdigest(), **settings}
    if spec.name in KORNIA_CLASSES:
        identity["kornia"] = version("kornia")
    label = _LABELS.get(spec.name) or Path(spec.file).stem
    return Method(spec.text, _label(label, settings, NETWORK_OPTIONS[spec.name]), identity, describer)


def _open_feature(spec: Spec, device: str, keypoints: int | None) -> Method:
    most = _checked_count(spec, keypoints)
    if spec.name == "opencv":
        extract, options, identity = open_opencv_feature(spec, most)
    else:
        from logpolar.evaluation.descriptors.kornia_features import open_kornia_feature

        extract, options, identity = open_kornia_feature(spec, most, device)
    feature = WholeFeature(extract)
    label = _label(f"{_FEATURE_KINDS[spec.name]} {spec.file}", options, dict.fromkeys(options))
    return Method(spec.text, label, identity, feature, KeypointSource(feature.detect, identity))


def _checked_count(spec: Spec, keypoints: int | None) -> int:
    if keypoints is None:
        raise spec.error("has its own keypoints; it can be measured on images (hpatches, phototourism, sfm) only")
    return keypoints


def _open_pair(spec: Spec, keypoints: int | None, **engine: Any) -> Method:
    most = _checked_count(spec, keypoints)
    descriptor, name = PAIRS[spec.head]
    method = _open_model(replace(spec, head=descriptor), **engine)
    detector = NetworkDetector(name, most, threads=engine.get("threads", 0))
    identity = {"kind": "pair", "descriptor": method.identity, "detector": detector.settings}
    return Method(spec.text, spec.head, identity, method.describer, KeypointSource(detector, identity))


def _open_model(spec: Spec, **engine: Any) -> Method:
    shipped = spec.head in shipped_models()
    if not (shipped or spec.head.endswith(".safetensors") or Path(spec.head).is_file()):
        kinds = [kind for kind in NETWORK_OPTIONS if kind not in _LABELS]
        others = [*(f"{kind}:NAME" for kind in _FEATURE_KINDS), "python:FILE.py:NAME"]
        known = [*_LABELS, *kinds, *others, *shipped_models(), *PAIRS]
        raise spec.error(f"unknown name '{spec.head}' (known: {', '.join(known)}, or a model file)")
    spec.options({})
    try:
        model = load_model(spec.head)
        describer = open_describer(model, **engine)
    except LogpolarError as error:
        raise spec.error(str(error)) from error
    identity = {"kind": "model", "sha256": model.digest, "sampling": pattern_to_dict(model.sampling)}
    precision = engine.get("precision", "auto")
    if engine["device"] != "cpu" or precision not in ("auto", model.card.precision):
        identity["precision"] = "float16" if precision == "auto" else precision
    # Copies and fine-tuned models keep the name on the card: the file name tells them apart.
    return Method(spec.text, spec.head if shipped else Path(spec.head).stem, identity, describer)


def _label(name: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """The name, followed by the options that are not the defaults."""
    changed = [
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in options.items()
        if key in defaults and value != defaults[key]
    ]
    return f"{name} ({', '.join(changed)})" if changed else name
