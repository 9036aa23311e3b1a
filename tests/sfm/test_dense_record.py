"""The folder of a dense reconstruction; whole runs are in ``test_dense``."""

from __future__ import annotations

import json

import pytest

from logpolar.errors import StorageError
from logpolar.sfm.dense_record import Record, open_record, open_workspace

NOW = {"settings": {"seed": 0}, "photos": {"a.jpg": 10}, "linked": True}


def test_two_processes_do_not_share_a_workspace(tmp_path):
    with open_workspace(tmp_path / "w"), pytest.raises(StorageError, match="another process"):
        open_workspace(tmp_path / "w").__enter__()
    with open_workspace(tmp_path / "w"):
        pass


def test_a_folder_of_someone_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(StorageError, match="not made by this command"), open_workspace(tmp_path):
        pass
    with pytest.raises(StorageError, match="is a file"), open_workspace(tmp_path / "notes.txt"):
        pass


@pytest.mark.parametrize("name", ["../precious.txt", "deep/../../precious.txt", "{}/precious.txt"])
def test_overwriting_removes_nothing_outside_that_a_record_names(tmp_path, name):
    (tmp_path / "precious.txt").touch()
    workspace = tmp_path / "w"
    (workspace / "photos").mkdir(parents=True)
    photos = {name.format(tmp_path): 10}
    Record(settings={}, photos=photos, linked=True).save(workspace)
    with pytest.raises(StorageError, match="damaged"):
        open_record(workspace, Record(**NOW), {}, overwrite=True)
    assert (tmp_path / "precious.txt").exists()


def test_overwriting_removes_nothing_through_a_link(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "a.jpg").touch()
    workspace = tmp_path / "w"
    workspace.mkdir()
    (workspace / "photos").symlink_to(tmp_path / "precious")
    Record(**NOW).save(workspace)
    with pytest.raises(StorageError, match="damaged"):
        open_record(workspace, Record(**NOW), {}, overwrite=True)
    assert (tmp_path / "precious" / "a.jpg").exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({**NOW, "more": 1})])
def test_a_damaged_record_is_refused(tmp_path, content):
    (tmp_path / "reconstruction.json").write_text(content)
    with pytest.raises(StorageError, match=r"reconstruction\.json: damaged"):
        open_record(tmp_path, Record(**NOW), {}, overwrite=True)


def test_another_version_is_refused(tmp_path):
    (tmp_path / "reconstruction.json").write_text(json.dumps({**NOW, "format": "logpolar-reconstruction-9"}))
    with pytest.raises(StorageError, match="another version"):
        open_record(tmp_path, Record(**NOW), {}, overwrite=False)
