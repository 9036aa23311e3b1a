from __future__ import annotations

import contextlib
import resource
import sqlite3
import tracemalloc

import numpy as np
import pytest

from colmap_databases import digest, query, write_database
from damaged_bytes import one_line, try_damaged
from logpolar.errors import StorageError
from logpolar.sfm.database_files import connect, copy_database, digest_rows, written_atomically


def test_a_copy_has_what_another_program_has_not_yet_checkpointed(tmp_path):
    source = write_database(tmp_path / "d.db", "3.11", {"x": None})
    with contextlib.closing(sqlite3.connect(source)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("INSERT INTO images(name, camera_id) VALUES ('late', 3)")
        other.commit()
        copy_database(source, tmp_path / "copy.db")
    assert query(tmp_path / "copy.db", "SELECT name FROM images ORDER BY image_id") == [("x",), ("late",)]


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_reading_leaves_nothing_beside_and_changes_nothing(tmp_path, mode):
    source = write_database(tmp_path / "d.db", "3.11", {"x": None})
    query(source, f"PRAGMA journal_mode = {mode}")
    before = digest(source)
    with connect(source) as database:
        assert database.execute("SELECT COUNT(*) FROM images").fetchone() == (1,)
    assert digest(source) == before
    assert [path.name for path in tmp_path.iterdir()] == ["d.db"]


def test_whole_or_not_at_all(tmp_path):
    output = tmp_path / "d.db"
    with pytest.raises(ValueError, match="in between"), written_atomically(output) as half:
        write_database(half, "3.11", {"x": None})
        raise ValueError("in between")
    assert list(tmp_path.iterdir()) == []
    with written_atomically(output) as half:
        write_database(half, "3.11", {"x": None})
        query(half, "PRAGMA journal_mode = WAL")
        assert not output.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["d.db"]
    assert query(output, "SELECT name FROM images") == [("x",)]


def test_a_disk_without_space_is_not_called_damage(tmp_path):
    """The log of a database, which COLMAP's have, needs some to be read. No file may grow here, as on a full disk."""
    source = write_database(tmp_path / "d.db", "3.11", {"x": None})
    query(source, "PRAGMA journal_mode = WAL")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(StorageError, match=r"d\.db: SQLite needs space") as error, connect(source):
            pytest.fail("must not come here")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "damaged" not in str(error.value)


def test_a_database_in_use_is_not_replaced(tmp_path):
    output = write_database(tmp_path / "d.db", "3.11", {"x": None})
    with contextlib.closing(sqlite3.connect(output, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="locked"), written_atomically(output, overwrite=True):
            pytest.fail("must not come here")


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE images SET camera_id = 77", "rows of images"),
        ("UPDATE images SET name = CAST(x'610062' AS TEXT)", "rows of images"),
        ("UPDATE images SET name = x'ff'", "rows of images"),
        ("UPDATE cameras SET width = 'x'", "rows of cameras"),
        ("UPDATE cameras SET height = 0", "rows of cameras"),
        ("UPDATE cameras SET params = NULL", "rows of cameras"),
        ("UPDATE cameras SET params = x'00'", "rows of cameras"),
        ("UPDATE keypoints SET rows = 1000000000", "rows of keypoints"),
        ("UPDATE keypoints SET rows = -1", "rows of keypoints"),
        ("UPDATE keypoints SET cols = 3", "rows of keypoints"),
        ("UPDATE keypoints SET data = NULL", "rows of keypoints"),
        ("UPDATE keypoints SET data = 'text'", "rows of keypoints"),
        ("INSERT INTO matches VALUES (7, 100, 2, x'00')", "rows of matches"),
        ("INSERT INTO matches VALUES (-7, 0, 2, NULL)", "numbers of pairs in matches"),
        ("CREATE TRIGGER t BEFORE DELETE ON matches BEGIN SELECT 1; END", "trigger or view, 't'"),
        ("CREATE VIEW v AS SELECT 1", "trigger or view, 'v'"),
    ],
)
def test_content_that_colmap_would_crash_on_is_refused(tmp_path, statement, words):
    source = write_database(tmp_path / "d.db", "3.11", {"x": np.zeros((3, 4), np.float32)})
    copy_database(source, tmp_path / "copy.db")
    with contextlib.closing(sqlite3.connect(source)) as database, database:
        database.execute(statement)
    with pytest.raises(StorageError, match=rf"d\.db: .*{words}"):
        copy_database(source, tmp_path / "copy.db")


def test_a_damaged_page_is_refused(tmp_path):
    source = write_database(tmp_path / "d.db", "3.11", {"x": np.zeros((3, 4), np.float32)})
    data = bytearray(source.read_bytes())
    data[4096:4300] = b"\xff" * 204
    source.write_bytes(data)
    with pytest.raises(StorageError, match=r"d\.db: "):
        copy_database(source, tmp_path / "copy.db")


def test_two_writers(tmp_path):
    with (
        written_atomically(tmp_path / "d.db") as half,
        pytest.raises(StorageError, match=r"d\.db: another process is writing"),
    ):
        write_database(half, "3.11", {"x": None})
        written_atomically(tmp_path / "d.db", overwrite=True).__enter__()


def test_damaged_bytes_are_a_database_or_an_error_in_one_line(tmp_path):
    source = write_database(tmp_path / "d.db", "3.11", {"x": np.zeros((3, 4), np.float32)})

    def attempt(data):
        source.write_bytes(data)
        try:
            copy_database(source, tmp_path / "copy.db")
        except StorageError as error:
            assert one_line(error)

    try_damaged(source.read_bytes(), attempt)


def test_a_digest_tells_rows_apart_without_a_text_of_their_blobs(tmp_path):
    path = write_database(tmp_path / "d.db", "3.11", {"x": np.zeros((2000, 4), np.float32)})
    queries = ["SELECT image_id, data FROM keypoints"]
    tracemalloc.start()
    before = digest_rows(path, queries, "settings")
    assert tracemalloc.get_traced_memory()[1] < 60_000  # 32 kB, and not four times that
    tracemalloc.stop()
    assert before == digest_rows(path, queries, "settings") != digest_rows(path, queries, "others")
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE keypoints SET data = CAST(x'01' || substr(data, 2) AS BLOB)")
    assert digest_rows(path, queries, "settings") != before
