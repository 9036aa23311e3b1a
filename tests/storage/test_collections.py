from __future__ import annotations

import json

import pytest

from logpolar.errors import StorageError
from logpolar.storage.collections import (
    MANIFEST,
    Header,
    ManifestAppender,
    digest,
    fault,
    finished_part,
    is_collection,
    read_manifest,
    unlisted,
    write_manifest,
)
from logpolar.storage.hdf5 import FileKind

KIND = FileKind("logpolar-features", 1, "feature file")
HEADER = Header(KIND.format, {"model": "none", "detector": {"name": "made up"}})


def make_part(folder, content: bytes, name="part.h5"):
    (folder / "parts").mkdir(parents=True, exist_ok=True)
    path = folder / "parts" / name
    path.write_bytes(content)
    return finished_part(path, len(content))


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "collection"
    folder.mkdir()
    write_manifest(folder, HEADER, [])
    appender = ManifestAppender(folder)
    appender.add(make_part(folder, b"first"), ["a.jpg", "deep/b.jpg"])
    appender.add(make_part(folder, b"second"), ["ü \n.jpg"])
    return folder


class TestManifest:
    def test_comes_back(self, place):
        header, shards = read_manifest(place, KIND)
        assert header == HEADER
        assert [shard.items for shard in shards] == [("a.jpg", "deep/b.jpg"), ("ü \n.jpg",)]
        assert [(place / shard.file).read_bytes() for shard in shards] == [b"first", b"second"]
        assert [shard.size for shard in shards] == [5, 6]

    def test_lists_pairs(self, place):
        pairs = [("a", "b"), ("b", "c"), ("a", "c")]
        ManifestAppender(place).add(make_part(place, b"third"), pairs)
        assert read_manifest(place, KIND)[1][2].items == tuple(pairs)

    def test_a_torn_line_does_not_count_and_is_overwritten(self, place):
        whole = (place / MANIFEST).read_bytes()
        (place / MANIFEST).write_bytes(whole[:-20])
        assert len(read_manifest(place, KIND)[1]) == 1
        ManifestAppender(place).add(make_part(place, b"second"), ["ü \n.jpg"])
        assert (place / MANIFEST).read_bytes() == whole

    def test_files_of_an_interrupted_run_are_found(self, place):
        make_part(place, b"unfinished")
        (place / "0123456789abcdef.h5").write_bytes(b"moved, not yet listed")
        (place / "mine.h5").write_bytes(b"not ours to touch")
        found = unlisted(place, read_manifest(place, KIND)[1])
        assert [path.name for path in found] == ["0123456789abcdef.h5", "part.h5"]


class TestBadManifest:
    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ({"version": 2}, "version 2, but this logpolar reads version 1; .* try `logpolar collection merge .*"),
            ({"format": "zip"}, "not the manifest of a collection"),
            ({"kind": "logpolar-matches"}, "not a collection of feature files, but of logpolar-matches"),
            ({"settings": None}, r"damaged \(line 1\)"),
        ],
    )
    def test_of_another_kind(self, place, line, words):
        first, *rest = (place / MANIFEST).read_text().splitlines(keepends=True)
        (place / MANIFEST).write_text("".join([json.dumps(json.loads(first) | line) + "\n", *rest]))
        with pytest.raises(StorageError, match=words):
            read_manifest(place, KIND)

    @pytest.mark.parametrize(
        "change",
        [
            {"file": "../../etc/passwd"},
            {"sha256": "0" * 64},
            {"names": "a.jpg"},
            {"names": [1]},
            {"pairs": [0, 7]},
            {"pairs": [0]},
            {"pairs": [-1, 0]},
            {"bytes": "many"},
        ],
    )
    def test_with_a_crafted_line(self, place, change):
        first, line, _ = (place / MANIFEST).read_text().splitlines(keepends=True)
        (place / MANIFEST).write_text(first + json.dumps(json.loads(line) | change) + "\n")
        with pytest.raises(StorageError, match=r"damaged \(line 2\); .*: `logpolar collection merge .*\*\.h5 -o NEW`"):
            read_manifest(place, KIND)

    @pytest.mark.parametrize("content", [b"", b"\xff\n", b"[]\n", b"[" * 100_000 + b"\n"])
    def test_that_is_none(self, place, content):
        (place / MANIFEST).write_bytes(content)
        with pytest.raises(StorageError, match=r"damaged \(line 1\)"):
            read_manifest(place, KIND)

    def test_or_is_missing(self, tmp_path):
        assert not is_collection(tmp_path)
        with pytest.raises(StorageError, match="a folder, but not a collection"):
            read_manifest(tmp_path, KIND)
        with pytest.raises(StorageError, match="no such folder"):
            read_manifest(tmp_path / "none", KIND)
        (tmp_path / "features.h5").touch()
        with pytest.raises(StorageError, match=r"features\.h5: a file; collections are folders"):
            read_manifest(tmp_path / "features.h5", KIND)


class TestFault:
    def test_of_a_shard(self, place):
        shard = read_manifest(place, KIND)[1][0]
        path = place / shard.file
        assert fault(place, shard) is None
        path.write_bytes(b"fir")
        assert fault(place, shard) == "has 3 bytes, not 5"
        path.write_bytes(b"FIRST")
        assert fault(place, shard) == "its content has changed: the hash differs"
        path.unlink()
        assert fault(place, shard) == "missing"

    def test_digest_is_sha256(self, tmp_path):
        (tmp_path / "abc").write_bytes(b"abc")
        assert digest(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
