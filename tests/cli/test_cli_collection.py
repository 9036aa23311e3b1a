from __future__ import annotations

import pytest
from click.testing import CliRunner

from feature_files import NAMES, write_feature_file
from logpolar.cli import main
from logpolar.features.files import FeatureFile
from logpolar.storage.collections import MANIFEST


def run(*arguments, code=0):
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def collection(tmp_path):
    write_feature_file(tmp_path / "f.h5")
    output = run("collection", "merge", tmp_path / "f.h5", "-o", tmp_path / "c")
    assert output == f"{tmp_path / 'c'}: 3 entries added\n"
    return tmp_path / "c"


def test_info(collection):
    assert "3 images with 60 keypoints in 1 shards" in run("collection", "info", collection)


def test_check_and_drop(collection):
    assert "1 shards are sound, 0 are not" in run("collection", "check", collection)
    next(collection.glob("*.h5")).unlink()
    assert "missing; is listed, with 3 entries" in run("collection", "check", collection, code=1)
    assert "missing; dropped, with 3 entries" in run("collection", "check", collection, "--drop", code=1)
    assert "0 shards are sound, 0 are not" in run("collection", "check", collection)


def test_merge_into_a_file(collection, tmp_path):
    run("collection", "merge", collection, "-o", tmp_path / "all.h5")
    with FeatureFile(tmp_path / "all.h5") as file:
        assert file.names() == sorted(NAMES)


def test_match_features_reads_and_writes_collections(collection, tmp_path):
    output = run("match-features", collection, "-o", tmp_path / "m", "--shard-size", 2, "-j", 1)
    assert "added 3 of 3 pairs with 60 matches" in output
    assert "3 pairs with 60 matches in 2 shards" in run("collection", "info", tmp_path / "m")
    assert "added 0 of 3 pairs" in run("match-features", collection, "-o", tmp_path / "m", "-j", 1)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "a folder, but not a collection: it has no manifest.jsonl"),
        ('{"format": "logpolar-collection", "version": 7}\n', "a manifest of version 7"),
        ("nonsense\n", "this manifest is damaged (line 1)"),
    ],
)
def test_bad_manifests_are_one_line(tmp_path, content, words):
    if content is not None:
        (tmp_path / MANIFEST).write_text(content)
    for arguments in (("info", tmp_path), ("check", tmp_path), ("merge", tmp_path, "-o", tmp_path / "x")):
        output = run("collection", *arguments, code=2)
        assert output.startswith("logpolar: error: ") and words in output and output.count("\n") == 1
