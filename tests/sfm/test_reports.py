from __future__ import annotations

import json
import shutil

import numpy as np
import pycolmap
import pytest

from colmap_scene import open_few
from logpolar.sfm.mapper import NoModelError, read_report
from logpolar.sfm.pipeline import reconstruct
from logpolar.sfm.reports import explained, write_reports


@pytest.fixture(scope="module")
def reported(scene, tmp_path_factory):
    """A reconstruction of the shared scene, and its reports."""
    output = tmp_path_factory.mktemp("reported") / "model"
    output.mkdir()
    for name in ("features.h5", "matches.h5"):
        shutil.copyfile(scene / name, output / name)
    report = reconstruct(scene / "photos", output, open_few)
    write_reports(scene / "photos", output, report, "logpolar sfm photos model")
    return output, report


def test_report_has_times_versions_command_and_figures(reported):
    output, report = reported
    written = json.loads((output / "report.json").read_text())
    assert list(written["seconds"]) == ["features", "pairs", "matches", "verification", "mapping"]
    assert written["command"] == "logpolar sfm photos model"
    assert written["versions"]["pycolmap"] == pycolmap.__version__
    images = {image["name"]: image for image in written["images"]}
    assert {image.name: image.points for image in report.registered} == {n: i["points"] for n, i in images.items()}
    assert all(image["keypoints"] == 300 and image["not_registered"] == "" for image in images.values())
    assert written["cameras"][0]["width"] == 320
    assert read_report(output) == report, "a second run finds its result"


def test_points_are_those_of_the_model(reported):
    output, report = reported
    content = (output / "points.ply").read_bytes()
    header, _, body = content.partition(b"end_header\n")
    assert f"element vertex {report.points}".encode() in header
    table = np.frombuffer(body, [("xyz", "<f4", 3), ("rgb", "u1", 3)])
    model = pycolmap.Reconstruction(str(output / "sparse" / str(report.model)))
    expected = sorted((*point.xyz.astype(np.float32).tolist(), *point.color) for point in model.points3D.values())
    assert sorted((*row["xyz"].tolist(), *row["rgb"]) for row in table) == expected


def test_a_failed_reconstruction_says_why(reported, scene, tmp_path):
    shutil.copyfile(reported[0] / "database.db", tmp_path / "database.db")
    with (
        pytest.raises(NoModelError, match=r"failed; .*report.html says why"),
        explained(scene / "photos", tmp_path, "logpolar sfm"),
    ):
        raise NoModelError("reconstruction failed")
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["diagnosis"][0]["title"].startswith("No model")
    assert len(written["images"]) == 6
    assert read_report(tmp_path) is None
    assert {"report.html", "summary.png"} <= {path.name for path in tmp_path.iterdir()}
