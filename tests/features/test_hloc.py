from __future__ import annotations

import h5py
import numpy as np
import pytest

import hloc_readers
from feature_files import NAMES, make_features, write_feature_file
from logpolar.errors import StorageError
from logpolar.features.collections import open_features
from logpolar.features.files import FeatureFile
from logpolar.features.hloc import HlocFeatureFile
from logpolar.keypoints import DEFAULT_SIZE
from logpolar.matching.batch import match_pairs


@pytest.fixture
def ours(tmp_path):
    return write_feature_file(tmp_path / "features.h5")


class TestOursInHloc:
    def test_images_are_listed(self, ours):
        assert hloc_readers.names_of(ours) == set(NAMES)

    def test_keypoints_are_exact(self, ours):
        xy, uncertainty = hloc_readers.keypoints_of(ours, "deep/b.jpg")
        np.testing.assert_array_equal(xy, make_features(1).keypoints.xy)
        assert uncertainty > 0

    def test_a_matcher_gets_what_it_needs(self, ours):
        found = hloc_readers.matcher_input(ours, "a.jpg")
        expected = make_features(0)
        assert found["keypoints"].shape == (len(expected), 2)
        np.testing.assert_array_equal(found["descriptors"].T, expected.descriptors)
        assert found["scores"].shape == (len(expected),)
        assert found["shape"].tolist() == [1, 480, 640]

    def test_matches_in_both_directions(self, ours, tmp_path):
        match_pairs(ours, tmp_path / "m.h5", [("deep/b.jpg", "a.jpg")])
        rows, scores = hloc_readers.matches_of(tmp_path / "m.h5", "deep/b.jpg", "a.jpg")
        turned, _ = hloc_readers.matches_of(tmp_path / "m.h5", "a.jpg", "deep/b.jpg")
        # The same scene, in another order of rows: see feature_files.
        expected = {(row, make_features(0).order.index(point)) for row, point in enumerate(make_features(1).order)}
        assert set(map(tuple, rows.tolist())) == expected
        assert set(map(tuple, turned[:, ::-1].tolist())) == expected
        assert ((scores > 0) & (scores <= 1)).all()

    def test_pairs_are_listed(self, ours, tmp_path):
        match_pairs(ours, tmp_path / "m.h5", [("deep/b.jpg", "a.jpg")])
        assert hloc_readers.names_of(tmp_path / "m.h5") == {"deep-b.jpg/a.jpg"}


class TestHlocInOurs:
    def test_sift_has_everything(self, tmp_path):
        xy, descriptors = np.array([[10, 20.5], [30, 7]]), np.eye(2, 128)
        more = {"scales": [1.5, 4], "oris": [-90, 45]}
        hloc_readers.write_features(tmp_path / "f.h5", "db/1.jpg", xy, descriptors, (640, 480), **more)
        with open_features(tmp_path / "f.h5") as file:
            assert isinstance(file, HlocFeatureFile)
            assert file.missing == []
            assert file.names() == ["db/1.jpg"]
            found = file.read("db/1.jpg")
        np.testing.assert_array_equal(found.keypoints.xy, xy)
        assert found.keypoints.size.tolist() == [3, 8]  # sigma to diameter
        assert found.keypoints.angle.tolist() == [270, 45]
        np.testing.assert_array_equal(found.descriptors, descriptors)
        assert found.descriptors.dtype == np.float32
        assert found.image_size == (640, 480)

    def test_others_lack_size_and_angle(self, tmp_path):
        hloc_readers.write_features(tmp_path / "f.h5", "1.jpg", [[1, 2]], np.eye(1, 256), (9, 8), half=False)
        with open_features(tmp_path / "f.h5") as file:
            assert file.missing == ["size", "angle"]
            found = file.read("1.jpg")
        assert found.keypoints.size.tolist() == [DEFAULT_SIZE]
        assert found.keypoints.angle.tolist() == [0]
        assert found.descriptors.shape == (1, 256)

    def test_images_without_keypoints(self, tmp_path):
        hloc_readers.write_features(tmp_path / "f.h5", "1.jpg", np.zeros((0, 2)), np.zeros((0, 128)), (9, 8))
        with open_features(tmp_path / "f.h5") as file:
            assert len(file.read("1.jpg")) == 0

    def test_ours_is_not_taken_for_theirs(self, ours):
        with open_features(ours) as file:
            assert type(file) is FeatureFile

    @pytest.mark.parametrize("key", ["descriptors", "image_size"])
    def test_what_is_missing_is_named(self, tmp_path, key):
        hloc_readers.write_features(tmp_path / "f.h5", "1.jpg", [[1, 2]], np.eye(1, 128), (9, 8))
        with h5py.File(tmp_path / "f.h5", "a") as file:
            del file["1.jpg"][key]
        with open_features(tmp_path / "f.h5") as file, pytest.raises(StorageError, match=f"1.jpg/{key}: is missing"):
            file.read("1.jpg")

    def test_shapes_that_do_not_fit(self, tmp_path):
        hloc_readers.write_features(tmp_path / "f.h5", "1.jpg", [[1, 2]], np.eye(3, 128), (9, 8))
        with (
            open_features(tmp_path / "f.h5") as file,
            pytest.raises(StorageError, match=r"shape \(128, 3\), not \(D, N\)"),
        ):
            file.read("1.jpg")

    def test_another_hdf5_file_is_refused(self, tmp_path):
        with h5py.File(tmp_path / "f.h5", "w") as file:
            file.create_dataset("1.jpg/global_descriptor", data=np.zeros(4096))
        with pytest.raises(StorageError, match="it holds no keypoints"):
            open_features(tmp_path / "f.h5")

    @pytest.mark.parametrize("content", [None, b"text"])
    def test_what_is_no_hdf5_is_refused(self, tmp_path, content):
        if content:
            (tmp_path / "f.h5").write_bytes(content)
        with pytest.raises(StorageError, match=r"f\.h5: (no such file|not an HDF5)"):
            open_features(tmp_path / "f.h5")
