"""Runtimes: patches in, descriptors out. onnxruntime by default, OpenVINO and torch if they are installed.

Chunks and threads were chosen by measurement (docs/performance.md): small chunks, whose values stay in the processor's
cache, and in OpenVINO one stream of chunks for each thread.
"""

from __future__ import annotations

import threading
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from logpolar.distributed import ahead, cores
from logpolar.errors import LogpolarError, LogpolarWarning, MissingExtraError, ModelError, in_one_line
from logpolar.keypoints import Keypoints
from logpolar.models import Model
from logpolar.models.cards import NetworkOptions
from logpolar.models.processor import prepare_openvino
from logpolar.sampling import ImagePyramid
from logpolar.sampling.patterns import Pattern
from logpolar.settings import DESCRIPTOR_SIZE, RUNTIME_NAMES, DevicePrecision, RuntimeName
from logpolar.types import FloatArray

if TYPE_CHECKING:
    from openvino import InferRequest

CHECK_COUNT = 8
"""Patches that a variant is checked with when it is opened."""

_CHECK_TOLERANCE = 0.02
"""Largest distance to the descriptors that the file of a variant states."""


_CHUNKS_PER_THREAD = 2
"""Of OpenVINO: one that is being described and one that waits, so that no thread has to wait for Python."""


class UnsafeKernelError(ModelError):
    """A model that would crash the process here."""


class Runtime(ABC):
    """Runs a model's network over any number of patches, in chunks of a fixed size."""

    chunk: int
    sampling: Pattern  # of the model

    def describe(self, patches: FloatArray) -> FloatArray:
        """Descriptors (N, 128) of patches (N, rows, columns). They do not depend on what else is in the batch."""
        return self._describe([np.ascontiguousarray(patches, np.float32)])

    def describe_keypoints(self, gray: FloatArray, keypoints: Keypoints) -> FloatArray:
        """Descriptors (N, 128) of keypoints of an image. While the network describes some, the next are cut."""
        keypoints.check()  # in their own order, by which an error numbers them
        order = keypoints.in_bands()
        descriptors = np.empty((len(keypoints), DESCRIPTOR_SIZE), np.float32)
        descriptors[order] = self._describe(ahead(ImagePyramid(gray).batches(keypoints[order], self.sampling)))
        return descriptors

    def _describe(self, batches: Iterable[FloatArray]) -> FloatArray:
        chunks = (batch[start : start + self.chunk] for batch in batches for start in range(0, len(batch), self.chunk))
        return np.concatenate([np.zeros((0, DESCRIPTOR_SIZE), np.float32), *self._run(chunks)])

    @abstractmethod
    def _run(self, chunks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        """Descriptors of chunks, each of at most ``chunk`` patches."""

    def _filled(self, patches: FloatArray) -> FloatArray:
        """A chunk filled up, for those that want every run to have the same shape."""
        padding = ((0, self.chunk - len(patches)), (0, 0), (0, 0))
        return np.asarray(np.pad(patches, padding), np.float32)


class OnnxRuntime(Runtime):
    """onnxruntime on the CPU. ``threads`` = 0 uses all cores."""

    def __init__(self, model: Model, chunk: int = 32, threads: int = 0) -> None:
        import onnxruntime

        if model.card.precision == "bfloat16":
            raise ModelError(
                f"model '{model.name}': onnxruntime has no bfloat16 on a CPU; choose the runtime openvino "
                "(pip install 'logpolar[openvino]')"
            )
        self.chunk, self.sampling = chunk, model.sampling
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(weight) for weight in model.weights.values()]
        try:
            options.add_external_initializers(list(model.weights), values)
            self._session = onnxruntime.InferenceSession(model.graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own errors share no base class
            raise ModelError(
                f"model '{model.name}': onnxruntime cannot load its graph ({in_one_line(error)})"
            ) from error
        described = self._session.get_modelmeta().custom_metadata_map.get("network", "null")
        if not _is_of(described, model.card.network):
            raise ModelError(f"model '{model.name}': its graph is not that of the network its card describes")
        _check_variant(model, self)

    def _run(self, chunks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        for patches in chunks:
            yield np.asarray(self._session.run(None, {"patches": patches})[0], np.float32)


class OpenVinoRuntime(Runtime):
    """OpenVINO on the CPU: as many chunks at a time as there are ``threads``, 0 for all cores."""

    def __init__(self, model: Model, chunk: int = 64, threads: int = 0) -> None:
        core = _openvino().Core()
        from logpolar.models.onnx_graphs import filled_graph

        self.chunk, self.sampling = chunk, model.sampling
        precision = model.card.precision
        is_safe = prepare_openvino(precision)
        if precision == "int8" and not is_safe:
            raise UnsafeKernelError(f"model '{model.name}': OpenVINO crashes on this processor in int8")
        if precision == "bfloat16" and not (is_safe and has_bfloat16()):
            warnings.warn(
                f"this processor has no bfloat16: model '{model.name}' runs in float32, slower, like its parent",
                LogpolarWarning,
                stacklevel=2,
            )
            precision = "float32"
        threads = threads or cores()
        options = {
            "NUM_STREAMS": threads,
            "INFERENCE_NUM_THREADS": threads,
            # Or the threads of all processes would be tied to the same first cores.
            "ENABLE_CPU_PINNING": False,
            # What is not in 8 bit in an int8 variant is float32, as its convention says.
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32",
        }
        rows, columns = model.card.network.rows, model.card.network.columns
        try:
            file = filled_graph(model)
            graph = core.read_model(file.SerializeToString())
            graph.reshape([chunk, rows, columns])
            compiled = core.compile_model(graph, "CPU", options)
        except Exception as error:  # RuntimeError for most, google.protobuf's for a graph that is none
            raise ModelError(f"model '{model.name}': OpenVINO cannot load its graph ({in_one_line(error)})") from error
        if not _is_of(
            {each.key: each.value for each in file.metadata_props}.get("network", "null"), model.card.network
        ):
            raise ModelError(f"model '{model.name}': its graph is not that of the network its card describes")
        self._requests = [compiled.create_infer_request() for _ in range(_CHUNKS_PER_THREAD * threads)]
        self._in_use = threading.Lock()
        _check_variant(model, self)

    def _run(self, chunks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        with self._in_use:  # another thread would start the same requests and take their results for its own
            yield from self._run_alone(chunks)

    def _run_alone(self, chunks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        running: deque[tuple[InferRequest, FloatArray, int]] = deque()
        try:
            for number, patches in enumerate(chunks):
                if len(running) == len(self._requests):
                    yield _finished(*running.popleft())
                request = self._requests[number % len(self._requests)]
                filled = patches if len(patches) == self.chunk else self._filled(patches)
                request.start_async([filled], share_inputs=True)
                running.append((request, filled, len(patches)))
            while running:
                yield _finished(*running.popleft())
        finally:  # a request that is under way could not be started again
            for request, *_ in running:
                request.wait()


class TorchRuntime(Runtime):
    """torch on the CPU; chunks are filled up, so that every run has the same shape.

    ``threads`` other than 0 sets the number of threads of all of torch.
    """

    def __init__(self, model: Model, chunk: int = 256, threads: int = 0) -> None:
        self._torch = _torch()
        if threads:
            self._torch.set_num_threads(threads)
        self.chunk, self.sampling = chunk, model.sampling
        self._network = model.network()

    def _run(self, chunks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        for patches in chunks:
            with self._torch.inference_mode():
                found = self._network(self._torch.from_numpy(self._filled(patches)))
            yield np.asarray(found.numpy()[: len(patches)])


class DeviceRuntime(Runtime):
    """torch on a GPU, where pyramids and patches are made as well: only keypoints go there, only descriptors come back.

    float16, for NVIDIA's, is ten times as fast as float32.
    """

    def __init__(
        self,
        model: Model,
        device: str = "cuda",
        precision: DevicePrecision = "float16",
        chunk: int = 2048,
    ) -> None:
        self._torch = _torch()
        if device.startswith("cuda") and not self._torch.cuda.is_available():
            raise LogpolarError("torch sees no CUDA device; use the runtime 'onnxruntime' or 'torch'")
        from logpolar.models.torch_description import TorchDescriber, network_on

        self.chunk, self.sampling, self._device = chunk, model.sampling, device
        self._network = network_on(model, device, precision)
        self._describer = TorchDescriber(self._network, model.sampling, chunk)

    def describe_keypoints(self, gray: FloatArray, keypoints: Keypoints) -> FloatArray:
        from logpolar.sampling.torch_lookup import TorchPyramids

        keypoints.check()  # on a GPU one that is not finite would end all work there
        pyramids = TorchPyramids([self._torch.from_numpy(np.ascontiguousarray(gray)).to(self._device)])
        table = self._torch.from_numpy(keypoints.table).to(self._device)
        image = self._torch.zeros(len(table), dtype=self._torch.int64, device=self._device)
        return np.asarray(self._describer.describe(pyramids, image, table).cpu().numpy(), np.float32)

    def _run(self, chunks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        for patches in chunks:
            with self._torch.inference_mode():
                found = self._network(self._torch.from_numpy(self._filled(patches)).to(self._device))
            yield found.cpu().numpy()[: len(patches)]


def _finished(request: InferRequest, patches: FloatArray, count: int) -> FloatArray:
    """Descriptors of the first ``count`` of the patches, which the request shares until it has described them."""
    request.wait()
    return np.array(request.get_output_tensor(0).data[:count], np.float32)


def _torch() -> ModuleType:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("the torch runtime", "torch") from error
    return torch


def _openvino() -> Any:
    try:
        import onnx  # noqa: F401 - fills in the weights
        import openvino
    except ImportError as error:
        raise MissingExtraError("the OpenVINO runtime", "openvino") from error
    prepare_openvino("float32")
    return openvino


def has_bfloat16() -> bool:
    """Whether OpenVINO computes in bfloat16 on this processor."""
    return "BF16" in _openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def open_runtime(model: Model, name: RuntimeName = "onnxruntime", threads: int = 0) -> Runtime:
    """The runtime of that name: ``"onnxruntime"``, ``"openvino"``, ``"torch"`` (CPU) or ``"cuda"`` (torch, GPU)."""
    if name == "onnxruntime":
        return OnnxRuntime(model, threads=threads)
    if name == "openvino":
        try:
            return OpenVinoRuntime(model, threads=threads)
        except UnsafeKernelError as error:
            warnings.warn(f"{error}: using onnxruntime, slower", LogpolarWarning, stacklevel=2)
            return OnnxRuntime(model, threads=threads)
    if name == "torch":
        return TorchRuntime(model, threads=threads)
    if name == "cuda":
        return DeviceRuntime(model)
    raise LogpolarError(f"unknown runtime '{name}' (known: {', '.join(RUNTIME_NAMES)})")


def runtime_for(model: Model) -> RuntimeName:
    """The runtime for whoever did not choose: onnxruntime, which is always there, if it can run the model."""
    return "openvino" if model.card.precision == "bfloat16" else "onnxruntime"


def check_patches(rows: int, columns: int) -> FloatArray:
    """Patches (8, rows, columns) of waves and edges, the same on every machine, to check variants with."""
    y, x = np.meshgrid(np.arange(rows) / rows, np.arange(columns) / columns, indexing="ij")
    number = np.arange(CHECK_COUNT)[:, None, None]
    waves = np.sin((2 + number) * np.pi * (x + 2 * y) + number) + np.sin(3 * np.pi * (number * x - y))
    edges = np.sign(np.sin((1 + number) * np.pi * y + 5 * x))
    return np.asarray(0.5 + 0.1 * waves + 0.15 * (number % 2) * edges, np.float32)


def _is_of(described: str, network: NetworkOptions) -> bool:
    """Whether a graph's own words are those of a network."""
    try:
        return NetworkOptions.from_json(described) == network
    except ValueError:
        return False


def _check_variant(model: Model, runtime: Runtime) -> None:
    """Refuse to run a variant whose descriptors come out otherwise than its file says: the figures of its card would
    not hold. Processors without instructions for 8 bit products may let sums overflow, for example."""
    if model.check is None or model.card.variant is None:
        return
    found = runtime.describe(check_patches(model.card.network.rows, model.card.network.columns))
    if found.shape != model.check.shape:
        raise ModelError(f"model '{model.name}': damaged model file: {len(model.check)} descriptors to check it by")
    distance = float(np.linalg.norm(found - model.check, axis=1).max())
    if not distance <= _CHECK_TOLERANCE:
        raise ModelError(
            f"model '{model.name}': this processor does not compute {model.card.precision} as its file says, or the "
            f"file is damaged (off by {distance:.2g}); use '{model.card.variant.parent}' instead"
        )
