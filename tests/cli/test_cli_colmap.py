from __future__ import annotations

import sys

import cv2
import numpy as np
import pytest
from click.testing import CliRunner

from colmap_databases import image_numbers, query, write_database
from feature_files import NAMES, write_feature_file
from helpers import assert_one_error
from logpolar.cli import main
from logpolar.matching.batch import match_pairs

ROWS = np.array([[40.5, 30.5, 3, 0.5], [80, 60, 5, -2]], np.float32)


@pytest.fixture
def place(tmp_path, photo):
    """Features and matches of three images that were never seen, photos under their names, and a database of two."""
    for name in NAMES:
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), cv2.resize(photo, (640, 480)))
    write_feature_file(tmp_path / "f.h5")
    match_pairs(tmp_path / "f.h5", tmp_path / "m.h5", [NAMES[:2]])
    write_database(tmp_path / "old.db", "3.11", dict.fromkeys(NAMES[:2], ROWS), (640, 480), [(5, 6)])
    return tmp_path


def run_colmap(*arguments: object):
    return CliRunner().invoke(main, ["colmap", *map(str, arguments)])


def test_export(place):
    result = run_colmap("export", place / "f.h5", place / "m.h5", "--images", place / "photos", "-o", place / "d.db")
    assert result.exit_code == 0, result.output
    assert "3 images, 60 keypoints" in result.stdout
    assert "1 pairs matched, 20 matches" in result.stdout
    assert set(image_numbers(place / "d.db")) == set(NAMES)


def test_export_without_matches_says_what_is_missing(place):
    result = run_colmap("export", place / "f.h5", "--images", place / "photos", "-o", place / "d.db")
    assert result.exit_code == 0
    assert "logpolar match-features" in result.stdout


def test_redescribe(place):
    options = ("--model", "paper-cartesian-12", "--jobs", "1")
    result = run_colmap("redescribe", place / "old.db", place / "photos", "-o", place / "new.db", *options)
    assert result.exit_code == 0, result.output
    assert "2 images, 4 keypoints" in result.stdout
    assert query(place / "new.db", "SELECT COUNT(*) FROM descriptors") == [(2,)]
    again = run_colmap("redescribe", place / "old.db", place / "photos", "-o", place / "new.db", *options)
    assert again.stdout == result.stdout, "recognised as finished"
    other = (place / "old.db", place / "photos", "-o", place / "new.db", *options, "--seed", "1")
    assert_one_error(run_colmap("redescribe", *other), "new.db: exists already")
    compared = run_colmap("redescribe", *other, "--overwrite", "--compare")
    assert compared.exit_code == 0, compared.output
    table = {line[:24].strip(): line[24:].split() for line in compared.stdout.splitlines() if line[24:].strip()}
    assert table[""] == ["before", "after"]
    assert len(table["images registered"]) == len(table["track length"]) == len(table["mapping, s"]) == 2


def test_mistakes_are_one_line(place):
    export = ("export", place / "f.h5", place / "m.h5", "-o", place / "d.db")
    assert_one_error(run_colmap(*export), "--images", "--cameras", "either")
    assert_one_error(run_colmap(*export, "--images", place / "none"), "none: no such folder")
    assert_one_error(run_colmap(*export, "--cameras", place / "old.db"), "1 of 3 images", "c.jpg")
    (place / "text.db").write_text("no database")
    redescribe = run_colmap("redescribe", place / "text.db", place / "photos", "-o", place / "d.db")
    assert_one_error(redescribe, "text.db: not a COLMAP database")
    assert_one_error(
        run_colmap("redescribe", place / "old.db", place / "photos", "-o", place / "no" / "d.db"), "does not exist"
    )
    assert not (place / "d.db").exists()


def test_without_pycolmap_the_extra_is_named(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    result = run_colmap("export", place / "f.h5", "--images", place / "photos", "-o", place / "d.db")
    assert_one_error(result, "pip install 'logpolar[sfm]'")
