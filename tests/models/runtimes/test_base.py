from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from logpolar.errors import ModelError
from logpolar.models import Model
from logpolar.models.runtimes.base import check_patches
from logpolar.models.runtimes.onnxruntime_cpu import OnnxruntimeDescriber
from logpolar.models.runtimes.openvino_cpu import OpenVinoDescriber


class TestCheck:
    def test_other_results_are_refused(self, tiny_int8):
        wrong = Model(
            tiny_int8.card, tiny_int8.weights, tiny_int8.graph, tiny_int8.digest, np.roll(tiny_int8.check, 1, axis=1)
        )
        for kind in (OnnxruntimeDescriber, OpenVinoDescriber):
            with pytest.raises(ModelError, match=r"does not compute int8.*'tiny'"):
                kind(wrong)

    @pytest.mark.parametrize("shape", [(0, 128), (1, 128), (8, 64)])
    def test_descriptors_of_another_shape_are_refused(self, tiny_int8, shape):
        for kind in (OnnxruntimeDescriber, OpenVinoDescriber):
            with pytest.raises(ModelError, match="damaged"):
                kind(replace(tiny_int8, check=np.zeros(shape, np.float32)))

    def test_damaged_weights_are_refused(self, tiny_int8):
        weights = {
            name: np.zeros_like(values) if "head" in name else values for name, values in tiny_int8.weights.items()
        }
        for kind in (OnnxruntimeDescriber, OpenVinoDescriber):
            with pytest.raises(ModelError, match=r"damaged.*'tiny'"):
                kind(replace(tiny_int8, weights=weights))

    def test_a_graph_that_cannot_be_loaded_is_told_in_one_line(self, tiny_int8):
        file = onnx.load_model_from_string(tiny_int8.graph)
        next(node for node in file.graph.node if node.op_type == "Relu").op_type = "Concat"
        for kind in (OnnxruntimeDescriber, OpenVinoDescriber):
            with pytest.raises(ModelError, match="cannot load its graph") as caught:
                kind(replace(tiny_int8, graph=file.SerializeToString()))
            assert len(str(caught.value).splitlines()) == 1
            assert len(str(caught.value)) < 300

    def test_patches_differ(self):
        flat = check_patches(8, 16).reshape(8, -1)
        assert flat.dtype == np.float32
        assert flat.min() > 0
        assert flat.max() < 1.2
        assert np.corrcoef(flat)[~np.eye(8, dtype=bool)].max() < 0.99
