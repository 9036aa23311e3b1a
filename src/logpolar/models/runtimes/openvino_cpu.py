"""OpenVINO on the CPU: faster than onnxruntime, also in bfloat16 (extra ``openvino``)."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from logpolar.distributed import cores
from logpolar.errors import LogpolarWarning, MissingExtraError, ModelError, in_one_line
from logpolar.models.cards import ModelPrecision
from logpolar.models.files import Model
from logpolar.models.runtimes.base import PatchDescriber, check_variant
from logpolar.models.runtimes.processor import prepare_openvino
from logpolar.types import FloatArray

if TYPE_CHECKING:
    from openvino import InferRequest

_CHUNKS_PER_THREAD = 2
"""One in progress and one waiting, so that no thread waits for Python."""


class UnsafeKernelError(ModelError):
    """A model that would crash the process here."""


class OpenVinoDescriber(PatchDescriber):
    """Describes as many chunks at a time as there are ``threads``, 0 for all cores; ``precision`` None: the model's."""

    def __init__(
        self, model: Model, chunk: int = 64, threads: int = 0, precision: ModelPrecision | None = None
    ) -> None:
        core = _openvino().Core()
        model.check_graph()
        self.chunk, self.sampling = chunk, model.sampling
        threads = threads or cores()
        options = {
            "NUM_STREAMS": threads,
            "INFERENCE_NUM_THREADS": threads,
            # Otherwise the threads of all processes are pinned to the same first cores.
            "ENABLE_CPU_PINNING": False,
            # Whatever an int8 variant does not quantise stays in float32.
            "INFERENCE_PRECISION_HINT": "bf16" if self._uses_bfloat16(model, precision) else "f32",
        }
        rows, columns = model.card.network.rows, model.card.network.columns
        try:
            graph = core.read_model(model.onnx_graph().SerializeToString())
            graph.reshape([chunk, rows, columns])
            compiled = core.compile_model(graph, "CPU", options)
        except Exception as error:  # mostly RuntimeError; google.protobuf's for a damaged graph
            raise ModelError(f"model '{model.name}': OpenVINO cannot load its graph ({in_one_line(error)})") from error
        self._requests = [compiled.create_infer_request() for _ in range(_CHUNKS_PER_THREAD * threads)]
        self._in_use = threading.Lock()
        check_variant(model, self)

    @staticmethod
    def _uses_bfloat16(model: Model, precision: ModelPrecision | None) -> bool:
        """Raises ``UnsafeKernelError`` for int8 where it crashes; falls back to float32 where there is no bfloat16."""
        precision = precision or model.card.precision
        is_safe = prepare_openvino(precision)
        if precision == "int8" and not is_safe:
            raise UnsafeKernelError(f"model '{model.name}': OpenVINO crashes on this processor in int8")
        if precision == "bfloat16" and not (is_safe and has_bfloat16()):
            reason = "this processor has no bfloat16" if is_safe else "OpenVINO crashes on this processor in bfloat16"
            warnings.warn(
                f"{reason}: model '{model.name}' runs in float32, slower",
                LogpolarWarning,
                stacklevel=3,
            )
            return False
        return precision == "bfloat16"

    def _run(self, chunks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        with self._in_use:  # another thread would restart the same requests and take their results
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
        finally:  # a request in progress cannot be started again
            for request, *_ in running:
                request.wait()


def _finished(request: InferRequest, patches: FloatArray, count: int) -> FloatArray:
    """Descriptors of the first ``count`` patches; the request shares ``patches`` until it is done."""
    request.wait()
    return np.array(request.get_output_tensor(0).data[:count], np.float32)


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
