"""A model with known cameras, placed on the Earth by a similarity that the alignment has to find."""

from __future__ import annotations

import json

import numpy as np
import pycolmap
import pyproj
import pytest

from logpolar.errors import LogpolarError, StorageError
from logpolar.sfm import georegistration
from logpolar.sfm.georegistration import check_systems, georegister, read_control, read_positions
from synthetic_world import standard_world, write_workspace

NAMES = [f"view{index}.png" for index in range(6)]
ORIGIN = 48.5, 9.0, 400.0
TURN = np.array([[0, 0, 1.0], [-1, 0, 0], [0, -1, 0]])


def on_earth(points):
    """Latitude, longitude, altitude by COLMAP: east, north and up are 20 times as long, in other directions."""
    enu = 20 * np.atleast_2d(points) @ TURN.T
    return np.array(pycolmap.GPSTransform().enu_to_ellipsoid(enu, *ORIGIN))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    place = tmp_path_factory.mktemp("world")
    write_workspace(standard_world(cameras=6), place)
    centres = np.array([-c.rotation.T @ c.translation for c in standard_world(cameras=6).cameras])
    return place / "sparse", dict(zip(NAMES, map(tuple, on_earth(centres)), strict=True))


def centres_of(folder):
    model = pycolmap.Reconstruction(str(folder))
    return np.array([model.find_image_with_name(name).projection_center() for name in NAMES])


def test_enu(world, tmp_path):
    model, positions = world
    record = georegister(model, tmp_path / "out", positions, "enu")
    assert (record.system, record.offset, record.gps.count) == ("ENU", (0, 0, 0), 6)
    assert record.scale == pytest.approx(20, rel=1e-4)
    assert record.gps.median < 0.01
    places = np.array(list(positions.values()))
    truth = np.array(pycolmap.GPSTransform().ellipsoid_to_enu(places, *places.mean(axis=0)[:2], places.mean(axis=0)[2]))
    assert np.abs(centres_of(tmp_path / "out") - truth).max() < 0.01
    assert json.loads((tmp_path / "out" / "georegistration.json").read_text())["origin"] == list(record.origin)


def test_epsg_with_control_points(world, tmp_path):
    model, positions = world
    cameras = standard_world(cameras=6).cameras
    points = np.array([[0.2, -0.3, 0.1], [-0.5, -0.8, 0.2]])
    lines = ["WGS84"]
    for number, (point, (latitude, longitude, altitude)) in enumerate(zip(points, on_earth(points), strict=True)):
        for name, camera in zip(NAMES[:3], cameras, strict=False):
            x, y = camera.project(point[None])[0][0] + 0.5
            place = f"{longitude:.10f} {latitude:.10f} {altitude + 0.5 * number:.6f}"
            lines.append(f"{place} {x:.6f} {y:.6f} {name} p{number}")
    (tmp_path / "control.txt").write_text("\n".join(lines))
    record = georegister(model, tmp_path / "out", positions, "EPSG:32632", tmp_path / "control.txt")
    project = pyproj.Transformer.from_crs("EPSG:4326", "EPSG:32632", always_xy=True)
    truth = np.array([(*project.transform(b, a), c) for a, b, c in positions.values()])
    assert np.abs(centres_of(tmp_path / "out") + record.offset - truth).max() < 0.02
    assert (record.control.count, record.control.worst) == (2, "p1")
    assert record.control.largest == pytest.approx(0.5, abs=0.05)
    assert record.control.east < 0.05


def test_refusals(world, tmp_path):
    model, positions = world
    with pytest.raises(LogpolarError, match="EPSG:99999: no such reference system"):
        check_systems("EPSG:99999")
    with pytest.raises(LogpolarError, match="'nowhere': no such reference system"):
        check_systems("nowhere")
    with pytest.raises(LogpolarError, match="needs 3 registered photos with GPS positions, not 2"):
        georegister(model, tmp_path / "out", dict(list(positions.items())[:2]), "enu")
    for text, words in (
        ("WGS84\n1 2 3 4 five a.jpg\n", "line 2 is not"),
        ("WGS84\n1 2 3 nan 5 a.jpg\n", "line 2 is not"),
        ("WGS84\n1e400 2 3 4 5 a.jpg p\n", "line 2 is not"),
        ("WGS84\n", "no control points"),
        ("", "no such reference system"),
        ("+proj=vgridshift +grids=/etc/passwd\n1 2 3 4 5 a.jpg p\n", "no such reference system"),
        ("[" * 10_000 + "\n1 2 3 4 5 a.jpg p\n", "no such reference system"),
    ):
        (tmp_path / "c.txt").write_text(text)
        with pytest.raises(LogpolarError, match=words):
            read_control(tmp_path / "c.txt")
    (tmp_path / "c.txt").write_text("WGS84\n1 2 3 4 5 other.jpg p\n")
    with pytest.raises(LogpolarError, match="no control point is seen by two"):
        georegister(model, tmp_path / "out", positions, "enu", tmp_path / "c.txt")
    assert (tmp_path / "out" / "georegistration.json").is_file()  # all the same
    check_systems("EPSG:32632", tmp_path / "c.txt")
    (tmp_path / "c.txt").write_text("EPSG:99999\n1 2 3 4 5 other.jpg p\n")
    for system in ("enu", "EPSG:32632"):
        with pytest.raises(LogpolarError, match="EPSG:99999: no such reference system"):
            check_systems(system, tmp_path / "c.txt")
    with pytest.raises(LogpolarError, match="no such file"):
        check_systems("enu", tmp_path / "none.txt")


def test_control_points_that_no_rays_meet_in_are_left_out(world, tmp_path):
    """The same photo twice, and pixels outside of the photo."""
    model, positions = world
    lines = ["ENU", *2 * ["1 2 3 30 40 view0.png p"], "4 5 6 1e300 4 view0.png q", "4 5 6 1 -1e300 view1.png q"]
    (tmp_path / "c.txt").write_text("\n".join(lines))
    with pytest.raises(LogpolarError, match="no control point is seen by two"):
        georegister(model, tmp_path / "out", positions, "enu", tmp_path / "c.txt")


def test_an_earlier_model_stays_until_the_new_one_is_complete(world, tmp_path, monkeypatch):
    model, positions = world
    georegister(model, tmp_path / "out", positions, "enu")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def full(place):
        raise StorageError(f"{place}: truncated")

    with monkeypatch.context() as patched:
        patched.setattr(georegistration, "check_complete", full)
        with pytest.raises(StorageError):
            georegister(model, tmp_path / "out", positions, "EPSG:32632")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    georegister(model, tmp_path / "out", positions, "EPSG:32632")
    assert json.loads((tmp_path / "out" / "georegistration.json").read_text())["system"] == "EPSG:32632"


def test_positions_of_photos(tmp_path):
    said = []
    (tmp_path / "a.jpg").write_text("no photo")
    assert read_positions(tmp_path, ["a.jpg", "none.jpg"], said.append) == {}
    assert len(said) <= 2
