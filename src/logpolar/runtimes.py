"""Runtimes: patches in, descriptors out. onnxruntime by default, torch on CPU or GPU if it is installed."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from logpolar.defaults import DESCRIPTOR_SIZE, RUNTIME_NAMES, RuntimeName
from logpolar.errors import LogpolarError, MissingExtraError, ModelError
from logpolar.keypoints import FloatArray
from logpolar.models import Model, NetworkOptions


class Runtime(ABC):
    """Runs a model's network over any number of patches, in chunks of a fixed size."""

    chunk: int

    def describe(self, patches: FloatArray) -> FloatArray:
        """Descriptors (N, 128) of patches (N, rows, columns). They do not depend on what else is in the batch."""
        patches = np.ascontiguousarray(patches, np.float32)
        starts = range(0, len(patches), self.chunk)
        parts = [self._run(patches[start : start + self.chunk]) for start in starts]
        return np.concatenate(parts) if parts else np.zeros((0, DESCRIPTOR_SIZE), np.float32)

    @abstractmethod
    def _run(self, patches: FloatArray) -> FloatArray:
        """Descriptors of at most ``chunk`` patches."""


class OnnxRuntime(Runtime):
    """onnxruntime on the CPU. ``threads`` = 0 uses all cores."""

    def __init__(self, model: Model, chunk: int = 32, threads: int = 0) -> None:
        import onnxruntime

        self.chunk = chunk
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(weight) for weight in model.weights.values()]
        try:
            options.add_external_initializers(list(model.weights), values)
            self._session = onnxruntime.InferenceSession(model.graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own errors share no base class
            raise ModelError(f"model '{model.name}': onnxruntime cannot load its graph ({error})") from error
        described = self._session.get_modelmeta().custom_metadata_map.get("network", "null")
        if not _is_of(described, model.card.network):
            raise ModelError(f"model '{model.name}': its graph is not that of the network its card describes")

    def _run(self, patches: FloatArray) -> FloatArray:
        return np.asarray(self._session.run(None, {"patches": patches})[0], np.float32)


def _is_of(described: str, network: NetworkOptions) -> bool:
    """Whether a graph's own words are those of a network."""
    try:
        return NetworkOptions.from_json(described) == network
    except ValueError:
        return False


class TorchRuntime(Runtime):
    """torch on a CPU or a CUDA device; chunks are filled up, so that every run has the same shape.

    ``threads`` other than 0 sets the number of threads of all of torch.
    """

    def __init__(self, model: Model, chunk: int = 256, device: str = "cpu", threads: int = 0) -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingExtraError("the torch runtime", "torch") from error
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise LogpolarError("torch sees no CUDA device; use the runtime 'onnxruntime' or 'torch'")
        if threads:
            torch.set_num_threads(threads)
        self.chunk = chunk
        self._torch = torch
        self._device = torch.device(device)
        self._network = model.network().to(self._device)

    def _run(self, patches: FloatArray) -> FloatArray:
        padding = ((0, self.chunk - len(patches)), (0, 0), (0, 0))
        filled: NDArray[np.float32] = np.pad(patches, padding)
        # Full float32 on the GPU as well: TF32, which torch allows by default, would show in the third digit.
        with self._torch.inference_mode(), self._torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            descriptors = self._network(self._torch.from_numpy(filled).to(self._device))
        return np.asarray(descriptors.cpu().numpy()[: len(patches)], np.float32)


def open_runtime(model: Model, name: RuntimeName = "onnxruntime", threads: int = 0) -> Runtime:
    """The runtime of that name: ``"onnxruntime"``, ``"torch"`` (CPU) or ``"cuda"`` (torch on the GPU)."""
    if name == "onnxruntime":
        return OnnxRuntime(model, threads=threads)
    if name in ("torch", "cuda"):
        return TorchRuntime(model, device="cpu" if name == "torch" else "cuda", threads=threads)
    raise LogpolarError(f"unknown runtime '{name}' (known: {', '.join(RUNTIME_NAMES)})")
