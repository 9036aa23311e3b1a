"""Other people's networks for patches, from a file of weights or of the whole network.

Convention:
    Patches are those of ``sampling.Cartesian``, with intensities from 0 to 1, times ``scale``. Then ``normalise``:
    ``zscore`` gives each patch zero mean and unit standard deviation, ``unit`` divides it by its Euclidean length.
    ``channels`` is the shape that the network takes: ``1`` (count, 1, size, size), ``3`` the same with the gray values
    repeated, ``last`` (count, size, size, 1), ``none`` (count, size, size).
    ONNX files that logpolar wrote, without options, are run on patches of their own sampling.

Files are never unpickled, nothing is ever downloaded. Descriptors are scaled to unit length.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from logpolar.errors import LogpolarError, MissingExtraError, in_one_line
from logpolar.evaluation.descriptors.specs import Spec
from logpolar.evaluation.descriptors.whole_features import unit_rows
from logpolar.keypoints import Keypoints
from logpolar.models.cards import ModelCard
from logpolar.models.describers import Describer, PatchDescriber
from logpolar.sampling import Cartesian
from logpolar.sampling.patterns import Array, Pattern, namespace
from logpolar.types import FloatArray

if TYPE_CHECKING:
    from torch import Tensor, nn

_CHUNK = 64  # patches of a batch on the CPU

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
"""Options of each kind of network and their defaults. ``set``: the training set of MKD's whitening."""

_WHITENING_WIDTHS = {238: "concat", 175: "polar", 63: "cart"}
"""MKD's kernel types by the length of their vectors."""


def settings_of(spec: Spec) -> dict[str, Any]:
    """All that determines a network's input, including what the spec cannot choose."""
    return {**_ANY_NETWORK, **spec.options(NETWORK_OPTIONS[spec.name])}


def open_network(spec: Spec, content: bytes, settings: Mapping[str, Any], device: str) -> Describer:
    """The network in a file's content. ONNX files run on the CPU, whatever the device.

    Runs the network once: raises if it fails, or if descriptors depend on the rest of the batch.
    """
    pattern: Pattern = Cartesian(settings["lambda"], settings["size"], settings["size"], settings["antialias"])
    if spec.name == "onnx":
        run, count, card = _onnx_network(spec, content)
        if card and not spec.given:
            pattern, settings = _own_pattern(spec, card), {**settings, "channels": "none"}
        return _NetworkDescriber(spec, _OnnxDescriber(_prepared(spec, run, settings), pattern, count))
    module = _torch_module(spec, content, settings, device)
    from logpolar.models.runtimes.torch_device import TorchDescriber

    chunk = _CHUNK if device == "cpu" else None
    return _NetworkDescriber(spec, TorchDescriber(_prepared(spec, module, settings), pattern, device, chunk))


def _prepared(spec: Spec, network: Callable[[Array], Array], settings: Mapping[str, Any]) -> Callable[[Array], Array]:
    """The network of patches (N, size, size) in 0 ... 1, numpy or torch, whose output has a vector for each patch."""

    def run(patches: Array) -> Array:
        found = network(prepare(patches, settings))
        if found.ndim != 2 or len(found) != len(patches):
            shape = tuple(found.shape)
            raise spec.error(f"{spec.file}: gives shape {shape} for {len(patches)} patches, not (count, values)")
        return found

    return run


def prepare(patches: Array, settings: Mapping[str, Any]) -> Array:
    """Patches (N, size, size) in 0 ... 1, numpy or torch, as the network takes them, see above."""
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


class _OnnxDescriber(PatchDescriber):
    def __init__(self, network: Callable[[Array], Array], pattern: Pattern, chunk: int) -> None:
        self._network, self.sampling, self.chunk = network, pattern, chunk

    def _run(self, chunks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        return (self._network(self._filled(patches))[: len(patches)] for patches in chunks)


class _NetworkDescriber(Describer):
    """Normalises to unit length, reports errors in one line, and handles zero keypoints."""

    def __init__(self, spec: Spec, describer: PatchDescriber) -> None:
        self._spec, self._describer = spec, describer
        self._width = self._try_out()

    def describe(self, gray: FloatArray, keypoints: Keypoints) -> FloatArray:
        if len(keypoints) == 0:
            return np.zeros((0, self._width), np.float32)
        file = self._spec.file
        try:
            raw = self._describer.describe(gray, keypoints)
        except LogpolarError:
            raise
        except Exception as error:  # onnxruntime's own errors share no base class
            raise self._spec.error(f"{file}: cannot run the network ({in_one_line(error)})") from error
        if not np.isfinite(raw).all():
            raise self._spec.error(f"{file}: the network gives values that are not finite")
        return unit_rows(raw)

    def _try_out(self) -> int:
        """The length of descriptors. Batch normalisation left in training mode shows here: it mixes the patches."""
        gray = np.random.default_rng(0).random((48, 48), np.float32)
        keypoints = Keypoints.from_points([[16, 20], [30, 25], [22, 32]], size=[2, 3, 2])
        together, alone = self.describe(gray, keypoints), self.describe(gray, keypoints[:1])
        if np.abs(together[:1] - alone).max() > 1e-3:
            file = self._spec.file
            raise self._spec.error(f"{file}: descriptors depend on the rest of the batch (still in training mode?)")
        return int(together.shape[1])


def _own_pattern(spec: Spec, card: str) -> Pattern:
    """The sampling on the card of a network that logpolar trained or exported."""
    try:
        return ModelCard.from_json(card).sampling
    except ValueError as error:
        raise spec.error(f"{spec.file}: the card in its metadata is damaged ({error})") from error


def _onnx_network(spec: Spec, content: bytes) -> tuple[Callable[[Array], FloatArray], int, str]:
    """The network's first output, the size of its batches, and its model card, if logpolar wrote the file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # our own error says what it logs
    try:
        with TemporaryDirectory() as empty:
            # External weights are not part of the identity, so they must not be found.
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", empty)
            session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own errors share no base class
        raise spec.error(f"{spec.file}: not an ONNX network with embedded weights ({in_one_line(error)})") from error
    inputs = session.get_inputs()
    if len(inputs) != 1:
        raise spec.error(f"{spec.file}: the network takes {len(inputs)} inputs, not one")
    count = inputs[0].shape[0] if inputs[0].shape else None

    def network(patches: Array) -> FloatArray:
        return np.asarray(session.run(None, {inputs[0].name: np.ascontiguousarray(patches, np.float32)})[0], np.float32)

    card = session.get_modelmeta().custom_metadata_map.get("card", "")
    return network, count if isinstance(count, int) and count > 0 else _CHUNK, card


def _torch_module(spec: Spec, content: bytes, settings: Mapping[str, Any], device: str) -> nn.Module:
    """On the device, in evaluation mode."""
    check_torch(spec, device)
    import torch

    if spec.name != "torchscript":
        return _kornia_module(spec, content, settings).to(device).eval()
    try:
        module: nn.Module = torch.jit.load(io.BytesIO(content), map_location=device)  # type: ignore[no-untyped-call]
    except Exception as error:  # of several kinds, RuntimeError and those of zip files among them
        raise spec.error(f"{spec.file}: not a TorchScript network ({in_one_line(error)})") from error
    return module.eval()


def check_torch(spec: Spec, device: str) -> None:
    """Raise unless torch is installed and sees the device."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError(f"{spec.what} '{spec.text}'", "torch") from error
    if device != "cpu" and not torch.cuda.is_available():
        raise spec.error("torch finds no CUDA device")


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
    """Weights in torch's format, read without unpickling objects."""
    import torch

    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds: whatever the pickle's remains lead to
        raise spec.error(f"{path}: not plain weights in torch's format") from error


def _as_tfeat(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """HardTFeat's weights under the names of TFeat; those of TFeat as they are."""
    if "classifier.1.weight" not in state:
        return state
    # The same layers, but input normalisation is not among them, the last layer is a convolution over the whole map,
    # and the file also holds SIFT. Only the standard deviation differs, being unbiased: a factor of 0.9995.
    return {
        **{f"features.1.{part}": state[f"features.0.{part}"] for part in ("weight", "bias")},
        **{f"features.4.{part}": state[f"features.3.{part}"] for part in ("weight", "bias")},
        "descr.0.weight": state["classifier.1.weight"].flatten(1),
        "descr.0.bias": state["classifier.1.bias"],
    }


def _mkd_module(whitening: Any, size: int) -> nn.Module:
    """MKD with kornia's defaults: attenuated PCA whitening to 128 values, and kernels by the size of the whitening.

    kornia's class would download its whitening: here that of the file is applied to its descriptor without one.
    """
    from kornia.feature.mkd import MKDDescriptor, Whitening
    from torch import nn

    width = len(whitening["pca"]["mean"])
    without: Any = None  # not in kornia's types
    kernels = MKDDescriptor(patch_size=size, kernel_type=_WHITENING_WIDTHS[width], whitening=without)
    return nn.Sequential(kernels, Whitening("pcawt", whitening, in_dims=width))
