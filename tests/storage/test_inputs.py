from __future__ import annotations

import os
from pathlib import Path

import pytest

from damaged_bytes import try_damaged
from logpolar.errors import ImageError, StorageError
from logpolar.storage.inputs import check_regular, parse_json, read_bytes, read_text


def test_content(tmp_path):
    (tmp_path / "a").write_bytes("\ufeffzwölf".encode())
    assert read_bytes(tmp_path / "a") == "\ufeffzwölf".encode()
    assert read_text(tmp_path / "a") == "zwölf"


def test_pipes_devices_and_folders_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero")):
        with pytest.raises(ImageError, match="is a pipe or a device, not a file"):
            read_bytes(path, ImageError)
    with pytest.raises(StorageError, match="is a folder"):
        read_bytes(tmp_path)


def test_errors_name_the_file(tmp_path):
    with pytest.raises(StorageError, match="none: no such file"):
        read_text(tmp_path / "none")
    (tmp_path / "a").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(StorageError, match="a: not a list of things"):
        read_text(tmp_path / "a", what="list of things")
    with pytest.raises(StorageError, match="not the name of a file"):
        check_regular(Path("a\0b"))


def test_size(tmp_path):
    with (tmp_path / "a").open("wb") as file:
        file.truncate(3 * 2**20)
    with pytest.raises(StorageError, match="has 3 MB; files of this kind have 2 MB at most"):
        read_bytes(tmp_path / "a", most=2**21)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 1000 + "1" + "}" * 1000, "{", "nul", b"\xff"])
def test_json_that_is_none(text):
    with pytest.raises(ValueError):
        parse_json(text)


def test_json():
    assert parse_json(b'{"a": [1, {"b": "[[[["}]}') == {"a": [1, {"b": "[[[["}]}


def test_any_text_is_json_or_an_error():
    def attempt(data):
        try:
            parse_json(data)
        except ValueError:
            pass
        except Exception as error:
            pytest.fail(f"{type(error).__name__}: {error}")

    try_damaged(b'{"a": [1, 2.5e3, null, "b", {"c": [true, -0.0]}], "d": "\\u00e9"}', attempt, 60)
