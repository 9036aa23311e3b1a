from __future__ import annotations

import cv2  # noqa: F401 - before pycolmap, whose zlib breaks OpenCV's PNG writer otherwise
import numpy as np
import pycolmap
import pytest

from colmap_databases import arrays, write_database
from logpolar.errors import StorageError
from logpolar.sfm.cameras import CameraOptions
from logpolar.sfm.database import Database, quantise
from logpolar.sfm.database_files import read_content
from logpolar.sfm.mapper import MapperOptions, run_mapper


def test_a_synthetic_dataset_is_verified_and_mapped_again(tmp_path):
    """COLMAP's own made-up scene: its matches, without its geometries, through our verification."""
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig, options.num_frames_per_rig = 1, 1, 5
    options.num_points3D = 80
    with pycolmap.Database.open(str(tmp_path / "s.db")) as file:
        pycolmap.synthesize_dataset(options, file)
        file.clear_two_view_geometries()
    with Database(tmp_path / "s.db") as database:
        database.verify(database.pairs())
    content = read_content(tmp_path / "s.db")
    assert (content.pairs, content.verified) == (10, 10)
    assert content.inliers == content.matches == sum(map(len, arrays(tmp_path / "s.db", "matches", "<u4").values()))
    models = run_mapper(tmp_path / "s.db", tmp_path, tmp_path, MapperOptions(min_model_size=3))
    assert models[0].num_reg_images() == 5


def test_quantization_is_the_formula_by_loop():
    values = np.array([[0, 0.25, -0.25, 0.6, -0.6, 0.001, 0.499]], np.float32)
    expected = [min(max(round(128 + 256 * float(value)), 0), 255) for value in values[0]]
    assert quantise(values).tolist() == [expected]
    assert expected[:5] == [128, 192, 64, 255, 0]


def test_older_pycolmap_gets_bytes(scene, tmp_path, monkeypatch):
    """A pycolmap without descriptors of other types, as 3.x: only what is handed to it can be tested here."""
    handed = {}
    monkeypatch.delattr(pycolmap, "FeatureDescriptors")
    with Database(tmp_path / "d.db") as database:
        database.add_photos(scene / "photos", ["0.png"], CameraOptions())

        class Recorder:
            def write_descriptors(self, number, data):
                handed[number] = data

            close = database._file.close

        database._file = Recorder()
        database.write_descriptors("0.png", np.full((3, 128), 0.25, np.float32))
    (data,) = handed.values()
    assert data.dtype == np.uint8
    assert (data == 192).all()


def test_pairs_are_found_by_number(tmp_path):
    write_database(tmp_path / "d.db", "3.11", {"x": None, "y": None, "z": None}, pairs=[(7, 5), (6, 7)])
    with Database(tmp_path / "d.db") as database:
        assert database.pairs() == [("x", "z"), ("y", "z")]


def test_an_error_of_colmap_names_the_file(tmp_path):
    write_database(tmp_path / "d.db", "3.11", {"x": np.ones((1, 2))})
    with (
        pytest.raises(StorageError, match=r"d\.db: COLMAP could not read or write it"),
        Database(tmp_path / "d.db") as database,
    ):
        database.write_matches("x", "x", np.zeros((1, 2), int))
        database.write_matches("x", "x", np.zeros((1, 2), int))
