"""Databases of others, made by plain SQL or by ourselves, described and matched anew."""

from __future__ import annotations

import contextlib
import sqlite3
from functools import partial

import cv2
import numpy as np
import pytest

from colmap_databases import arrays, digest, image_numbers, pair_number, query, write_database
from logpolar.errors import LogpolarError, StorageError
from logpolar.features.extractor import Extractor
from logpolar.keypoints import Keypoints
from logpolar.matching.options import MatchingOptions
from logpolar.sfm.database_files import copy_database
from logpolar.sfm.export import export_database
from logpolar.sfm.redescription import RedescriptionOptions, redescribe_database

open_given = partial(Extractor, "logpolar-96-small", max_size=None)
open_cheap = partial(Extractor, "paper-cartesian-12", max_size=None)

ROWS = np.array([[40.5, 30.5, 3, 0.5], [80, 60, 5, -2], [100.25, 20, 2, 3]], np.float32)


@pytest.fixture(scope="module")
def photos(tmp_path_factory, photo):
    """Three pieces of the photo, 160 x 120."""
    place = tmp_path_factory.mktemp("pieces")
    for number in range(3):
        cv2.imwrite(str(place / f"{number}.png"), photo[60 * number : 60 * number + 120, 100:260])
    return place


def some_images(rows=ROWS, count=3):
    return {f"{number}.png": rows for number in range(count)}


def redescribe(source, photos, output, **options):
    return redescribe_database(source, photos, output, open_cheap, **options)


def test_our_own_database_comes_back(scene, tmp_path):
    """The round trip: half pixels, scale and angle through the database, and the same descriptors at the end."""
    exported, output = tmp_path / "exported.db", tmp_path / "new.db"
    export_database(scene / "features.h5", scene / "matches.h5", exported, scene / "photos")
    before = digest(exported)
    report = redescribe_database(exported, scene / "photos", output, open_given)
    assert digest(exported) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exported.db", "new.db"]
    assert image_numbers(output) == image_numbers(exported)
    for table, kind, tolerance in (("keypoints", "<f4", 0), ("descriptors", "<f4", 2e-3)):
        ours, theirs = arrays(exported, table, kind), arrays(output, table, kind)
        assert ours.keys() == theirs.keys()
        for number, rows in ours.items():
            np.testing.assert_allclose(theirs[number], rows, atol=tolerance)
    ours, theirs = arrays(exported, "matches", "<u4"), arrays(output, "matches", "<u4")
    assert ours.keys() == theirs.keys()
    same = sum(len(set(map(tuple, ours[n].tolist())) & set(map(tuple, theirs[n].tolist()))) for n in ours)
    assert same > 0.99 * report.matches > 0
    assert report.verified >= 9


@pytest.mark.parametrize("scheme", ["3.8", "3.11", "now"])
def test_databases_of_any_age(photos, tmp_path, scheme):
    source = write_database(tmp_path / "old.db", scheme, some_images(), pairs=[(5, 6), (6, 7)])
    before = digest(source)
    report = redescribe(source, photos, tmp_path / "new.db")
    assert (report.images, report.keypoints, report.pairs) == (3, 9, 2)
    assert digest(source) == before
    numbers = query(tmp_path / "new.db", "SELECT pair_id FROM two_view_geometries")
    assert numbers == [(pair_number(5, 6),), (pair_number(6, 7),)]
    stored = arrays(tmp_path / "new.db", "descriptors", "<f4")
    for number, name in enumerate(some_images(), 5):
        expected = Extractor("paper-cartesian-12", max_size=None).extract(photos / name, Keypoints.from_colmap(ROWS))
        np.testing.assert_allclose(stored[number], expected.descriptors, atol=1e-5)
        np.testing.assert_array_equal(arrays(tmp_path / "new.db", "keypoints", "<f4")[number], ROWS)


def test_keypoints_of_six_columns_mean_the_same_as_of_four(photos, tmp_path):
    x, y, scale, turn = ROWS.T
    affine = np.stack([x, y, *(scale * part for part in (np.cos(turn), -np.sin(turn), np.sin(turn), np.cos(turn)))], 1)
    found = []
    for name, rows in (("four", ROWS), ("six", affine)):
        source = write_database(tmp_path / f"{name}.db", "3.11", some_images(rows, 2), pairs=[(5, 6)])
        redescribe(source, photos, tmp_path / f"{name}-new.db")
        found.append(arrays(tmp_path / f"{name}-new.db", "descriptors", "<f4")[5])
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)


def test_keypoints_of_two_columns_are_upright_and_4_px(photos, tmp_path):
    source = write_database(tmp_path / "old.db", "3.11", some_images(ROWS[:, :2], 2), pairs=[(5, 6)])
    report = redescribe(source, photos, tmp_path / "new.db")
    assert report.columns == 2
    given = Keypoints.from_points(ROWS[:, :2] - 0.5, 4, 0)
    expected = Extractor("paper-cartesian-12", max_size=None).extract(photos / "0.png", given)
    stored = arrays(tmp_path / "new.db", "descriptors", "<f4")[5]
    np.testing.assert_allclose(stored, expected.descriptors, atol=1e-5)


def test_an_image_may_have_no_keypoint(photos, tmp_path):
    images = {**some_images(), "1.png": np.zeros((0, 4))}
    source = write_database(tmp_path / "old.db", "3.11", images, pairs=[(5, 6), (5, 7)])
    report = redescribe(source, photos, tmp_path / "new.db")
    assert (report.images, report.keypoints, report.pairs) == (3, 6, 2)


class TestPairs:
    def count(self, tmp_path, photos, **options):
        source = write_database(tmp_path / "old.db", "3.11", some_images(), pairs=[(5, 7)])
        redescribe(source, photos, tmp_path / "new.db", **options)
        return len(query(tmp_path / "new.db", "SELECT * FROM matches"))

    def test_exhaustive(self, tmp_path, photos):
        assert self.count(tmp_path, photos, options=RedescriptionOptions("exhaustive")) == 3

    def test_sequential(self, tmp_path, photos):
        assert self.count(tmp_path, photos, options=RedescriptionOptions("sequential", overlap=1)) == 2

    def test_of_a_file(self, tmp_path, photos):
        (tmp_path / "pairs.txt").write_text("0.png 1.png\n")
        assert self.count(tmp_path, photos, pairs=tmp_path / "pairs.txt") == 1

    def test_without_verification_there_are_no_geometries(self, tmp_path, photos):
        assert self.count(tmp_path, photos, options=RedescriptionOptions(verify=False)) == 1
        assert query(tmp_path / "new.db", "SELECT * FROM two_view_geometries") == []


class TestRefusals:
    def assert_refused(self, source, photos, words, kind=StorageError):
        output = source.parent / "new.db"
        with pytest.raises(kind, match=words):
            redescribe(source, photos, output)
        assert not output.exists()
        assert not list(source.parent.glob(".*"))

    def test_locked(self, tmp_path, photos):
        source = write_database(tmp_path / "old.db", "3.11", some_images())
        with contextlib.closing(sqlite3.connect(source, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            self.assert_refused(source, photos, r"old\.db: another program has locked")

    @pytest.mark.parametrize("content", [b"", b"text", b"SQLite format 3\0" + bytes(200)])
    def test_not_a_database(self, tmp_path, photos, content):
        (tmp_path / "old.db").write_bytes(content)
        self.assert_refused(tmp_path / "old.db", photos, r"old\.db: not a COLMAP database")

    def test_another_program_s_database(self, tmp_path, photos):
        with contextlib.closing(sqlite3.connect(tmp_path / "old.db")) as database:
            database.execute("CREATE TABLE images (name TEXT)")
        self.assert_refused(tmp_path / "old.db", photos, "has no tables cameras, descriptors")

    def test_a_layout_of_the_future(self, tmp_path, photos):
        source = write_database(tmp_path / "old.db", "now", some_images())
        with contextlib.closing(sqlite3.connect(source)) as database, database:
            database.execute("ALTER TABLE images RENAME COLUMN camera_id TO lens_id")
        self.assert_refused(source, photos, r"old\.db.* newer COLMAP")

    def test_missing(self, tmp_path, photos):
        self.assert_refused(tmp_path / "old.db", photos, r"old\.db: no such file")

    @pytest.mark.parametrize("count", [0, 1])
    def test_too_few_images(self, tmp_path, photos, count):
        source = write_database(tmp_path / "old.db", "3.11", some_images(count=count))
        self.assert_refused(source, photos, f"has {count} images")

    def test_no_keypoints(self, tmp_path, photos):
        source = write_database(tmp_path / "old.db", "3.11", {**some_images(), "1.png": None})
        self.assert_refused(source, photos, r"1 of 3 images have no keypoints \(1\.png\)")

    def test_bad_keypoints(self, tmp_path, photos):
        bad = ROWS.copy()
        bad[1, 2] = 0
        source = write_database(tmp_path / "old.db", "3.11", {**some_images(), "2.png": bad}, pairs=[(5, 6)])
        self.assert_refused(source, photos, r"cannot describe 2\.png.*size", LogpolarError)

    def test_no_pairs(self, tmp_path, photos):
        source = write_database(tmp_path / "old.db", "3.11", some_images())
        self.assert_refused(source, photos, "no matched pairs")

    def test_photos_are_missing(self, tmp_path, photos):
        source = write_database(tmp_path / "old.db", "3.11", {**some_images(), "x.png": ROWS})
        self.assert_refused(source, photos, r"1 of 4 images of .* are not there: x\.png")

    def test_photos_of_another_size(self, tmp_path, photos):
        source = write_database(tmp_path / "old.db", "3.11", some_images(), size=(320, 240))
        self.assert_refused(source, photos, r"0\.png: the image has 160 x 120 pixels, but its camera 320 x 240")

    def test_the_same_file_as_output(self, tmp_path, photos):
        source = write_database(tmp_path / "old.db", "3.11", some_images())
        with pytest.raises(StorageError, match="choose another output"):
            redescribe(source, photos, source, overwrite=True)


def test_a_second_run_continues(photos, tmp_path, monkeypatch):
    from logpolar.matching import many

    source = write_database(tmp_path / "old.db", "3.11", some_images(), pairs=[(5, 6)])
    with monkeypatch.context() as patch:
        patch.setattr(many, "match_features", lambda *arguments, **options: pytest.fail("stopped here"))
        with pytest.raises(pytest.fail.Exception):
            redescribe(source, photos, tmp_path / "new.db")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.db.features.h5", "old.db"]
    monkeypatch.setattr(Extractor, "extract", lambda *arguments: pytest.fail("was described before"))
    assert redescribe(source, photos, tmp_path / "new.db").pairs == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.db", "old.db"]


@pytest.mark.parametrize("left", [(), ("matches",), ("features", "matches")])
def test_a_finished_result_is_recognised(photos, tmp_path, monkeypatch, left):
    """Killed after the database was complete, before the files beside it were removed, or not at all."""
    source, output = tmp_path / "old.db", tmp_path / "new.db"
    write_database(source, "3.11", some_images(), pairs=[(5, 6)])
    report = redescribe(source, photos, output)
    before = digest(output)
    for what in left:
        (tmp_path / f"new.db.{what}.h5").touch()
    with monkeypatch.context() as patch:
        patch.setattr(Extractor, "extract", lambda *arguments: pytest.fail("was described before"))
        assert redescribe(source, photos, output) == report
    assert digest(output) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.db", "old.db"]
    for others in ({"options": RedescriptionOptions(seed=1)}, {"matching": MatchingOptions(0.5)}):
        with pytest.raises(StorageError, match="exists already"):
            redescribe(source, photos, output, **others)


def test_a_copy_of_a_result_is_not_taken_for_one(scene, photos, tmp_path):
    source, output = tmp_path / "old.db", tmp_path / "new.db"
    write_database(source, "3.11", some_images(), pairs=[(5, 6)])
    redescribe(source, photos, output)
    copy_database(output, tmp_path / "copy.db")
    with pytest.raises(StorageError, match="exists already"):
        redescribe(source, photos, tmp_path / "copy.db")
