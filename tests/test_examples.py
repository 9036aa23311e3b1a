"""The scripts in examples/ run as they are and find what they should."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def output_of(capsys):
    def run(name):
        runpy.run_path(str(EXAMPLES / name))
        return capsys.readouterr().out

    return run


def test_all_of_them_are_here():
    tested = set(re.findall(r"\w+\.py(?=\")", Path(__file__).read_text()))
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested


def test_two_photos(output_of):
    agree, total, right = map(int, re.findall(r"\d+", output_of("match_two_photos.py")))
    assert agree >= 0.8 * total > 80  # within 3 px of the enlarged view, less than 1 px of its own
    assert right >= 0.9 * total


def test_folder(output_of):
    done, failed, right, total, *_ = map(int, re.findall(r"\d+", output_of("extract_folder.py")))
    assert (done, failed) == (2, 0)
    assert right > 0.9 * total > 100


def test_own_descriptor(output_of):
    ours, shipped = map(float, re.findall(r"rank-1 (\S+)", output_of("own_descriptor.py")))
    assert 0.4 < ours < shipped
    assert shipped > 0.9


def test_kornia(output_of):
    pytest.importorskip("kornia")
    right, total = map(int, re.search(r"(\d+) of (\d+)", output_of("kornia_local_feature.py")).groups())
    assert right > 0.9 * total > 70


def test_opencv(output_of):
    right, total, inliers = map(
        int, re.search(r"(\d+) of (\d+) .* (\d+) are", output_of("opencv_matching.py")).groups()
    )
    assert right > 0.7 * total > 80
    assert inliers > 80


def test_onnx(output_of):
    pytest.importorskip("onnx")
    count, difference = re.search(r"(\d+) descriptors.* (\S+)$", output_of("onnx_end_to_end.py").strip()).groups()
    assert int(count) >= 200
    assert float(difference) < 1e-3
