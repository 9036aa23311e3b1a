from __future__ import annotations

import sys

import numpy as np
import pytest

from logpolar.errors import MissingExtraError
from logpolar.models.describers import open_describer
from logpolar.models.runtimes.onnxruntime_cpu import OnnxruntimeDescriber
from logpolar.models.runtimes.openvino_cpu import OpenVinoDescriber


def onnxruntime(model, patches):
    return OnnxruntimeDescriber(model).describe_patches(patches)


def openvino(model, patches):
    return OpenVinoDescriber(model).describe_patches(patches)


class TestOpenVino:
    @pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 200])
    def test_like_onnxruntime(self, tiny_model, tiny_patches, count):
        expected, found = (
            onnxruntime(tiny_model, tiny_patches[:count]),
            openvino(tiny_model, tiny_patches[:count]),
        )
        assert found.shape == (count, 128)
        np.testing.assert_allclose(found, expected, atol=1e-5)

    @pytest.mark.parametrize("threads", [1, 3])
    def test_threads_do_not_matter(self, tiny_model, tiny_patches, threads):
        expected = onnxruntime(tiny_model, tiny_patches[:150])
        found = OpenVinoDescriber(tiny_model, chunk=16, threads=threads).describe_patches(tiny_patches[:150])
        np.testing.assert_allclose(found, expected, atol=1e-5)

    def test_not_installed(self, tiny_model, monkeypatch):
        monkeypatch.setitem(sys.modules, "openvino", None)
        with pytest.raises(MissingExtraError, match=r"logpolar\[openvino\]"):
            open_describer(tiny_model, runtime="openvino")
