"""The descriptors that evaluations compare, opened by a spec: ``NAME[:FILE][,key=value,...]``.

| spec | what it is | options |
|---|---|---|
| ``logpolar-96``, ``FILE.safetensors`` | a shipped model, or a model file | |
| ``sift``, ``rootsift`` | OpenCV's | lambda |
| ``tfeat:FILE``, ``hardtfeat:FILE``, ``hardnet:FILE`` | kornia's networks with a file of weights | lambda, antialias |
| ``sosnet:FILE``, ``hynet:FILE`` | the same | the same |
| ``mkd:FILE`` | kornia's MKD with a file of whitenings | the same, and size, set |
| ``onnx:FILE``, ``torchscript:FILE`` | any network of square patches | the same, size, normalise, scale, channels |
| ``opencv:NAME`` | a whole feature of OpenCV | those of its class |
| ``kornia:NAME`` | a whole feature of kornia | weights, those of its class |

Convention:
    All descriptors come out as unit vectors, those of networks divided by their Euclidean length.
    lambda is the side of the patch in keypoint sizes (default 12), but for SIFT: see ``baselines``.
    The other options are those of ``patch_networks``.
    Whole features describe keypoints of their own only: see ``whole_features``, ``opencv_features``,
    ``kornia_features``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2

from logpolar.errors import LogpolarError
from logpolar.evaluation.descriptors.keypoint_sources import KeypointSource
from logpolar.evaluation.descriptors.opencv_features import open_opencv_feature
from logpolar.evaluation.descriptors.patch_networks import (
    KORNIA_CLASSES,
    NETWORK_OPTIONS,
    open_network,
    settings_of,
)
from logpolar.evaluation.descriptors.specs import Spec, parse_spec
from logpolar.evaluation.descriptors.whole_features import WholeFeature
from logpolar.evaluation.pairs import Describe, describe_views
from logpolar.features.sift import SIFT_LAMBDA, root_sift, sift
from logpolar.models import load_model, shipped_models
from logpolar.models.describers import open_describer
from logpolar.sampling.patterns import pattern_to_dict

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

FEATURE_KINDS = {"opencv": "OpenCV", "kornia": "kornia"}
"""Kinds of whole features, and who made them."""


@dataclass(frozen=True, eq=False)
class Descriptor:
    """Something that describes keypoints.

    ``identity``: all that decides the numbers, as plain JSON values, to be compared with that of stored results. The
    device is not part of it: it only changes how they are rounded.
    """

    name: str  # for tables
    identity: dict[str, Any]
    describe: Describe
    own_keypoints: KeypointSource | None = None  # of a whole feature, which describes no others


def open_descriptor(spec: str, device: str = "cpu", keypoints: int | None = None, threads: int = 0) -> Descriptor:
    """The descriptor of a spec; see above. ``device``: ``"cpu"`` or torch's name of a GPU, ``"cuda"``.

    ``keypoints``: how many of an image whole features find at most; None where keypoints are given, which refuses them.
    ``threads``: of models on the CPU, 0 for all cores.

    Raises ``LogpolarError``, one line with the spec, for anything that cannot be opened. SIFT and ONNX files run on
    the CPU in any case; models do so through onnxruntime, and all else needs torch.
    """
    if device != "cpu" and device.partition(":")[0] != "cuda":
        raise ValueError(f"the device must be cpu or cuda, not '{device}'")
    parsed = parse_spec(spec)
    if parsed.name in ("sift", "rootsift"):
        return _open_sift(parsed)
    if parsed.name in NETWORK_OPTIONS:
        return _open_network(parsed, device)
    if parsed.name in FEATURE_KINDS:
        return _open_feature(parsed, device, keypoints)
    return _open_model(parsed, device, threads)


def _open_sift(spec: Spec) -> Descriptor:
    if ":" in spec.head:
        raise spec.error(f"{spec.name} takes no file")
    defaults = {"lambda": SIFT_LAMBDA}
    options = spec.options(defaults)
    describe = partial(sift if spec.name == "sift" else root_sift, lambda_=options["lambda"])
    identity = {"kind": spec.name, **options, "opencv": cv2.__version__}
    return Descriptor(_label(_LABELS[spec.name], options, defaults), identity, describe)


def _open_network(spec: Spec, device: str) -> Descriptor:
    settings, content = settings_of(spec), spec.read_file()
    describe = open_network(spec, content, settings, device)
    identity = {"kind": spec.name, "sha256": hashlib.sha256(content).hexdigest(), **settings}
    if spec.name in KORNIA_CLASSES:
        identity["kornia"] = version("kornia")
    label = _LABELS.get(spec.name) or Path(spec.file).stem
    return Descriptor(_label(label, settings, NETWORK_OPTIONS[spec.name]), identity, describe)


def _open_feature(spec: Spec, device: str, keypoints: int | None) -> Descriptor:
    if keypoints is None:
        raise spec.error("has keypoints of its own; it can be measured on images (hpatches, phototourism, sfm) only")
    if spec.name == "opencv":
        extract, options, identity = open_opencv_feature(spec, keypoints)
    else:
        from logpolar.evaluation.descriptors.kornia_features import open_kornia_feature

        extract, options, identity = open_kornia_feature(spec, keypoints, device)
    feature = WholeFeature(extract)
    label = _label(f"{FEATURE_KINDS[spec.name]} {spec.file}", options, dict.fromkeys(options))
    return Descriptor(label, identity, feature.describe, KeypointSource(feature.detect, identity))


def _open_model(spec: Spec, device: str, threads: int) -> Descriptor:
    shipped = spec.head in shipped_models()
    if not (shipped or spec.head.endswith(".safetensors") or Path(spec.head).is_file()):
        kinds = [kind for kind in NETWORK_OPTIONS if kind not in _LABELS]
        known = [*_LABELS, *kinds, *(f"{kind}:NAME" for kind in FEATURE_KINDS), *shipped_models()]
        raise spec.error(f"unknown name '{spec.head}' (known: {', '.join(known)}, or a model file)")
    spec.options({})
    try:
        model = load_model(spec.head)
        describe = describe_views(open_describer(model, device=device, threads=threads))
    except LogpolarError as error:
        raise spec.error(str(error)) from error
    identity = {"kind": "model", "sha256": model.digest, "sampling": pattern_to_dict(model.sampling)}
    # A model that was copied or trained on keeps the name on its card: what tells files apart is what they are called.
    return Descriptor(spec.head if shipped else Path(spec.head).stem, identity, describe)


def _label(name: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """The name, followed by what was chosen otherwise than usual."""
    changed = [
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in options.items()
        if key in defaults and value != defaults[key]
    ]
    return f"{name} ({', '.join(changed)})" if changed else name
