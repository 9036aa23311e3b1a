"""onnxruntime on the CPU: the default, and part of every install."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from logpolar.distributed import cores
from logpolar.errors import ModelError, in_one_line
from logpolar.models.files import Model, Weights
from logpolar.models.runtimes.base import PatchDescriber, check_variant
from logpolar.types import FloatArray


class OnnxruntimeDescriber(PatchDescriber):
    """A model of any precision but bfloat16. ``threads`` = 0 uses all cores.

    Small chunks keep a layer's values in the processor's cache (docs/performance.md).
    """

    def __init__(self, model: Model, chunk: int = 32, threads: int = 0) -> None:
        model.check_graph()
        self.chunk, self.sampling = chunk, model.sampling
        self._session = open_session(f"model '{model.name}'", model.graph, model.weights, threads)
        check_variant(model, self)

    def _run(self, chunks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        for patches in chunks:
            yield np.asarray(self._session.run(None, {"patches": patches})[0], np.float32)


def open_session(what: str, graph: bytes, weights: Weights, threads: int = 0) -> Any:
    """A session that runs a graph with the weights that it lacks; ``what`` is named if onnxruntime refuses it."""
    import onnxruntime  # imported here: it is slow to load

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or cores()
    options.log_severity_level = 3
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(weight) for weight in weights.values()]
    try:
        options.add_external_initializers(list(weights), values)
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no base class
        raise ModelError(f"{what}: onnxruntime cannot load its graph ({in_one_line(error)})") from error
