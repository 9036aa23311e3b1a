from __future__ import annotations

import cv2
import numpy as np
import pytest

from hpatches_folders import write_sequence
from logpolar.errors import LogpolarError
from logpolar.evaluation.detector_pairs import read_pairs
from logpolar.evaluation.detectors import measure
from logpolar.evaluation.options import DetectorsOptions, RunOptions
from logpolar.evaluation.protocol import evaluate
from synthetic_world import write_workspace


@pytest.fixture(scope="module")
def sequences(photo, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hpatches")
    write_sequence(folder / "v_test", photo)
    return folder


@pytest.fixture(scope="module")
def listing(photo, tmp_path_factory):
    folder = tmp_path_factory.mktemp("webcams")
    view = cv2.resize(photo, (200, 160), interpolation=cv2.INTER_AREA)
    cv2.imwrite(str(folder / "day.png"), view)
    cv2.imwrite(str(folder / "night.png"), (view * 0.4).astype(np.uint8))
    (folder / "pairs.txt").write_text("day.png night.png\n")
    return folder / "pairs.txt"


def test_the_same_places_are_found_again(listing):
    (pair,) = read_pairs(listing, DetectorsOptions())
    xy = np.random.default_rng(0).uniform(10, 150, (40, 2)).astype(np.float32)
    score = measure(pair, xy, xy, 3)
    assert (score.repeatability, score.counted, score.error) == (1, 80, 0)
    moved = measure(pair, xy, xy + np.float32(1.2 / np.sqrt(2)), 3)
    assert moved.error < 1.21
    far = np.stack([np.full(5, 190.0), np.arange(5.0)], axis=1).astype(np.float32)
    assert measure(pair, xy, far, 3).repeatability == 0


def test_a_zoom_reduces_the_second_image(listing):
    (pair,) = read_pairs(listing, DetectorsOptions(zoom=2))
    assert pair.second.read().shape == (80, 100)
    xy = np.array([[99.5, 79.5], [20.0, 31.0]], np.float32)
    sent, known = pair.forward(xy)
    assert sent == pytest.approx((xy + 0.5) / 2 - 0.5)
    assert known.all()
    # 1 px in the small image is 2 px in the large one: the geometric mean.
    score = measure(pair, xy, (sent + np.array([1, 0])).astype(np.float32), 3)
    assert score.error == pytest.approx(np.sqrt(2), abs=1e-4)


def test_homographies_of_sequences(sequences, photo):
    pairs = read_pairs(sequences, DetectorsOptions(pairs=2, seed=1))
    assert len(pairs) == 2
    xy = np.array([[120.0, 100.0]], np.float32)
    for pair in pairs:
        sent, _ = pair.forward(xy)
        back, _ = pair.backward(sent.astype(np.float32))
        assert back == pytest.approx(xy, abs=1e-3)


def test_depth_of_workspaces(posed_world, tmp_path):
    folder = tmp_path / "scene"
    write_workspace(posed_world, folder)
    pairs = read_pairs(folder, DetectorsOptions(pairs=3))
    y, x = np.mgrid[10:110:8, 10:150:8]
    xy = np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float32)
    for pair in pairs:
        sent, known = pair.forward(xy)
        back, again = pair.backward(sent.astype(np.float32))
        both = known & again
        assert both.mean() > 0.2
        assert np.median(np.linalg.norm(back[both] - xy[both], axis=1)) < 1


def test_the_protocol_writes_a_table_of_detectors(sequences, listing, tmp_path, detector_file):
    specs = ("sift", "opencv:ORB", f"logpolar:{detector_file}")
    results = evaluate(
        "detectors", RunOptions(specs, tmp_path), paths=[sequences, listing], options=DetectorsOptions(keypoints=200)
    )
    text = results.markdown()
    assert text.startswith("| detector |")
    assert len(results.rows["sift"]) == 3  # each set, and the mean
    sift = results.results["sift"]
    assert 0.4 < sift[sequences.name]["repeatability"] <= 1
    assert sift["mean"]["repeatability"] == pytest.approx(
        (sift[sequences.name]["repeatability"] + sift["pairs"]["repeatability"]) / 2, abs=1e-3
    )
    assert {"detectors.json", "detectors.md", "detectors.csv"} <= set(results.written)


def test_user_errors(listing, tmp_path):
    run = RunOptions(("logpolar:nothing.safetensors",), tmp_path)
    with pytest.raises(LogpolarError, match=r"no detector 'nothing\.safetensors'"):
        evaluate("detectors", run, paths=[listing], options=DetectorsOptions())
