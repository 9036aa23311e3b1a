from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

from dataset_files import (
    NAMES,
    SETTINGS,
    SUMMARY,
    assert_same_correspondences,
    assert_same_keypoints,
    make_image,
    make_keypoints,
    make_pair,
    write,
)
from logpolar.datasets import files
from logpolar.datasets.columns import COLUMNS, IMAGE_CAUSES
from logpolar.datasets.correspondences import PAIR_CAUSES
from logpolar.datasets.files import CorrespondenceFile, ImageEntry, connected_components
from logpolar.datasets.writing import CorrespondenceWriter, ImageRecord
from logpolar.errors import ImageError, StorageError
from logpolar.features.features import Features
from logpolar.features.files import FeatureWriter
from logpolar.images import to_bytes, to_gray
from logpolar.keypoints import Keypoints


class TestRoundTrip:
    def test_table_of_images(self, scene, path):
        with CorrespondenceFile(path) as file:
            assert file.images == [ImageEntry(image.name, image.split, image.size) for image in scene[0]]
            assert [entry.name for entry in file.images] == NAMES

    def test_pixels(self, scene, path):
        with CorrespondenceFile(path) as file:
            for number in range(3):
                seed = number + 1
                expected = np.random.default_rng(seed).integers(0, 256, (30 + seed, 40), np.uint8)
                np.testing.assert_array_equal(file.read_image(number), expected)

    def test_keypoints(self, scene, path):
        with CorrespondenceFile(path) as file:
            for number, image in enumerate(scene[0]):
                assert_same_keypoints(file.read_keypoints(number), image.keypoints)

    def test_depth_is_exact_and_nan_where_unknown(self, scene, path):
        with CorrespondenceFile(path) as file:
            np.testing.assert_array_equal(file.read_depths(0), scene[0][0].depth)
            assert np.isnan(file.read_depths(2)).tolist() == [True] * 11

    def test_depth_picture(self, scene, path):
        with CorrespondenceFile(path) as file:
            assert file.read_depth_picture(0).tolist() == [[0, 1, 2], [3, 4, 5]]
            assert file.read_depth_picture(1) is None

    def test_correspondences(self, scene, path):
        with CorrespondenceFile(path) as file:
            assert len(file) == 3
            for number, pair in enumerate(scene[1]):
                assert_same_correspondences(file.read_correspondences(number), pair.found)

    def test_a_pair_is_its_two_images_and_what_they_share(self, scene, path):
        images, pairs = scene
        with CorrespondenceFile(path) as file:
            assert file.pair_images.tolist() == [[0, 1], [2, 0], [1, 0]]
            for number, (first, second) in enumerate(file.pair_images.tolist()):
                pair = file.read(number)
                np.testing.assert_array_equal(pair.first, file.read_image(first))
                np.testing.assert_array_equal(pair.second, file.read_image(second))
                assert_same_keypoints(pair.first_keypoints, images[first].keypoints)
                assert_same_keypoints(pair.second_keypoints, images[second].keypoints)
                assert_same_correspondences(pair.correspondences, pairs[number].found)

    def test_rejects_are_summed_in_the_order_of_the_checks(self, scene, path):
        with CorrespondenceFile(path) as file:
            rejects = file.rejects()
        assert list(rejects) == [*IMAGE_CAUSES, *PAIR_CAUSES]
        assert {cause: count for cause, count in rejects.items() if count} == {
            "no depth": 2,
            "depth edge": 5,
            "no keypoint near": 3,
            "occluded": 6,
        }

    def test_counts(self, scene, path):
        with CorrespondenceFile(path) as file:
            assert file.counts() == {
                "images": 3,
                "keypoints": 64,
                "pairs": 3,
                "pairs_with_correspondences": 2,
                "correspondences": 15,
            }

    def test_settings_and_summary(self, scene, path):
        with CorrespondenceFile(path) as file:
            assert file.settings == SETTINGS
            assert file.summary.items() >= SUMMARY.items()

    def test_whole_columns(self, scene, path):
        with CorrespondenceFile(path) as file:
            ratios = np.concatenate([pair.found.log_scale_ratio for pair in scene[1]])
            np.testing.assert_allclose(file.column("correspondences", "log_scale_ratio"), ratios, atol=5.1e-4)

    def test_angles_stay_below_a_full_turn(self, path):
        points = Keypoints.from_points([[5, 5]], angle=[359.998])
        write(path, [replace(make_image("a"), keypoints=points)])
        with CorrespondenceFile(path) as file:
            assert 0 <= file.read_keypoints(0).angle[0] < 360

    @pytest.mark.parametrize("units", [-1, 0, 1, 2])
    def test_the_smallest_numbers_come_back(self, path, units):
        """A unit of the last digit, also where it is the smallest of its chunk."""
        image = make_image("a")
        given = image.keypoints
        given.xy[3] = 0.01 * units
        given.size[3] = given.angle[3] = 0.01 * abs(units)
        pair = make_pair(image, image, 20)
        found = pair.found
        for column, unit in ((found.warp, 0.001), (found.log_scale_ratio, 0.001), (found.angle_residual, 0.01)):
            column[:] = np.abs(column) + 1
            column[5] = unit * units
        write(path, [image], [pair])
        with CorrespondenceFile(path) as file:
            assert_same_keypoints(file.read_keypoints(0), given)
            assert_same_correspondences(file.read_correspondences(0), found)

    def test_whatever_is_far_from_the_usual_comes_back(self, path):
        """A place outside the image, a huge size, a warp near the horizon: next to usual ones, in one chunk."""
        points = Keypoints.from_points([[-3.25, 9999.5], [12.34, 5.67]], size=[1e5, 1.5], angle=[0, 90])
        image = replace(make_image("a"), keypoints=points)
        pair = make_pair(image, image, 2)
        pair.found.warp[0] = [[2e6, -2e6], [1e6, 1e5]]
        write(path, [image], [pair])
        with CorrespondenceFile(path) as file:
            np.testing.assert_allclose(file.read_keypoints(0).table, points.table, rtol=1e-6, atol=0.0051)
            np.testing.assert_allclose(file.read_correspondences(0).warp, pair.found.warp, rtol=1e-6, atol=5.1e-4)


class TestAccess:
    def test_pairs_by_split(self, scene, path):
        with CorrespondenceFile(path) as file:
            assert file.pairs() == [0, 1, 2]
            assert file.pairs("train") == [0, 2]
            assert file.pairs("validation") == [1]
            assert file.pairs("test") == []
            with pytest.raises(ValueError, match="train, validation, test, not training"):
                file.pairs("training")

    def test_order_does_not_matter(self, path):
        images = [make_image(f"{n}", 10 + n, seed=n) for n in range(8)]
        pairs = [make_pair(images[n], images[(3 * n + 1) % 8], n, n) for n in range(8)]
        write(path, images, pairs)
        with CorrespondenceFile(path) as file:
            for number in [5, 0, 7, 7, 3, 1, 6, 2, 4, 0]:
                pair = file.read(number)
                assert_same_correspondences(pair.correspondences, pairs[number].found)
                assert_same_keypoints(pair.second_keypoints, images[(3 * number + 1) % 8].keypoints)
                assert pair.first.shape == (30 + number, 40)

    def test_reading_a_pair_touches_its_rows_alone(self, path, monkeypatch):
        images = [make_image(f"{n}", 50, seed=n) for n in range(6)]
        pairs = [make_pair(images[n], images[n + 1], 10 + n, n) for n in range(5)]
        write(path, images, pairs)
        touched, original = [], h5py.Dataset.__getitem__

        def note(self, key, *rest):
            touched.append((self.name, key))
            return original(self, key, *rest)

        with CorrespondenceFile(path) as file:
            monkeypatch.setattr(h5py.Dataset, "__getitem__", note)
            file.read(4)
        ends = np.cumsum([len(image.data) for image in images]).tolist()
        rows = {"keypoints": {(200, 250), (250, 300)}, "correspondences": {(46, 60)}}
        expected = {f"/{name}": rows[name.split("/")[0]] for name in COLUMNS if name.split("/")[0] in rows}
        del expected["/keypoints/depth"]  # is read by itself
        expected["/bytes"] = {(ends[3], ends[4]), (ends[4], ends[5])}
        found: dict[str, set] = {}
        for name, key in touched:
            found.setdefault(name, set()).add((key.start, key.stop))
        assert found == expected
        assert len(touched) == sum(len(ranges) for ranges in expected.values())

    def test_an_image_is_decoded_once_for_a_run_of_its_pairs(self, path, monkeypatch):
        images = [make_image(f"{n}", seed=n) for n in range(5)]
        write(path, images, [make_pair(images[0], images[n]) for n in range(1, 5)])
        decoded, original = [], files.decode_gray

        def note(data):
            decoded.append(len(data))
            return original(data)

        monkeypatch.setattr(files, "decode_gray", note)
        with CorrespondenceFile(path) as file:
            for number in file.pairs():
                file.read(number)
        assert sorted(decoded) == sorted(len(image.data) for image in images)

    def test_a_pair_without_correspondences(self, path):
        images = [make_image("a"), make_image("b", seed=1)]
        write(path, images, [make_pair(*images, 0)])
        with CorrespondenceFile(path) as file:
            found = file.read(0).correspondences
            assert len(found) == 0
            assert (found.indices.shape, found.warp.shape, found.zoom.shape) == ((0, 2), (0, 2, 2), (0,))
            assert file.counts()["pairs_with_correspondences"] == 0

    def test_an_image_without_keypoints(self, path):
        images = [make_image("a"), make_image("b", 0, seed=1), make_image("c", seed=2)]
        write(path, images, [make_pair(images[0], images[1], 0), make_pair(images[2], images[0], 3)])
        with CorrespondenceFile(path) as file:
            assert len(file.read_keypoints(1)) == 0
            assert file.read_depths(1).shape == (0,)
            assert len(file.read(0).second_keypoints) == 0
            assert_same_keypoints(file.read_keypoints(2), images[2].keypoints)

    def test_nothing_at_all(self, path):
        write(path, [])
        with CorrespondenceFile(path) as file:
            assert (len(file), file.pairs(), file.images) == (0, [], [])
            assert set(file.counts().values()) == {0}
            assert set(file.rejects().values()) == {0}


class TestImagesByPath:
    @pytest.fixture
    def elsewhere(self, tmp_path, photo, monkeypatch):
        """A file in one folder, its image in another, and the process in a third."""
        for name in ("data", "pictures", "work/deep"):
            (tmp_path / name).mkdir(parents=True)
        monkeypatch.chdir(tmp_path / "work" / "deep")
        cv2.imwrite(str(tmp_path / "pictures" / "æ.png"), photo[:60, :80])
        return tmp_path / "data" / "scene.h5"

    def record(self, size: tuple[int, int]) -> ImageRecord:
        return replace(make_image("æ.png"), size=size, data=b"", path="../pictures/æ.png")

    def test_are_read_from_beside_the_file(self, elsewhere, photo):
        write(elsewhere, [make_image("first"), self.record((80, 60))])
        with CorrespondenceFile(elsewhere) as file:
            np.testing.assert_array_equal(file.read_image(1), to_bytes(to_gray(photo[:60, :80])))

    def test_are_reduced_to_the_size_that_keypoints_are_in(self, elsewhere):
        write(elsewhere, [self.record((40, 30))])
        with CorrespondenceFile(elsewhere) as file:
            assert file.read_image(0).shape == (30, 40)

    def test_are_named_if_they_are_gone(self, elsewhere):
        write(elsewhere, [self.record((80, 60))])
        (elsewhere.parent / "../pictures/æ.png").unlink()
        with CorrespondenceFile(elsewhere) as file, pytest.raises(ImageError, match=r"pictures/æ\.png: no such file"):
            file.read_image(0)


def read_everything(path: Path) -> None:
    with CorrespondenceFile(path) as file:
        file.counts()
        file.rejects()
        file.column("correspondences", "log_scale_ratio")
        for number in file.pairs():
            file.read(number)
        for number in range(len(file.images)):
            file.read_depths(number)
            file.read_depth_picture(number)


def overwrite_chunk(path: Path, name: str) -> None:
    """Fill the first stored chunk of a dataset with nonsense."""
    with h5py.File(path) as file:
        chunk = file[name].id.get_chunk_info(0)
    data = bytearray(path.read_bytes())
    data[chunk.byte_offset : chunk.byte_offset + chunk.size] = b"\xa5" * chunk.size
    path.write_bytes(data)


class TestRefused:
    def test_a_file_that_is_not_there(self, path):
        with pytest.raises(StorageError, match=r"scene\.h5: no such file"):
            CorrespondenceFile(path)

    @pytest.mark.parametrize("content", [b"", b"these are words"])
    def test_what_is_no_hdf5(self, path, content):
        path.write_bytes(content)
        with pytest.raises(StorageError, match="not an HDF5 file"):
            CorrespondenceFile(path)

    def test_a_feature_file(self, path):
        with FeatureWriter(path, SETTINGS) as writer:
            writer.add("a.png", Features(make_keypoints(3), np.zeros((3, 128), np.float32), (40, 30)))
        with pytest.raises(StorageError, match="not a logpolar correspondence file"):
            CorrespondenceFile(path)
        for overwrite in (False, True):
            with pytest.raises(StorageError, match="not a logpolar correspondence file"):
                CorrespondenceWriter(path, SETTINGS, overwrite)

    def test_another_version(self, scene, path):
        with h5py.File(path, "a") as file:
            file.attrs["version"] = 3
        with pytest.raises(StorageError, match="correspondence file version 3, but this logpolar reads version 2"):
            CorrespondenceFile(path)

    @pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
    def test_a_truncated_file(self, scene, path, share):
        data = path.read_bytes()
        path.write_bytes(data[: int(share * len(data))])
        with pytest.raises(StorageError, match=r"scene\.h5.*damaged"):
            CorrespondenceFile(path)

    @pytest.mark.parametrize("missing", ["complete", "settings"])
    def test_a_header_with_a_gap(self, scene, path, missing):
        with h5py.File(path, "a") as file:
            del file.attrs[missing]
        with pytest.raises(StorageError, match="this correspondence file is damaged"):
            CorrespondenceFile(path)

    @pytest.mark.parametrize(
        "missing",
        [
            "summary",
            "images",
            "images/name",
            "images/keypoints",
            "pairs",
            "pairs/images",
            "bytes",
            "images/rejects",
            "pairs/rejects",
            "keypoints",
            "keypoints/xy",
            "keypoints/depth",
            "correspondences",
            "correspondences/keypoints",
            "correspondences/log_scale_ratio",
        ],
    )
    def test_a_missing_table_or_column(self, scene, path, missing):
        with h5py.File(path, "a") as file:
            del file[missing]
        with pytest.raises(StorageError, match=r"scene\.h5.*damaged"):
            read_everything(path)

    def test_a_part_that_does_not_exist(self, scene, path):
        with h5py.File(path, "a") as file:
            file["images/part"][1] = 7
        with pytest.raises(StorageError, match="damaged"):
            CorrespondenceFile(path)

    def test_damage_in_a_table(self, scene, path):
        overwrite_chunk(path, "keypoints/depth")
        with CorrespondenceFile(path) as file:
            file.read(0)
            with pytest.raises(StorageError, match=r"scene\.h5.*damaged \(keypoints/depth: "):
                file.read_depths(0)

    def test_damage_in_an_image(self, scene, path):
        """The checksum tells, whatever a decoder would make of it."""
        data = bytearray(path.read_bytes())
        place = data.index(scene[0][1].data) + len(scene[0][1].data) // 2
        data[place : place + 8] = bytes(255 - value for value in data[place : place + 8])
        path.write_bytes(data)
        with CorrespondenceFile(path) as file:
            file.read_keypoints(0)
            with pytest.raises(StorageError, match=r"scene\.h5.*damaged \(bytes: "):
                file.read(0)

    @pytest.mark.parametrize(
        "name",
        [
            "correspondences/keypoints",
            "correspondences/warp",
            "pairs/correspondences",
            "images/data",
            "pairs/rejects",
            "images/rejects",
        ],
    )
    def test_damage_in_any_table_is_no_other_error(self, scene, path, name):
        """Whatever is damaged, it does not end in a traceback."""
        overwrite_chunk(path, name)
        try:
            read_everything(path)
        except StorageError as error:
            assert "scene.h5" in str(error)

    def test_correspondences_of_keypoints_that_are_not_there(self, scene, path):
        with h5py.File(path, "a") as file:
            file["correspondences/keypoints"][0] = [5000, 0]
        with CorrespondenceFile(path) as file, pytest.raises(StorageError, match="pair 0 names keypoints"):
            file.read(0)


def test_connected_components():
    component = connected_components([("a", "b"), ("c", "d"), ("e", "d"), ("b", "f")])
    assert [component[name] for name in "abf"] == ["a"] * 3
    assert [component[name] for name in "cde"] == ["e"] * 3
