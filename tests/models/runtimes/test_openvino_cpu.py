from __future__ import annotations

import sys

import numpy as np
import pytest

from logpolar.errors import MissingExtraError
from logpolar.models.describers import open_describer
from logpolar.models.runtimes.onnxruntime_cpu import OnnxruntimeDescriber
from logpolar.models.runtimes.openvino_cpu import OpenVinoDescriber


@pytest.fixture(scope="module")
def model(tiny_model):
    return tiny_model


@pytest.fixture(scope="module")
def patches(tiny_patches):
    return tiny_patches


def onnxruntime(model, patches):
    return OnnxruntimeDescriber(model).describe_patches(patches)


def openvino(model, patches):
    return OpenVinoDescriber(model).describe_patches(patches)


class TestOpenVino:
    @pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 200])
    def test_like_onnxruntime(self, model, patches, count):
        expected, found = (
            onnxruntime(model, patches[:count]),
            openvino(model, patches[:count]),
        )
        assert found.shape == (count, 128)
        np.testing.assert_allclose(found, expected, atol=1e-5)

    @pytest.mark.parametrize("threads", [1, 3])
    def test_threads_do_not_matter(self, model, patches, threads):
        expected = onnxruntime(model, patches[:150])
        found = OpenVinoDescriber(model, chunk=16, threads=threads).describe_patches(patches[:150])
        np.testing.assert_allclose(found, expected, atol=1e-5)

    def test_not_installed(self, model, monkeypatch):
        monkeypatch.setitem(sys.modules, "openvino", None)
        with pytest.raises(MissingExtraError, match=r"logpolar\[openvino\]"):
            open_describer(model, runtime="openvino")
