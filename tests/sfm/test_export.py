"""Databases that we write, read back by plain SQL and by COLMAP's mapper."""

from __future__ import annotations

import cv2  # before pycolmap, whose zlib breaks OpenCV's PNG writer otherwise
import h5py
import numpy as np
import pycolmap
import pytest

import hloc_readers
from colmap_databases import arrays, digest, image_numbers, pair_number, query, write_database
from logpolar.errors import StorageError
from logpolar.features.files import FeatureFile
from logpolar.matching.files import MatchFile
from logpolar.sfm import database as database_module
from logpolar.sfm.cameras import CameraOptions
from logpolar.sfm.export import ExportOptions, export_database


@pytest.fixture(scope="module")
def exported(scene, tmp_path_factory):
    """A database of all that the scene has, and the report."""
    output = tmp_path_factory.mktemp("exported") / "database.db"
    return output, export_database(scene / "features.h5", scene / "matches.h5", output, scene / "photos")


@pytest.fixture(scope="module")
def features(scene):
    with FeatureFile(scene / "features.h5") as file:
        return {name: file.read(name) for name in file.names()}


class TestByHand:
    def test_keypoints_have_colmaps_convention(self, exported, features):
        stored, numbers = arrays(exported[0], "keypoints", "<f4"), image_numbers(exported[0])
        assert numbers.keys() == features.keys()
        for name, each in features.items():
            rows = stored[numbers[name]]
            assert rows.shape == (len(each), 4)
            for (x, y, scale, turn), (a, b), size, angle in zip(
                rows, each.keypoints.xy, each.keypoints.size, each.keypoints.angle, strict=True
            ):
                assert (x, y) == pytest.approx((a + 0.5, b + 0.5), abs=1e-4)
                assert scale == pytest.approx(size / 2)
                assert np.degrees(turn) % 360 == pytest.approx(angle, abs=1e-4)

    def test_descriptors_are_the_floats_themselves(self, exported, features):
        stored, numbers = arrays(exported[0], "descriptors", "<f4"), image_numbers(exported[0])
        for name, each in features.items():
            np.testing.assert_array_equal(stored[numbers[name]], each.descriptors)
        assert set(query(exported[0], "SELECT type, cols FROM descriptors")) == {(-1, 512)}

    def test_matches_are_those_of_the_file(self, exported, scene):
        stored, numbers = arrays(exported[0], "matches", "<u4"), image_numbers(exported[0])
        with MatchFile(scene / "matches.h5") as file:
            assert len(file.pairs()) == len(stored) == 15
            for first, second in file.pairs():
                i, j = numbers[first], numbers[second]
                expected = file.read(first, second).indices
                rows = stored[pair_number(i, j)]
                assert sorted(map(tuple, (rows if i < j else rows[:, ::-1]).tolist())) == sorted(
                    map(tuple, expected.tolist())
                )

    def test_inliers_are_among_the_matches(self, exported):
        path, report = exported
        matches, inliers = arrays(path, "matches", "<u4"), arrays(path, "two_view_geometries", "<u4")
        assert matches.keys() == inliers.keys()
        for number, rows in inliers.items():
            assert len(rows) == 0 or len(rows) >= 15, "fewer than COLMAP's least are none"
            assert set(map(tuple, rows.tolist())) <= set(map(tuple, matches[number].tolist()))
        assert report.verified == sum(len(rows) > 0 for rows in inliers.values()) >= 9
        assert report.inliers == sum(map(len, inliers.values()))
        assert report.matches == sum(map(len, matches.values()))

    def test_cameras_have_the_photos_size(self, exported):
        assert set(query(exported[0], "SELECT width, height FROM cameras")) == {(320, 240)}


def test_the_mapper_registers_all_images(exported, scene, tmp_path):
    options = pycolmap.IncrementalPipelineOptions()
    options.min_model_size = 3
    models = pycolmap.incremental_mapping(str(exported[0]), str(scene / "photos"), str(tmp_path), options)
    best = max(models.values(), key=lambda model: model.num_reg_images())
    assert best.num_reg_images() == 6
    assert best.compute_mean_reprojection_error() < 1


class TestCameras:
    @pytest.mark.parametrize(("mode", "count"), [("single", 1), ("per-folder", 2), ("per-image", 6)])
    def test_modes(self, scene, tmp_path, mode, count):
        options = ExportOptions(CameraOptions(mode))
        export_database(scene / "features.h5", None, tmp_path / "d.db", scene / "photos", options=options)
        assert len(query(tmp_path / "d.db", "SELECT * FROM cameras")) == count
        assert query(tmp_path / "d.db", "SELECT * FROM matches") == []

    @pytest.mark.parametrize("scheme", ["3.8", "3.11", "now"])
    def test_of_another_database_are_kept(self, scene, features, tmp_path, scheme):
        old = dict.fromkeys(reversed(list(features)), np.ones((2, 4)))
        given = write_database(tmp_path / "given.db", scheme, old, (320, 240), [(5, 6)])
        before = digest(given)
        report = export_database(scene / "features.h5", scene / "matches.h5", tmp_path / "d.db", cameras=given)
        assert digest(given) == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["d.db", "given.db"]
        columns = "camera_id, model, width, height, params, prior_focal_length"
        for sql in (f"SELECT {columns} FROM cameras", "SELECT image_id, name, camera_id FROM images"):
            assert query(given, sql) == query(tmp_path / "d.db", sql)
        assert report.verified >= 9
        assert len(query(tmp_path / "d.db", "SELECT * FROM matches")) == 15


class TestOfHloc:
    def test_positions_alone(self, scene, tmp_path):
        hloc_readers.write_features(tmp_path / "f.h5", "0.png", [[3, 4]], np.eye(1, 64), (320, 240))
        report = export_database(tmp_path / "f.h5", None, tmp_path / "d.db", scene / "photos")
        assert report.columns == 2
        ((rows,),) = [arrays(tmp_path / "d.db", "keypoints", "<f4").values()]
        assert rows.tolist() == [[3.5, 4.5]]

    def test_no_keypoints_at_all(self, scene, tmp_path):
        for name in ("0.png", "1.png"):
            hloc_readers.write_features(
                tmp_path / "f.h5", name, np.zeros((0, 2)), np.zeros((0, 64)), (320, 240), scales=[], oris=[]
            )
        hloc_readers.write_matches(tmp_path / "m.h5", "0.png", "1.png", [])
        report = export_database(tmp_path / "f.h5", tmp_path / "m.h5", tmp_path / "d.db", scene / "photos")
        assert (report.keypoints, report.pairs, report.verified) == (0, 1, 0)


class TestRefusals:
    def assert_refused(self, scene, output, words, **changes):
        arguments = {"features": scene / "features.h5", "matches": scene / "matches.h5", "photos": scene / "photos"}
        with pytest.raises(StorageError, match=words):
            export_database(**{**arguments, "output": output, **changes})
        assert not list(output.parent.glob(".*")), "no half of a database is left"

    def test_photos_are_missing(self, scene, tmp_path):
        (tmp_path / "photos").mkdir()
        cv2.imwrite(str(tmp_path / "photos" / "0.png"), np.zeros((240, 320), np.uint8))
        words = r"5 of 6 images .* not there: 1\.png, 2\.png, 3\.png, \.\.\."
        self.assert_refused(scene, tmp_path / "d.db", words, photos=tmp_path / "photos")
        self.assert_refused(scene, tmp_path / "d.db", "no such folder", photos=tmp_path / "none")

    def test_photos_of_another_size(self, scene, tmp_path):
        with h5py.File(scene / "features.h5") as file:
            names = [name for name in file if name.endswith("png")]
        (tmp_path / "photos" / "deep").mkdir(parents=True)
        for name in (*names, "deep/5.png"):
            cv2.imwrite(str(tmp_path / "photos" / name), np.zeros((120, 160), np.uint8))
        words = "0.png: the image has 320 x 240 pixels, but its camera 160 x 120"
        self.assert_refused(scene, tmp_path / "d.db", words, photos=tmp_path / "photos")

    def test_images_are_not_in_the_database_of_cameras(self, scene, tmp_path):
        given = write_database(tmp_path / "given.db", "3.11", {"0.png": None})
        self.assert_refused(scene, tmp_path / "d.db", "5 of 6 images", photos=None, cameras=given)

    def test_matches_of_other_features(self, scene, tmp_path):
        hloc_readers.write_matches(tmp_path / "m.h5", "0.png", "1.png", [9999])
        self.assert_refused(scene, tmp_path / "d.db", "'0.png' and '1.png': .*another file", matches=tmp_path / "m.h5")

    def test_an_existing_output(self, scene, tmp_path):
        (tmp_path / "d.db").write_text("my diary")
        self.assert_refused(scene, tmp_path / "d.db", "exists already")
        self.assert_refused(scene, tmp_path / "d.db", "not a COLMAP database", overwrite=True)
        assert (tmp_path / "d.db").read_text() == "my diary"


def test_overwriting_and_a_failure_in_between(scene, tmp_path, monkeypatch):
    output = write_database(tmp_path / "d.db", "3.11", {"old.png": None})
    before = digest(output)

    def fail(*arguments):
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(database_module.Database, "write_descriptors", fail)
        with pytest.raises(StorageError, match="disk is full"):
            export_database(scene / "features.h5", None, output, scene / "photos", overwrite=True)
    assert digest(output) == before
    assert [path.name for path in tmp_path.iterdir()] == ["d.db"]
    export_database(scene / "features.h5", None, output, scene / "photos", overwrite=True)
    assert len(image_numbers(output)) == 6
