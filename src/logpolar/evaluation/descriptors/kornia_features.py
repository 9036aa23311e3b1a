"""kornia's detectors and whole features by name: ``kornia:NAME[,weights=FILE][,key=value,...]``.

Detectors: response functions on kornia's ``MultiResolutionDetector``, with its orientations unless ``upright=true``.
Frames become keypoints whose size is a sixth of their half-width, so that a patch network with lambda = 12 sees the
same patch as in kornia. Networks of whole features are detectors, too: their keypoints have no size and get one.

Whole features: ``LocalFeature`` classes without weights, and networks with a file of weights, on gray images. The
options are those of the class. Nothing is ever downloaded.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from logpolar.errors import LogpolarError, MissingExtraError, in_one_line
from logpolar.evaluation.descriptors.patch_networks import check_torch, read_weights
from logpolar.evaluation.descriptors.specs import Spec, plain_value
from logpolar.evaluation.descriptors.whole_features import Extract, strongest, unit_rows
from logpolar.images import to_bytes
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import Detector
from logpolar.types import FloatArray

if TYPE_CHECKING:
    from torch import Tensor, nn

WEIGHTS = "weights"
"""The option for a file of weights."""

_SIZE = 6.0
"""Pixels: size of keypoints of networks, the one that models are trained with for keypoints without."""

_NEED_WEIGHTS = ("KeyNet", "DISK", "ALIKED", "XFeat")

Found = tuple["Tensor", "Tensor", "Tensor"]
"""Positions (N, 2), scores (N,) and descriptors (N, D)."""


def _disk(module: Any, image: Tensor, most: int) -> Found:
    found = module(image.expand(-1, 3, -1, -1), n=most, pad_if_not_divisible=True)[0]
    return found.keypoints, found.detection_scores, found.descriptors


def _aliked(module: Any, image: Tensor, most: int) -> Found:
    found = module(image)[0]
    return found.keypoints, found.keypoint_scores, found.descriptors


def _xfeat(module: Any, image: Tensor, most: int) -> Found:
    found = module.detectAndCompute(image, top_k=most)[0]
    return found["keypoints"], found["scores"], found["descriptors"]


DETECTORS = ("CornerGFTT", "CornerHarris", "BlobHessian", "KeyNet")
LOCAL_FEATURES = ("SIFTFeature", "SIFTFeatureScaleSpace")
NETWORKS: dict[str, Callable[[Any, Tensor, int], Found]] = {"DISK": _disk, "ALIKED": _aliked, "XFeat": _xfeat}


def open_kornia_detector(spec: Spec, most: int, device: str) -> tuple[Detector, dict[str, Any]]:
    """A detector and its identity."""
    if spec.file in NETWORKS:
        extract, _, known = open_kornia_feature(spec, most, device)

        def sized(gray: FloatArray) -> Keypoints:
            found = extract(to_bytes(gray))[0]
            return Keypoints.from_points(found.xy, _SIZE, response=found.response)

        return sized, {**known, "size": _SIZE}
    feature = _kornia(spec, (*DETECTORS, *NETWORKS), device)
    weights, identity, options = _read(spec, most)
    spec.check_known((WEIGHTS, "upright"))
    orientation = feature.PassLAF() if options.get("upright") is True else feature.LAFOrienter(19)
    if spec.file == "KeyNet":
        module = feature.KeyNetDetector(pretrained=False, num_features=most, ori_module=orientation)
        _load(spec, module.model, weights)
    else:
        response = getattr(feature, spec.file)(**({"k": 0.04} if spec.file == "CornerHarris" else {}))
        module = feature.MultiResolutionDetector(response, num_features=most, ori_module=orientation)
    run = _runner(spec, module.to(device).eval(), device)

    def detect(gray: FloatArray) -> Keypoints:
        lafs, responses = run(lambda module, image: module(image), gray)
        return _from_lafs(lafs, responses)[0].strongest(most)

    return detect, identity


def open_kornia_feature(spec: Spec, most: int, device: str) -> tuple[Extract, dict[str, Any], dict[str, Any]]:
    """Extracts keypoints with descriptors; also the options of the spec, and the identity."""
    feature = _kornia(spec, (*LOCAL_FEATURES, *NETWORKS), device)
    weights, identity, options = _read(spec, most)
    kind = getattr(feature, spec.file)
    counts = {"num_features": most, "max_num_keypoints": most, "top_k": most}
    known = list(inspect.signature(kind).parameters)
    spec.check_known(known, but=WEIGHTS)
    try:
        module = kind(**{key: value for key, value in counts.items() if key in known and key not in options}, **options)
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        raise spec.error(f"kornia refuses these options ({in_one_line(error)})") from error
    if spec.file in NETWORKS:
        _load(spec, module.net if spec.file == "XFeat" else module, weights)
    run = _runner(spec, module.to(device).eval(), device)

    def extract(view: NDArray[np.uint8]) -> tuple[Keypoints, FloatArray]:
        gray = np.asarray(view, np.float32) / 255
        if spec.file in NETWORKS:
            xy, scores, raw = run(lambda module, image: NETWORKS[spec.file](module, image, most), gray)
            keypoints = Keypoints.from_points(xy, response=scores)
        else:
            lafs, responses, raw = run(lambda module, image: module(image), gray)
            keypoints, filled = _from_lafs(lafs, responses)
            raw = raw[0][filled]
        return strongest(keypoints, unit_rows(raw), most)

    return extract, options, identity


def _kornia(spec: Spec, names: tuple[str, ...], device: str) -> Any:
    if spec.file not in names:
        raise spec.error(f"unknown name '{spec.file}' (known: {', '.join(names)})")
    check_torch(spec, device)
    try:
        from kornia import feature
    except ImportError as error:
        raise MissingExtraError(f"{spec.what} '{spec.text}'", "baselines") from error
    if not hasattr(feature, spec.file):
        raise spec.error(f"kornia {version('kornia')} has no {spec.file}")
    return feature


def _read(spec: Spec, most: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Weights or None, the identity, and the options without the weights."""
    options = {key: plain_value(value) for key, value in spec.given.items() if key != WEIGHTS}
    identity = {"kind": "kornia", "class": spec.file, **options, "keypoints": most, "kornia": version("kornia")}
    if (spec.file in _NEED_WEIGHTS) != (WEIGHTS in spec.given):
        raise spec.error(
            f"needs a file of weights: {WEIGHTS}=FILE" if spec.file in _NEED_WEIGHTS else "takes no weights"
        )
    if WEIGHTS not in spec.given:
        return None, identity, options
    path = spec.given[WEIGHTS]
    content = spec.read_file(path)
    return read_weights(spec, content, path), {**identity, "sha256": hashlib.sha256(content).hexdigest()}, options


def _load(spec: Spec, module: nn.Module, weights: Any) -> None:
    """Load published weights: bare, or in a checkpoint."""
    try:
        for name in ("state_dict", "extractor"):
            weights = weights.get(name, weights)
        strict = spec.file != "ALIKED"  # its published files have more, and lack a constant grid
        lacking = module.load_state_dict(weights, strict=strict).missing_keys
        if lacking := [key for key in lacking if key != "dkd.hw_grid"]:
            raise KeyError(lacking[0])
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise spec.error(f"{spec.given[WEIGHTS]}: not the weights of {spec.file} ({in_one_line(error)})") from error


def _runner(spec: Spec, module: nn.Module, device: str) -> Callable[..., Any]:
    """Runs the module on a gray image, numpy in and out, errors in one line."""
    import torch

    def run(work: Callable[[Any, Tensor], tuple[Tensor, ...]], gray: FloatArray) -> list[FloatArray]:
        image = torch.from_numpy(np.ascontiguousarray(gray, np.float32))[None, None].to(device)
        try:
            with torch.inference_mode():
                return [np.asarray(values.cpu().numpy(), np.float32) for values in work(module, image)]
        except (LogpolarError, KeyboardInterrupt):
            raise
        except Exception as error:  # of any kind: kornia's, torch's, shapes
            raise spec.error(
                f"fails on an image of {gray.shape[1]} x {gray.shape[0]} ({in_one_line(error)})"
            ) from error

    return run


def _from_lafs(lafs: FloatArray, responses: FloatArray) -> tuple[Keypoints, NDArray[np.bool_]]:
    """Keypoints of frames, and a mask of valid frames: kornia pads with zeros."""
    filled = np.asarray((lafs[0] != 0).any(axis=(1, 2)))
    return replace(Keypoints.from_lafs(lafs[0][filled]), response=responses[0][filled]), filled
