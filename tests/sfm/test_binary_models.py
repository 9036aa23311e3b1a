from __future__ import annotations

import os
import re
import shutil
import struct
from pathlib import Path

import pytest

from damaged_bytes import one_line, try_damaged
from logpolar.errors import StorageError
from logpolar.sfm.binary_models import check_complete
from logpolar.sfm.workspace import read_workspace
from synthetic_world import standard_world, write_workspace


@pytest.fixture(scope="module")
def binary(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("binary")
    write_workspace(standard_world(cameras=3, width=64, height=48), folder, binary=True)
    return folder


def test_whole_models_pass(binary):
    check_complete(binary / "sparse")
    assert len(read_workspace(binary).views) == 3


def test_a_camera_model_that_came_later_is_left_to_pycolmap(binary, tmp_path):
    folder = Path(shutil.copytree(binary / "sparse", tmp_path / "sparse"))
    data = bytearray((folder / "cameras.bin").read_bytes())
    data[12:16] = struct.pack("<i", 99)
    (folder / "cameras.bin").write_bytes(data)
    check_complete(folder)
    (folder / "points3D.bin").write_bytes(b"")
    with pytest.raises(StorageError, match="points3D"):
        check_complete(folder)


@pytest.mark.parametrize("length", [0, 4, 8, 20, 50, 100, -10, -1])
@pytest.mark.parametrize("name", ["cameras.bin", "images.bin", "points3D.bin"])
def test_truncated_binary_model(binary, tmp_path, name, length):
    """pycolmap itself reads on: it takes what it finds for a camera, or fills the memory with points."""
    folder = Path(shutil.copytree(binary, tmp_path / "scene"))
    path = folder / "sparse" / name
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(StorageError, match=rf"{re.escape(str(path))}.*COLMAP model"):
        read_workspace(folder)


@pytest.mark.parametrize("name", ["cameras.bin", "images.bin", "points3D.bin", "rigs.bin", "frames.bin"])
def test_binary_model_that_promises_more_than_there_is(binary, tmp_path, name):
    folder = Path(shutil.copytree(binary, tmp_path / "scene"))
    path = folder / "sparse" / name
    path.write_bytes(struct.pack("<Q", 2**59) + path.read_bytes()[8:])
    with pytest.raises(StorageError, match=rf"{re.escape(str(path))}.*COLMAP model"):
        read_workspace(folder)


def test_a_track_longer_than_memory(binary, tmp_path):
    folder = Path(shutil.copytree(binary, tmp_path / "scene"))
    path = folder / "sparse" / "points3D.bin"
    data = path.read_bytes()
    length = 8 + 8 + 3 * 8 + 3 + 8  # after the number of points: id, position, colour, error
    path.write_bytes(data[:length] + struct.pack("<Q", 2**59) + data[length + 8 :])
    with pytest.raises(StorageError, match=rf"{re.escape(str(path))}.*COLMAP model"):
        read_workspace(folder)


@pytest.mark.parametrize("name", ["cameras.bin", "images.bin", "points3D.bin"])
def test_damaged_bytes_are_a_scene_or_an_error_in_one_line(binary, tmp_path, name):
    folder = Path(shutil.copytree(binary, tmp_path / "scene"))

    def attempt(data):
        (folder / "sparse" / name).write_bytes(data)
        try:
            read_workspace(folder)
        except StorageError as error:
            assert one_line(error)

    try_damaged((binary / "sparse" / name).read_bytes(), attempt, 15)


def test_a_pipe_in_the_place_of_a_model(binary, tmp_path):
    folder = Path(shutil.copytree(binary, tmp_path / "scene"))
    (folder / "sparse" / "rigs.bin").unlink(missing_ok=True)
    os.mkfifo(folder / "sparse" / "rigs.bin")
    with pytest.raises(StorageError, match=r"rigs\.bin: is a pipe"):
        read_workspace(folder)
