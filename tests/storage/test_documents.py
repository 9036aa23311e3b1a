from __future__ import annotations

import json
import math
import platform

import cv2
import numpy as np
import pytest

import logpolar
from logpolar.storage.documents import markdown_table, rounded, versions, write_json


@pytest.mark.parametrize(
    ("value", "expected"), [(1 / 3, 0.333), (2, 2), (math.nan, None), (math.inf, None), (-math.inf, None)]
)
def test_rounded(value, expected):
    assert rounded(value, 3) == expected


def test_json(tmp_path):
    write_json(tmp_path / "a.json", {"a": [1, None]})
    assert (tmp_path / "a.json").read_text().endswith("}\n")
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": [1, None]}


def test_markdown():
    assert markdown_table(["a", "b"], [["1", "x|y"]]) == "| a | b |\n| --- | --- |\n| 1 | x/y |\n"


def test_versions():
    expected = {
        "logpolar": logpolar.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "opencv": cv2.__version__,
        "other": "5",
    }
    assert versions("numpy", "no-such-package", other="5") == expected
