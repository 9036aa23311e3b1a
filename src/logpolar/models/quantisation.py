"""Variants of a model in fewer bits: int8, calibrated on patches, and bfloat16 (needs onnx; bfloat16 needs openvino).

Detectors have int8 variants, calibrated on images.

Convention of int8:
    Batch normalisations are folded into their convolutions. Every convolution but the first, whose single input channel
    is the patch itself, takes 8 bit inputs and weights: a value v is stored as round(v / scale) + zero, weights with a
    scale for each output channel and zero = 0, inputs with one scale for the whole tensor in [0, 255]. Sums and biases
    are 32 bit integers. The range of an input is the one of least square error over the calibration patches. All else,
    the unit length included, is float32. Of detectors, sums over resolutions have 8 bit inputs as well, and the last
    convolution is float32.

Convention of bfloat16:
    Graph and weights are those of the model; the runtime computes in bfloat16 where that is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime

from logpolar.errors import LogpolarError, MissingExtraError, ModelError
from logpolar.keypoints import Keypoints
from logpolar.models.cards import ModelPrecision, Variant
from logpolar.models.describers import open_describer
from logpolar.models.detectors import NetworkDetector, check_image, normalise_locally
from logpolar.models.files import DetectorModel, Model, Weights, load_detector, load_model, onnx_graph, save_variant
from logpolar.models.runtimes.base import check_patches
from logpolar.models.runtimes.openvino_cpu import has_bfloat16
from logpolar.sampling import sample_patches
from logpolar.types import FloatArray

try:
    import onnx
    from onnx import helper, numpy_helper
    from onnxruntime.quantization import CalibrationMethod, QDQQuantizer, QuantType
    from onnxruntime.quantization.calibrate import TensorData, TensorsData

    from logpolar.models.export import leave_out
except ImportError as missing:
    raise MissingExtraError("making a variant of a model", "onnx") from missing

_MIN_IMAGES = 4
_COMPARED = 1024
"""Images for the calibration of a detector; keypoints of each on which it is compared with its variant."""

_PER_IMAGE = 64
"""Keypoints drawn from an image for calibration."""

_MIN_PATCHES = 256

_LEVELS = 255
_VALUES = 200_000
"""Values of a tensor, drawn from those of all patches, that its range is fitted to."""

_FRACTIONS = np.geomspace(0.2, 1, 60)
"""Ranges to try, as fractions of the full one."""

_MOVING = {"Slice": slice(0, 1), "Concat": slice(None), "DepthToSpace": slice(0, 1)}
"""Operators that only move values, so that they can move 8 bit ones, and which of their inputs hold them."""

_SMALL = 64
"""Initializers of fewer values stay in the graph."""


def calibration_patches(
    model: Model, images: Iterable[tuple[FloatArray, Keypoints]], random: np.random.Generator
) -> FloatArray:
    """Patches (N, rows, columns) of gray images around 64 of their keypoints each, in a random order."""
    found = [np.zeros((0, model.sampling.rows, model.sampling.columns), np.float32)]
    for gray, keypoints in images:
        found.append(sample_patches(gray, keypoints[random.permutation(len(keypoints))[:_PER_IMAGE]], model.sampling))
    patches = np.concatenate(found)
    if len(patches) < _MIN_PATCHES:
        raise LogpolarError(f"{len(patches)} keypoints are too few to calibrate with; {_MIN_PATCHES} are needed")
    return patches[random.permutation(len(patches))]


def make_variant(path: Path, model: Model, precision: ModelPrecision, patches: FloatArray, source: str) -> Model:
    """Write a variant of a model, calibrated on three quarters of the patches and compared on the rest.

    The variant is named after the file; ``source`` says on its card where the patches come from.
    """
    if model.card.variant:
        raise ModelError(f"model '{model.name}' is a variant itself; name its parent '{model.card.variant.parent}'")
    if precision == "bfloat16" and not has_bfloat16():
        raise ModelError("this processor has no bfloat16 to measure the variant with; make it on one that has")
    seen, unseen = np.split(patches, [3 * len(patches) // 4])
    weights, graph = to_int8(model, seen) if precision == "int8" else (model.weights, model.graph)
    calibration = {"patches": len(seen), "source": source} if precision == "int8" else {}
    card = replace(
        model.card,
        name=path.stem,
        description=f"{model.card.description} In {precision}, made from {model.name}.",
        figures={},
        variant=Variant(precision, model.name, model.digest, calibration),
    )
    describer = open_describer(Model(card, weights, graph, ""))
    cosine = (open_describer(model).describe_patches(unseen) * describer.describe_patches(unseen)).sum(axis=1)
    mean, smallest = round(float(cosine.mean()), 6), round(float(cosine.min()), 6)
    figures = {"patches": len(unseen), "average": mean, "smallest": smallest}
    card = replace(card, figures={f"cosine with {model.name}": figures})
    check = describer.describe_patches(check_patches(card.network.rows, card.network.columns))
    save_variant(path, weights, graph, card, check)
    return load_model(path)


def make_detector_variant(path: Path, model: DetectorModel, images: Sequence[FloatArray], source: str) -> DetectorModel:
    """Write the int8 variant of a detector, calibrated on three quarters of gray images, and compared on the rest."""
    if model.card.variant:
        raise ModelError(f"detector '{model.name}' is a variant itself; name its parent '{model.card.variant.parent}'")
    if len(images) < _MIN_IMAGES:
        raise LogpolarError(f"{len(images)} images are too few to calibrate with; {_MIN_IMAGES} are needed")
    seen, unseen = images[: 3 * len(images) // 4], images[3 * len(images) // 4 :]
    window = model.card.network.window
    even = (each[: len(each) // 8 * 8, : each.shape[1] // 8 * 8] for each in seen)
    weights, graph = _quantised(
        _folded(model), [{"image": normalise_locally(each, window)[None, None]} for each in even if each.size]
    )
    variant = Variant("int8", model.name, model.digest, {"images": len(seen), "source": source})
    words = f"{model.card.description} In int8, made from {model.name}."
    card = replace(model.card, name=path.stem, description=words, figures={}, variant=variant)
    made = NetworkDetector(DetectorModel(card, weights, graph, ""), _COMPARED)
    figures = _agreement(NetworkDetector(model, _COMPARED), made, unseen)
    card = replace(card, figures={f"keypoints of {model.name}": figures})
    save_variant(path, weights, graph, card, made.network_scores(check_image()))
    return load_detector(path)


def _agreement(parent: NetworkDetector, made: NetworkDetector, images: Sequence[FloatArray]) -> dict[str, float]:
    """Fraction of the parent's keypoints that a variant finds within a pixel, and their mean distance."""
    distances = []
    for image in images:
        expected, found = parent(image).xy, made(image).xy
        if len(expected) and len(found):
            distances.append(np.linalg.norm(expected[:, None] - found[None], axis=2).min(axis=1))
    every = np.concatenate([*distances, np.zeros(0)])
    close = every[every <= 1]
    found_again = round(len(close) / max(len(every), 1), 4)
    return {
        "images": len(images),
        "keypoints": len(every),
        "found": found_again,
        "pixels": round(float(close.mean()), 4),
    }


def add_figures(path: Path, figures: dict[str, Any]) -> None:
    """Add measured figures to the card of a variant's file."""
    model = load_model(path)
    assert model.check is not None
    card = replace(model.card, figures={**model.card.figures, **figures})
    save_variant(path, model.weights, model.graph, card, model.check)


def to_int8(model: Model, patches: FloatArray) -> tuple[Weights, bytes]:
    """Weights and graph of the model in int8, its ranges fitted to patches (N, rows, columns), a thousand or more."""
    chunks = np.array_split(patches, max(len(patches) // 64, 1))
    return _quantised(_folded(model), [{"patches": chunk} for chunk in chunks])


def _quantised(file: onnx.ModelProto, feeds: Sequence[Mapping[str, FloatArray]]) -> tuple[Weights, bytes]:
    sizes = {tensor.name: tensor.dims for tensor in file.graph.initializer}
    is_detector = file.graph.output[0].name == "scores"
    sums = [node for node in file.graph.node if node.op_type == "Add" and is_detector]
    convolutions = [node for node in file.graph.node if node.op_type == "Conv" and sizes[node.input[1]][1] > 1]
    chosen = [*convolutions[:-1], *sums] if is_detector else convolutions
    # Inputs of each that become 8 bit: not weights and biases.
    inputs = {node.name: node.input[: 2 if node.op_type == "Add" else 1] for node in chosen}
    makers = {output: node for node in file.graph.node for output in node.output}
    ranges = _fitted_ranges(file, sorted({name for names in inputs.values() for name in names}), feeds)
    # The padding around circular rows gets the range of its convolution: values become 8 bit once, after each ReLU.
    moved = {name: ranges[given] for names in inputs.values() for given in names for name in _moved(given, makers)}
    nodes = [*chosen, *(makers[name] for name in moved if makers[name].op_type in _MOVING)]
    quantiser = QDQQuantizer(
        file,
        per_channel=True,
        reduce_range=False,
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QUInt8,
        tensors_range=TensorsData(CalibrationMethod.MinMax, moved),
        nodes_to_quantize=[node.name for node in nodes],
        nodes_to_exclude=[],
        op_types_to_quantize=["Conv", *(["Add"] if is_detector else []), *_MOVING],
        extra_options={"OpTypesToExcludeOutputQuantization": ["Conv", "Add"]},
    )
    quantiser.quantize_model()
    quantiser.model.topological_sort()  # readers of ONNX may insist on it, onnxruntime does not
    file = quantiser.model.model
    large = [tensor for tensor in file.graph.initializer if np.prod(tensor.dims) >= _SMALL]
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in large}
    for tensor in large:
        leave_out(tensor)
    return weights, bytes(file.SerializeToString())


def _folded(model: Model | DetectorModel) -> onnx.ModelProto:
    """The model's graph with batch normalisations folded into convolutions, by onnxruntime's own optimiser."""
    with TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(Path(folder) / "folded.onnx")
        content = onnx_graph(model).SerializeToString()
        onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        file = onnx.load(options.optimized_model_filepath)
    default = [each for each in file.opset_import if not each.domain]  # onnxruntime lists its own as well
    del file.opset_import[:]
    file.opset_import.extend(default)
    return file


def _moved(name: str, makers: dict[str, onnx.NodeProto]) -> Iterator[str]:
    """A tensor, and those whose values it only moves."""
    yield name
    maker = makers[name]
    if maker.op_type in _MOVING:
        for source in maker.input[_MOVING[maker.op_type]]:
            yield from _moved(source, makers)


def _fitted_ranges(
    file: onnx.ModelProto, names: list[str], feeds: Sequence[Mapping[str, FloatArray]]
) -> dict[str, TensorData]:
    probe = onnx.ModelProto.FromString(file.SerializeToString())
    probe.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    session = onnxruntime.InferenceSession(probe.SerializeToString(), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    found: dict[str, list[FloatArray]] = {name: [] for name in names}
    for feed in feeds:
        for name, values in zip(names, session.run(names, dict(feed)), strict=True):
            found[name].append(random.choice(values.ravel(), min(_VALUES // len(feeds), values.size), replace=False))
    return {name: _fit(np.concatenate(values)) for name, values in found.items()}


def _fit(values: FloatArray) -> TensorData:
    """The range of least square error; it always contains 0, which is then exact."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 1e-6)

    def error(fraction: float) -> float:
        scale = fraction * (high - low) / _LEVELS
        zero = round(-fraction * low / scale)
        steps = np.clip(np.rint(values / scale) + zero, 0, _LEVELS)
        return float(np.square((steps - zero) * scale - values).mean())

    best = min(_FRACTIONS.tolist(), key=error)
    return TensorData(lowest=np.float32(best * low), highest=np.float32(best * high))
