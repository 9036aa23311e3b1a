"""onnxruntime on the CPU: the default, and part of every install."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from logpolar.distributed import cores
from logpolar.errors import ModelError, in_one_line
from logpolar.models.files import Model
from logpolar.models.runtimes.base import PatchDescriber, check_variant
from logpolar.types import FloatArray


class OnnxruntimeDescriber(PatchDescriber):
    """A model of any precision but bfloat16. ``threads`` = 0 uses all cores.

    Small chunks keep a layer's values in the processor's cache (docs/performance.md).
    """

    def __init__(self, model: Model, chunk: int = 32, threads: int = 0) -> None:
        import onnxruntime  # imported here: it is slow to load

        model.check_graph()
        self.chunk, self.sampling = chunk, model.sampling
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or cores()
        options.log_severity_level = 3
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(weight) for weight in model.weights.values()]
        try:
            options.add_external_initializers(list(model.weights), values)
            self._session = onnxruntime.InferenceSession(model.graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors share no base class
            raise ModelError(
                f"model '{model.name}': onnxruntime cannot load its graph ({in_one_line(error)})"
            ) from error
        check_variant(model, self)

    def _run(self, chunks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        for patches in chunks:
            yield np.asarray(self._session.run(None, {"patches": patches})[0], np.float32)
