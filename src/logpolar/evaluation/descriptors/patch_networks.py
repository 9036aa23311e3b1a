"""Other people's networks for patches, from a file of weights or of the whole network.

Convention:
    Patches are those of ``sampling.Cartesian``, with intensities from 0 to 1, times ``scale``. Then ``normalise``:
    ``zscore`` takes each patch to zero mean and unit standard deviation, ``unit`` divides it by its Euclidean length.
    ``channels`` says what shape the network takes: ``1`` (count, 1, size, size), ``3`` the same with the gray values
    three times, ``last`` (count, size, size, 1), ``none`` (count, size, size).

Files are never unpickled, nothing is ever downloaded. Descriptors come out with unit length, whatever the network does.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from logpolar.errors import LogpolarError, MissingExtraError, in_one_line
from logpolar.evaluation.descriptors.specs import Spec
from logpolar.evaluation.pairs import Describe, describe_views
from logpolar.images import to_gray
from logpolar.keypoints import Keypoints
from logpolar.sampling import Cartesian, ImagePyramid
from logpolar.sampling.patterns import Array, Pattern, namespace
from logpolar.types import FloatArray

if TYPE_CHECKING:
    from torch import Tensor, nn

_CHUNK = 64  # patches described at a time on the CPU; always filled up, so that every run has the same shape

_ANY_NETWORK = {"lambda": 12.0, "size": 32, "antialias": True, "normalise": "none", "scale": 1, "channels": "1"}
_KORNIA = {"lambda": 12.0, "antialias": True}

KORNIA_CLASSES = {
    "tfeat": "TFeat",
    "hardtfeat": "TFeat",  # Mishchuk et al. trained its architecture with their loss
    "hardnet": "HardNet",
    "sosnet": "SOSNet",
    "hynet": "HyNet",
    "mkd": "MKDDescriptor",
}

NETWORK_OPTIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(KORNIA_CLASSES, _KORNIA),
    "mkd": {**_KORNIA, "size": 32, "set": "liberty"},
    "onnx": _ANY_NETWORK,
    "torchscript": _ANY_NETWORK,
}
"""Options of each kind of network and their defaults. ``set``: what the whitening of MKD was learned on."""

_WHITENING_WIDTHS = {238: "concat", 175: "polar", 63: "cart"}
"""Kinds of MKD's kernels by the length of the vectors they give."""


def settings_of(spec: Spec) -> dict[str, Any]:
    """All that decides what a network sees, whether the spec could choose it or not."""
    return {**_ANY_NETWORK, **spec.options(NETWORK_OPTIONS[spec.name])}


def open_network(spec: Spec, content: bytes, settings: Mapping[str, Any], device: str) -> Describe:
    """Describes with the network that a file's content holds. ONNX files run on the CPU, whatever the device.

    Tries the network: one that fails, or whose descriptors depend on what else is in the batch, is an error now.
    """
    pattern = Cartesian(settings["lambda"], settings["size"], settings["size"], settings["antialias"])
    if spec.name == "onnx":
        network, chunk = _onnx_network(spec, content)
        return _checked(spec, _in_chunks(lambda patches: network(prepare(patches, settings)), pattern, chunk))
    module = _torch_module(spec, content, settings, device)
    if device == "cpu":
        return _checked(spec, _in_chunks(_on_cpu(module, settings), pattern, _CHUNK))
    return _checked(spec, describe_on_gpu(lambda patches: module(prepare(patches, settings)), pattern, device))


def prepare(patches: Array, settings: Mapping[str, Any]) -> Array:
    """Patches (N, size, size) in 0 ... 1, numpy or torch, as the network takes them; see above."""
    values = patches * settings["scale"]
    if settings["normalise"] == "zscore":
        values = values - values.mean(axis=(1, 2), keepdims=True)
        values = values / ((values**2).mean(axis=(1, 2), keepdims=True) ** 0.5 + 1e-7)
    if settings["normalise"] == "unit":
        values = values / ((values**2).sum(axis=(1, 2), keepdims=True) ** 0.5 + 1e-7)
    if settings["channels"] == "last":
        return values[..., None]
    if settings["channels"] == "none":
        return values
    count, rows, columns = values.shape
    return namespace(values).broadcast_to(values[:, None], (count, int(settings["channels"]), rows, columns))


def _checked(spec: Spec, describe: Describe) -> Describe:
    """The same with unit vectors, errors of one line, and no keypoints allowed."""

    def unit(view: Any, keypoints: Keypoints) -> FloatArray:
        try:
            raw = describe(view, keypoints)
        except LogpolarError:
            raise
        except Exception as error:  # onnxruntime's own errors share no base class
            raise spec.error(f"{spec.file}: cannot run the network ({in_one_line(error)})") from error
        if raw.ndim != 2 or len(raw) != len(keypoints):
            raise spec.error(f"{spec.file}: gives shape {raw.shape} for {len(keypoints)} patches, not (count, values)")
        if not np.isfinite(raw).all():
            raise spec.error(f"{spec.file}: the network gives values that are not finite")
        return np.asarray(raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-12), np.float32)

    width = _try_out(spec, unit)

    def describe_any(view: Any, keypoints: Keypoints) -> FloatArray:
        return unit(view, keypoints) if len(keypoints) else np.zeros((0, width), np.float32)

    return describe_any


def _try_out(spec: Spec, describe: Describe) -> int:
    """Values in a descriptor. Batch normalisation that was left in training mode shows here: it mixes the patches."""
    view = np.random.default_rng(0).integers(0, 256, (48, 48), np.uint8)
    keypoints = Keypoints.from_points([[16, 20], [30, 25], [22, 32]], size=[2, 3, 2])  # two would stay opposite
    forward, backward = describe(view, keypoints), describe(view, keypoints[::-1])[::-1]
    if np.abs(forward - backward).max() > 1e-3:
        raise spec.error(f"{spec.file}: descriptors depend on the other patches of the batch (still in training mode?)")
    return int(forward.shape[1])


def _in_chunks(network: Callable[[FloatArray], FloatArray], pattern: Pattern, chunk: int) -> Describe:
    def describe(view: Any, keypoints: Keypoints) -> FloatArray:
        pyramid, parts = ImagePyramid(to_gray(view)), []
        for start in range(0, len(keypoints), chunk):
            patches = pyramid.sample(keypoints[start : start + chunk], pattern)
            filled = np.concatenate([patches, np.repeat(patches[:1], chunk - len(patches), axis=0)])
            found = network(filled)
            # What is not one row per patch stays as it is, for the error to say.
            parts.append(found[: len(patches)] if len(found) == chunk else found)
        return np.concatenate(parts)

    return describe


def _on_cpu(module: nn.Module, settings: Mapping[str, Any]) -> Callable[[FloatArray], FloatArray]:
    import torch

    def network(patches: FloatArray) -> FloatArray:
        with torch.inference_mode():
            return np.asarray(module(prepare(torch.from_numpy(patches), settings)).numpy(), np.float32)

    return network


def describe_on_gpu(network: Callable[[Tensor], Tensor], pattern: Pattern, device: str) -> Describe:
    from logpolar.models.runtimes.torch_device import TorchDescriber

    return describe_views(TorchDescriber(network, pattern, device))


def _onnx_network(spec: Spec, content: bytes) -> tuple[Callable[[Array], FloatArray], int]:
    """The network's first output, and how many patches it takes at a time."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what it has to say is in our own error
    try:
        with TemporaryDirectory() as empty:
            # Weights in a file next to it would not be part of the identity: they must not be found by chance.
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", empty)
            session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own errors share no base class
        raise spec.error(f"{spec.file}: no ONNX network with its weights inside ({in_one_line(error)})") from error
    inputs = session.get_inputs()
    if len(inputs) != 1:
        raise spec.error(f"{spec.file}: the network takes {len(inputs)} inputs, not patches alone")
    count = inputs[0].shape[0] if inputs[0].shape else None

    def network(patches: Array) -> FloatArray:
        return np.asarray(session.run(None, {inputs[0].name: np.ascontiguousarray(patches, np.float32)})[0], np.float32)

    return network, count if isinstance(count, int) and count > 0 else _CHUNK


def _torch_module(spec: Spec, content: bytes, settings: Mapping[str, Any], device: str) -> nn.Module:
    """On the device, in evaluation mode."""
    check_torch(spec, device)
    import torch

    if spec.name != "torchscript":
        return _kornia_module(spec, content, settings).to(device).eval()
    try:
        module: nn.Module = torch.jit.load(io.BytesIO(content), map_location=device)  # type: ignore[no-untyped-call]
    except Exception as error:  # of several kinds, RuntimeError and those of zip files among them
        raise spec.error(f"{spec.file}: no TorchScript network ({in_one_line(error)})") from error
    return module.eval()


def check_torch(spec: Spec, device: str) -> None:
    """Raise unless torch is installed and sees the device."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError(f"{spec.what} '{spec.text}'", "torch") from error
    if device != "cpu" and not torch.cuda.is_available():
        raise spec.error("torch sees no CUDA device")


def _kornia_module(spec: Spec, content: bytes, settings: Mapping[str, Any]) -> nn.Module:
    try:
        from kornia import feature
    except ImportError as error:
        raise MissingExtraError(f"descriptor '{spec.text}'", "baselines") from error
    weights = read_weights(spec, content, spec.file)
    try:
        if spec.name == "mkd":
            return _mkd_module(weights[settings["set"]], settings["size"])
        module: nn.Module = getattr(feature, KORNIA_CLASSES[spec.name])(pretrained=False)
        state = weights.get("state_dict", weights)  # or a whole checkpoint
        module.load_state_dict(_as_tfeat(state) if spec.name in ("tfeat", "hardtfeat") else state)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        what = "whitening of MKD" if spec.name == "mkd" else f"weights of {KORNIA_CLASSES[spec.name]}"
        raise spec.error(f"{spec.file}: not the {what} ({in_one_line(error)})") from error
    return module


def read_weights(spec: Spec, content: bytes, path: str) -> Any:
    """Weights in torch's format, which are never unpickled."""
    import torch

    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds: whatever the pickle's remains lead to
        raise spec.error(f"{path}: torch finds no plain weights in it") from error


def _as_tfeat(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """HardTFeat's weights under the names of TFeat; those of TFeat as they are."""
    if "classifier.1.weight" not in state:
        return state
    # The layers are TFeat's, but the normalisation of the input has no place in the list, the last layer is a
    # convolution over all that is left, and SIFT, which training compared with, is in the file as well. What differs
    # is that the standard deviation was the unbiased one: a factor of 0.9995 on the input.
    return {
        **{f"features.1.{part}": state[f"features.0.{part}"] for part in ("weight", "bias")},
        **{f"features.4.{part}": state[f"features.3.{part}"] for part in ("weight", "bias")},
        "descr.0.weight": state["classifier.1.weight"].flatten(1),
        "descr.0.bias": state["classifier.1.bias"],
    }


def _mkd_module(whitening: Any, size: int) -> nn.Module:
    """MKD with PCA whitening, attenuated, 128 values: kornia's defaults. Its kernels by the size of the whitening.

    kornia would download the whitening that its class applies; here it comes after a descriptor without one.
    """
    from kornia.feature.mkd import MKDDescriptor, Whitening
    from torch import nn

    width = len(whitening["pca"]["mean"])
    without: Any = None  # which kornia's types do not know of
    kernels = MKDDescriptor(patch_size=size, kernel_type=_WHITENING_WIDTHS[width], whitening=without)
    return nn.Sequential(kernels, Whitening("pcawt", whitening, in_dims=width))
