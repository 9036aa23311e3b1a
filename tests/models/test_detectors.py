from __future__ import annotations

import tracemalloc
from dataclasses import replace

import cv2
import numpy as np
import onnx
import pytest
import torch

from logpolar.errors import ImageError, ModelError
from logpolar.models import load_model
from logpolar.models.detectors import NetworkDetector, check_image
from logpolar.models.files import load_detector
from logpolar.settings import DEFAULT_MODEL


@pytest.fixture(scope="module")
def detector(detector_file):
    return NetworkDetector(detector_file, 100, threads=1)


def test_keypoints_have_one_size_and_are_the_strongest(detector, gray):
    found = detector(gray[:200, :240])
    assert len(found) == 100
    assert set(found.size.tolist()) == {5.0}
    assert set(found.angle.tolist()) == {0.0}
    assert (np.diff(found.response) <= 0).all()
    more = detector.limited(150)(gray[:200, :240])
    assert np.array_equal(more.xy[:100], found.xy)


def test_tiles_have_no_seams(detector_file, gray):
    image = gray[:301, :410]
    first = NetworkDetector(detector_file, None, threads=1)(image)
    second = NetworkDetector(detector_file, None, threads=1, max_tile=72)(image)
    assert len(first) == len(second) > 1000
    order = [np.lexsort(np.rint(each.xy * 4).T) for each in (first, second)]  # the scores differ in the last bits
    assert np.abs(first.xy[order[0]] - second.xy[order[1]]).max() < 1e-2
    assert np.abs(first.response[order[0]] - second.response[order[1]]).max() < 1e-4
    few = NetworkDetector(detector_file, 200, threads=1, max_tile=72)(image)
    assert np.abs(few.xy - first.xy[:200]).max() < 1e-2


def test_memory_is_that_of_a_tile(detector_file, gray):
    """Whatever the size of the image; arrays of the runtime itself are not seen here."""
    image = np.tile(gray, (3, 3))
    detector = NetworkDetector(detector_file, 100, threads=1, max_tile=256)
    tracemalloc.start()
    found = detector(image)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == 100
    assert peak < image.nbytes / 2


def test_keypoints_move_with_the_image(detector, gray):
    """By multiples of 8 pixels, the step of the network's coarsest layer, away from edges."""
    here, there = (
        detector.limited(1000)(gray[top : top + 250, left : left + 250]).xy for top, left in ((0, 0), (16, 8))
    )
    inner = here[((here > 70) & (here < 180)).all(axis=1)]
    distance = np.linalg.norm(inner[:, None] - (8, 16) - there[None], axis=2).min(axis=1)
    assert len(inner) > 20
    assert np.mean(distance < 0.01) > 0.95


@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (3, 3), (5, 5), (17, 9)])
@pytest.mark.parametrize("orientation", ["upright", "gradient"])
def test_small_images(detector_file, shape, orientation):
    image = np.random.default_rng(0).random(shape).astype(np.float32)
    found = NetworkDetector(detector_file, orientation=orientation, threads=1)(image)
    assert np.isfinite(found.table).all()
    assert ((found.xy >= 0) & (found.xy <= np.array(shape[::-1]) - 1)).all()


def test_the_shipped_detector_finds_the_same_places_again(gray):
    detector = NetworkDetector("logpolar", 300, threads=1)
    rotation = cv2.getRotationMatrix2D((128, 128), 10, 0.8)
    image = cv2.resize(gray, (256, 256), interpolation=cv2.INTER_AREA)
    first, second = detector(image).xy, detector(cv2.warpAffine(image, rotation, (256, 256))).xy
    sent = first @ rotation[:, :2].T + rotation[:, 2]
    inside = sent[((sent > 40) & (sent < 216)).all(axis=1)]
    distance = np.linalg.norm(inside[:, None] - second[None], axis=2).min(axis=1)
    chance = np.linalg.norm(inside[:, None] - second[None] - 9, axis=2).min(axis=1)
    assert len(inside) > 100
    assert np.mean(distance < 2) > 0.6 > 2 * np.mean(chance < 2)


def test_images_without_structure(gray):
    """Nothing is found in blank images and smooth ramps; noise has keypoints, the same each time."""
    detector = NetworkDetector("logpolar", threads=1)
    for value in (0, 0.4, 1):
        assert len(detector(np.full((90, 100), value, np.float32))) == 0
    assert len(detector(np.tile(np.linspace(0, 1, 200, dtype=np.float32), (150, 1)))) == 0
    noise = np.random.default_rng(0).random((80, 90)).astype(np.float32)
    found = detector(noise)
    assert np.isfinite(found.table).all()
    assert np.array_equal(found.xy, detector(noise).xy)


def test_pixels_that_are_not_numbers_are_refused(detector):
    with pytest.raises(ImageError, match="NaN"):
        detector(np.array([[0.0, np.nan]], np.float32))


def test_settings_name_the_model(detector_file, detector):
    assert detector.settings == {
        "name": "NetworkDetector",
        "model": "tiny-detector",
        "model_hash": load_detector(detector_file).digest,
        "size": 5.0,
        "max_keypoints": 100,
        "orientation": "upright",
    }


def test_options_are_checked(detector_file):
    with pytest.raises(ValueError, match="orientation"):
        NetworkDetector(detector_file, orientation="sideways")
    with pytest.raises(ValueError, match="max_tile"):
        NetworkDetector(detector_file, max_tile=100)
    with pytest.raises(ValueError, match="size"):
        NetworkDetector(detector_file, size=float("nan"))


def test_halves_of_a_model_pair_are_not_mixed_up(detector_file):
    with pytest.raises(ModelError, match="is the model of a detector"):
        load_model(detector_file)
    with pytest.raises(ModelError, match="its own keypoints; for given ones use its descriptor 'logpolar-96-upright'"):
        load_model("logpolar-sf")
    with pytest.raises(ModelError, match="no detector"):
        NetworkDetector("nothing-of-that-name")
    with pytest.raises(ModelError, match=f"no detector '{DEFAULT_MODEL}'"):
        NetworkDetector(DEFAULT_MODEL)


def test_the_network_in_torch_has_the_same_scores():
    image = check_image()
    with torch.inference_mode():
        scores = load_detector("logpolar").network()(torch.from_numpy(image)[None])[0]
    np.testing.assert_allclose(scores, NetworkDetector("logpolar").network_scores(image), atol=2e-4)
    with pytest.raises(ModelError, match="use its parent 'logpolar'"):
        load_detector("logpolar-int8").network()


def test_a_graph_that_gives_something_else_is_damaged(detector_file, gray):
    model = load_detector(detector_file)
    for change, words in (("Relu", r"scores of shape \(1, 1, 8, 8\)"), ("Conv", "damaged graph|cannot load")):
        graph = onnx.load_model_from_string(model.graph).graph
        file = onnx.load_model_from_string(model.graph)
        if change == "Relu":  # only a part of the scores
            last = graph.output[0].name
            file.graph.node[-1].output[0] = "all"
            file.graph.initializer.extend(
                onnx.numpy_helper.from_array(np.array(values), name)
                for name, values in (("starts", [0, 0]), ("ends", [8, 8]), ("axes", [2, 3]))
            )
            file.graph.node.append(onnx.helper.make_node("Slice", ["all", "starts", "ends", "axes"], [last]))
        else:
            pads = next(each for each in file.graph.node if each.op_type == "Conv").attribute
            next(each for each in pads if each.name == "pads").ints[:] = [9, 0, 0, 0]
        with pytest.raises(ModelError, match=words):
            NetworkDetector(replace(model, graph=file.SerializeToString()))(gray[:64, :64])
