from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from logpolar.errors import LogpolarError, ModelError
from logpolar.keypoints.detection import SiftDetector
from logpolar.models.cards import ModelCard, Variant
from logpolar.models.describers import open_describer
from logpolar.models.detectors import NetworkDetector
from logpolar.models.files import load_detector
from logpolar.models.quantisation import calibration_patches, make_detector_variant, make_variant, to_int8
from logpolar.models.runtimes.base import check_patches
from logpolar.models.runtimes.onnxruntime_cpu import OnnxruntimeDescriber
from logpolar.models.runtimes.openvino_cpu import OpenVinoDescriber


def onnxruntime(model, patches):
    return OnnxruntimeDescriber(model).describe_patches(patches)


def openvino(model, patches):
    return OpenVinoDescriber(model).describe_patches(patches)


@pytest.fixture(scope="module")
def images(gray):
    return [np.ascontiguousarray(gray[top : top + 100, 100:230]) for top in (0, 90, 180, 270)]


@pytest.fixture(scope="module")
def small_detector(images, tmp_path_factory):
    path = tmp_path_factory.mktemp("variant") / "small-int8.safetensors"
    return make_detector_variant(path, load_detector("logpolar"), images, "a photo")


class TestInt8:
    def test_descriptors_stay_close(self, tiny_model, tiny_int8, tiny_patches):
        expected, found = (onnxruntime(each, tiny_patches[450:]) for each in (tiny_model, tiny_int8))
        cosine = (expected * found).sum(axis=1)
        assert cosine.min() > 0.98
        assert cosine.mean() > 0.997
        assert np.abs(expected - found).max() > 1e-5  # it is another arithmetic

    def test_runtimes_agree(self, tiny_int8, tiny_patches):
        first, second = (
            onnxruntime(tiny_int8, tiny_patches[:40]),
            openvino(tiny_int8, tiny_patches[:40]),
        )
        assert (first * second).sum(axis=1).min() > 0.999

    def test_all_convolutions_but_the_first_have_8_bit_weights(self, tiny_int8):
        graph = onnx.load_model_from_string(tiny_int8.graph)
        count = sum(node.op_type == "Conv" for node in graph.graph.node)
        assert count == 7
        weights = [values for values in tiny_int8.weights.values() if values.ndim == 4]
        assert sorted(values.dtype.name for values in weights) == ["float32", *["int8"] * 6]
        assert not any(node.op_type == "BatchNormalization" for node in graph.graph.node)

    def test_weights_are_rounded_to_the_nearest_step(self, tiny_model, tiny_int8):
        file = tiny_int8.onnx_graph()
        constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in file.graph.initializer}
        variance = tiny_model.weights["head_norm.running_var"].astype(np.float64)
        folded = tiny_model.weights["head.weight"] / np.sqrt(variance + 1e-5).reshape(-1, 1, 1, 1)
        head = {name: values for name, values in constants.items() if "head" in name}
        (stored,) = [values for values in head.values() if values.ndim == 4]
        (scale,) = [values for name, values in head.items() if name.endswith("weight_scale")]
        scale = scale.reshape(-1, 1, 1, 1)
        np.testing.assert_allclose(stored * scale, folded, atol=0.5001 * scale.max())

    def test_the_same_twice(self, tiny_model, tiny_patches):
        first, second = to_int8(tiny_model, tiny_patches), to_int8(tiny_model, tiny_patches)
        assert first[1] == second[1]
        assert all(np.array_equal(values, second[0][name]) for name, values in first[0].items())

    def test_card(self, tiny_model, tiny_int8):
        card = tiny_int8.card
        assert card.name == "tiny-int8"
        assert card.precision == "int8"
        assert (card.variant.parent, card.variant.parent_hash) == ("tiny", tiny_model.digest)
        assert card.variant.calibration == {"patches": 450, "source": "noise"}
        assert card.sampling == tiny_model.card.sampling
        assert list(card.figures) == ["cosine with tiny"]  # nothing that was measured of the parent
        assert 0.99 < card.figures["cosine with tiny"]["average"] < 1
        assert ModelCard.from_json(card.to_json()) == card

    def test_a_variant_of_a_variant(self, tiny_int8, tiny_patches, tmp_path):
        with pytest.raises(ModelError, match="tiny"):
            make_variant(tmp_path / "again.safetensors", tiny_int8, "int8", tiny_patches, "noise")

    def test_torch_does_not_run_it(self, tiny_int8):
        with pytest.raises(ModelError, match="tiny"):
            open_describer(tiny_int8, runtime="torch")


@pytest.fixture(scope="module")
def variant(tiny_model):
    """In bfloat16, on any processor; its check is the parent's."""
    check = OnnxruntimeDescriber(tiny_model).describe_patches(check_patches(8, 16))
    return replace(
        tiny_model, card=replace(tiny_model.card, variant=Variant("bfloat16", "tiny", tiny_model.digest)), check=check
    )


def set_capabilities(monkeypatch, *names: str) -> None:
    """Let OpenVINO say what the processor can do."""
    import openvino

    class Other(openvino.Core):
        def get_property(self, *_):
            return list(names)

    monkeypatch.setattr(openvino, "Core", Other)


class TestBfloat16:
    @pytest.mark.filterwarnings("ignore:this processor has no bfloat16")
    def test_descriptors_stay_close(self, tiny_model, variant, tiny_patches):
        expected, found = (
            onnxruntime(tiny_model, tiny_patches[:50]),
            openvino(variant, tiny_patches[:50]),
        )
        assert (expected * found).sum(axis=1).min() > 0.999

    def test_onnxruntime_refuses(self, variant):
        with pytest.raises(ModelError, match="openvino"):
            open_describer(variant, runtime="onnxruntime")

    def test_making_one(self, tiny_model, tiny_patches, tmp_path, monkeypatch):
        set_capabilities(monkeypatch, "FP32", "BF16")  # one that has not computes in float32 here
        made = make_variant(tmp_path / "made.safetensors", tiny_model, "bfloat16", tiny_patches, "noise")
        assert made.card.precision == "bfloat16"
        assert all(np.array_equal(values, made.weights[name]) for name, values in tiny_model.weights.items())
        assert 0.999 < made.card.figures["cosine with tiny"]["average"] <= 1

    def test_is_not_made_where_it_cannot_be_measured(self, tiny_model, tiny_patches, tmp_path, monkeypatch):
        set_capabilities(monkeypatch, "FP32")
        with pytest.raises(ModelError, match="no bfloat16"):
            make_variant(tmp_path / "made.safetensors", tiny_model, "bfloat16", tiny_patches, "noise")
        assert not list(tmp_path.iterdir())

    def test_a_processor_without_it(self, tiny_model, variant, tiny_patches, monkeypatch):
        set_capabilities(monkeypatch, "FP32")
        with pytest.warns(UserWarning, match="no bfloat16.*float32"):
            describer = OpenVinoDescriber(variant)
        np.testing.assert_allclose(
            describer.describe_patches(tiny_patches[:9]),
            onnxruntime(tiny_model, tiny_patches[:9]),
            atol=1e-5,
        )


class TestCalibration:
    def images(self, gray, count):
        for number in range(count):
            image = np.roll(gray, 30 * number, axis=1)
            yield image, SiftDetector(None)(image)

    def test_64_patches_of_each_image_the_same_each_time(self, tiny_model, gray):
        first, second = (
            calibration_patches(tiny_model, self.images(gray, 5), np.random.default_rng(0)) for _ in range(2)
        )
        assert first.shape == (320, 8, 16)
        np.testing.assert_array_equal(first, second)

    @pytest.mark.parametrize("count", [0, 3])
    def test_too_few(self, tiny_model, gray, count):
        with pytest.raises(LogpolarError, match=f"{64 * count} keypoints are too few"):
            calibration_patches(tiny_model, self.images(gray, count), np.random.default_rng(0))


class TestDetectors:
    def test_it_finds_the_same_keypoints(self, small_detector, images):
        parent, made = (NetworkDetector(each, 100, threads=1)(images[3]).xy for each in ("logpolar", small_detector))
        distance = np.linalg.norm(parent[:, None] - made[None], axis=2).min(axis=1)
        assert np.mean(distance < 0.5) > 0.9
        assert distance.max() > 0  # it is another arithmetic

    def test_card(self, small_detector):
        figures = small_detector.card.figures["keypoints of logpolar"]
        assert figures["images"] == 1
        assert figures["found"] > 0.9
        assert small_detector.card.variant.parent_hash == load_detector("logpolar").digest
        assert sum(values.dtype == np.int8 for values in small_detector.weights.values() if values.ndim == 4) == 11

    def test_other_processors_refuse_it(self, small_detector):
        with pytest.raises(ModelError, match="this processor does not compute int8"):
            NetworkDetector(replace(small_detector, check=small_detector.check + 1))

    def test_what_cannot_be_made(self, small_detector, images, tmp_path):
        with pytest.raises(ModelError, match="is a variant itself"):
            make_detector_variant(tmp_path / "a.safetensors", small_detector, images, "")
        with pytest.raises(LogpolarError, match="too few"):
            make_detector_variant(tmp_path / "a.safetensors", load_detector("logpolar"), images[:3], "")
