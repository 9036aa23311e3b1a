from __future__ import annotations

import json
import re
import shutil
import sys

import cv2
import numpy as np
import pillow_heif
import pycolmap
import pytest
from click.testing import CliRunner
from PIL import Image
from PIL.TiffImagePlugin import IFDRational

from colmap_databases import query
from helpers import assert_one_error, assert_picture
from logpolar.cli import main
from logpolar.features.files import FeatureFile
from synthetic_world import standard_world

SMALL = ("--model", "logpolar-96-small", "--min-size", "0", "--max-keypoints", "300", "--jobs", "1")
FEW = (*SMALL, "--pairing", "sequential", "--overlap", "3", "--second-look", "none")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Four views and a file that is no photo."""
    place = tmp_path_factory.mktemp("sfm") / "photos"
    place.mkdir()
    world = standard_world(cameras=6)
    for index, camera in enumerate(world.cameras[:4]):
        cv2.imwrite(str(place / f"{index}.png"), world.render(camera)[0])
    (place / "text.jpg").write_text("no photo")
    return place


def run_sfm(*arguments: object):
    return CliRunner().invoke(main, ["sfm", *map(str, arguments)])


def test_a_model_and_its_summary(photos, tmp_path):
    result = run_sfm(photos, tmp_path / "model", *FEW)
    assert result.exit_code == 1, result.output  # a photo was left out
    assert "text.jpg" in result.stderr
    assert "model: 4 of 4 photos registered" in result.stdout
    assert "mean track length" in result.stdout
    assert_picture(tmp_path / "model" / "summary.png")
    again = run_sfm(photos, tmp_path / "model", *FEW)
    assert "database and model are up to date" in again.stdout
    report = json.loads(run_sfm(photos, tmp_path / "model", *FEW, "--json").stdout)
    assert (len(report["registered"]), list(report["left_out"])) == (4, ["text.jpg"])


def test_masks_and_quality(photos, tmp_path):
    """One mask hides half of a photo, one has another size, the others are missing: said, and the rest is done."""
    half = np.full((240, 320), 255, np.uint8)
    half[:, :160] = 0
    (tmp_path / "masks").mkdir()
    for name, mask in (("0.png.png", half), ("1.png.png", half[:10])):
        cv2.imwrite(str(tmp_path / "masks" / name), mask)
    options = ("--quality", "low", "--masks", tmp_path / "masks")
    first = run_sfm(photos, tmp_path / "model", *FEW, *options)
    assert "keypoints of 1 photos dropped" in first.stdout
    result = run_sfm(photos, tmp_path / "model", *FEW, *options, "--quiet")
    assert result.exit_code == 1
    assert "1.png.png: the mask has 320 x 10 pixels, its photo 320 x 240" in result.stderr
    assert "2.png: no mask in" in result.stderr
    assert "left out: " in result.stderr
    assert result.stdout == ""
    with FeatureFile(tmp_path / "model" / "features.h5") as file:
        assert file.read("0.png").keypoints.xy[:, 0].min() > 159
        assert file.read("2.png").keypoints.xy[:, 0].min() < 100
        assert file.settings["max_size"] == 1000


def test_second_looks(photos, tmp_path):
    looks = "--second-look", "same", "--look-at", "all", "--region-size", 300
    result = run_sfm(photos, tmp_path / "model", *FEW[:-3], 1, *looks)
    assert re.search(r"second looks: \d{2,} matches more, of \d pairs", result.stdout)
    assert (tmp_path / "model" / "merged.h5").exists()
    assert "second looks" in json.loads((tmp_path / "model" / "report.json").read_text())["seconds"]
    assert_one_error(run_sfm(photos, tmp_path / "other", "--second-look", "nothing"), "no model 'nothing'")


def test_two_of_many_photos_are_a_failure(photos, tmp_path):
    many = shutil.copytree(photos, tmp_path / "many")
    random = np.random.default_rng(0)
    for number in range(6):
        noise = random.integers(0, 255, (8, 8), dtype=np.uint8)
        cv2.imwrite(str(many / f"noise{number}.png"), noise)
    (tmp_path / "pairs.txt").write_text("0.png 1.png\n")
    few = (*FEW, "--pairs", tmp_path / "pairs.txt")
    result = run_sfm(many, tmp_path / "model", *few, "--min-model-size", 2)
    assert result.exit_code == 1
    assert "reconstruction failed" in result.stderr


def test_mistakes_are_one_line(photos, tmp_path, monkeypatch):
    assert_one_error(run_sfm(tmp_path / "none", tmp_path / "model"), "none: no such folder of photos")
    assert_one_error(run_sfm(photos, photos / "model"), "inside the photos' folder")
    bad = run_sfm(photos, tmp_path / "model", "--camera-params", "1,2")
    assert_one_error(bad, "SIMPLE_RADIAL has 4 parameters (f, cx, cy, k), not 2")
    assert_one_error(run_sfm(photos, tmp_path / "model", "--poses", tmp_path / "none"), "none: no such file")
    (tmp_path / "control.txt").write_text("WGS84\n1 2 3 4 five a.jpg\n")
    geo = "--georegister", "enu"
    wrong = run_sfm(photos, tmp_path / "model", *geo, "--control", tmp_path / "control.txt")
    assert_one_error(wrong, "control.txt: line 2 is not")
    assert_one_error(run_sfm(photos, tmp_path / "model", *geo), "needs 3 photos with GPS positions, not 0")
    assert not (tmp_path / "model").exists()
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    assert_one_error(run_sfm(photos, tmp_path / "model"), "pip install 'logpolar[sfm]'")
    assert not (tmp_path / "model").exists()


def test_photos_of_a_phone(tmp_path):
    """HEIC with GPS positions: converted, paired by distance, and the model in metres."""
    world = standard_world(cameras=6)
    centres = np.array([-camera.rotation.T @ camera.translation for camera in world.cameras[:4]])
    enu = 100 * centres @ np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]]).T
    places = np.array(pycolmap.GPSTransform().enu_to_ellipsoid(enu, 48.5, 9.0, 400.0))
    (tmp_path / "photos").mkdir()
    for number, (latitude, longitude, altitude) in enumerate(places):
        exif = Image.Exif()
        degrees = [(IFDRational(round(angle * 1e8), 10**8), 0, 0) for angle in (latitude, longitude)]
        exif.get_ifd(0x8825).update(
            {1: "N", 3: "E", 6: IFDRational(round(altitude * 1000), 1000), 2: degrees[0], 4: degrees[1]}
        )
        gray = world.views[number][0]
        photo = pillow_heif.from_bytes("RGB", (320, 240), np.repeat(gray[..., None], 3, axis=2).tobytes())
        photo.save(tmp_path / "photos" / f"{number}.heic", quality=95, exif=exif.tobytes())
    (tmp_path / "photos" / "notes.txt").touch()
    options = (*SMALL, "--pairing", "spatial", "--neighbours", 3, "--georegister", "enu", "--camera-mode", "single")
    result = run_sfm(tmp_path / "photos", tmp_path / "model", *options)
    assert result.exit_code == 0, result.output
    assert "4 photos converted to JPEG" in result.stdout
    assert "not read: 1 x .txt" in result.stdout
    record = json.loads((tmp_path / "model" / "georegistered" / "georegistration.json").read_text())
    assert record["gps"]["count"] == 4
    assert record["gps"]["median"] < 0.1 * np.linalg.norm(enu - enu.mean(axis=0), axis=1).max()
    priors = query(tmp_path / "model" / "database.db", "SELECT COUNT(*) FROM pose_priors")
    assert priors == [(4,)]
    (tmp_path / "control.txt").write_text("WGS84\n9.0 48.5 400 1 2 other.jpg p1\n")
    unseen = run_sfm(tmp_path / "photos", tmp_path / "model", *options, "--control", tmp_path / "control.txt")
    assert unseen.exit_code == 1
    assert "no control point is seen by two registered photos" in unseen.stderr
    wrong = run_sfm(tmp_path / "photos", tmp_path / "other", "--georegister", "EPSG:99999")
    assert_one_error(wrong, "EPSG:99999: no such reference system")


def test_frames_of_a_video_share_a_camera(tmp_path):
    world = standard_world(cameras=6)
    writer = cv2.VideoWriter(str(tmp_path / "v.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 10, (320, 240))
    for number in range(20):  # each view stands still for half a second
        writer.write(cv2.cvtColor(world.views[number // 5][0], cv2.COLOR_GRAY2BGR))
    writer.release()
    result = run_sfm(tmp_path / "v.avi", tmp_path / "model", *SMALL, "--fps", 2)
    assert result.exit_code == 0, result.output
    assert "4 frames in" in result.stdout
    assert "4 of 4 photos registered" in result.stdout
    assert query(tmp_path / "model" / "database.db", "SELECT COUNT(*) FROM cameras") == [(1,)]
    result = run_sfm(tmp_path / "v.avi", tmp_path / "other", *SMALL, "--fps", 2, "--camera-mode", "per-image")
    assert query(tmp_path / "other" / "database.db", "SELECT COUNT(*) FROM cameras") == [(4,)], result.output
