from __future__ import annotations

import struct

import numpy as np
import pytest

from logpolar.errors import StorageError
from logpolar.sfm.depth_maps import depth_size, read_depth


def write_by_hand(path, width: int, height: int, values, header: bytes | None = None):
    """COLMAP's format, number by number."""
    header = f"{width}&{height}&1&".encode() if header is None else header
    path.write_bytes(header + b"".join(struct.pack("<f", value) for value in values))
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "view.png.geometric.bin"


def test_rows_of_values_come_back(path):
    write_by_hand(path, 3, 2, [1, 2, 3, 4.5, 5, 1e-3])
    depth = read_depth(path)
    assert depth.dtype == np.float32
    np.testing.assert_array_equal(depth, np.float32([[1, 2, 3], [4.5, 5, 1e-3]]))
    assert depth_size(path) == (3, 2)


def test_what_is_no_depth_becomes_zero(path):
    nothing = [float("nan"), float("inf"), -float("inf"), -1.0, -0.0, 0.0]
    depth = read_depth(write_by_hand(path, 4, 2, [2.0, *nothing, 7.0]))
    assert depth.ravel().tolist() == [2, 0, 0, 0, 0, 0, 0, 7]


def test_values_that_look_like_a_header(path):
    """The bytes of a float may be digits and ampersands."""
    tricky = struct.unpack("<f", b"&12&")[0]
    assert read_depth(write_by_hand(path, 2, 1, [tricky, 1.5])).tolist() == [[np.float32(tricky), 1.5]]


def test_one_pixel(path):
    assert read_depth(write_by_hand(path, 1, 1, [3.0])).tolist() == [[3.0]]


def test_a_map_of_usual_size(path):
    values = np.random.default_rng(0).uniform(1, 9, (120, 160)).astype(np.float32)
    path.write_bytes(b"160&120&1&" + values.astype("<f4").tobytes())
    np.testing.assert_array_equal(read_depth(path), values)
    assert depth_size(path) == (160, 120)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"2&2&",
        b"2&2&1",
        b"2 2 1 ",
        b"2&x&1&",
        b"&2&1&",
        b"-2&-2&1&",
        b"2.0&2&1&",
        b"\x89PNG\r\n\x1a\n",
        b"\0" * 80,
    ],
)
def test_wrong_header(path, header):
    write_by_hand(path, 2, 2, [], header)
    for read in (read_depth, depth_size):
        with pytest.raises(StorageError, match="not a COLMAP depth map") as error:
            read(path)
        assert str(path) in str(error.value)


@pytest.mark.parametrize("header", [b"2&2&3&", b"2&2&0&", b"0&2&1&", b"2&0&1&"])
def test_three_channels_or_no_pixels(path, header):
    """COLMAP's normal maps have three channels and lie beside the depth maps."""
    write_by_hand(path, 2, 2, [1.0] * 12, header)
    for read in (read_depth, depth_size):
        with pytest.raises(StorageError, match="one channel") as error:
            read(path)
        assert str(path) in str(error.value)


@pytest.mark.parametrize("change", [-24, -4, -1, 1, 4, 400])
def test_shorter_or_longer_than_its_header_says(path, change):
    write_by_hand(path, 3, 2, [1.0] * 6)
    data = path.read_bytes()
    path.write_bytes(data[:change] if change < 0 else data + b"\0" * change)
    for read in (read_depth, depth_size):
        with pytest.raises(StorageError, match="truncated or damaged") as error:
            read(path)
        assert str(path) in str(error.value)
        assert str(len(data) + change) in str(error.value)


def test_a_header_that_promises_more_than_there_is(path):
    write_by_hand(path, 3, 2, [1.0] * 6, b"99999999&99999999&1&")
    with pytest.raises(StorageError, match="truncated"):
        read_depth(path)


def test_missing_file(path):
    for read in (read_depth, depth_size):
        with pytest.raises(StorageError, match="no such file") as error:
            read(path)
        assert str(path) in str(error.value)


def test_a_folder(path):
    path.mkdir()
    with pytest.raises(StorageError, match="directory") as error:
        read_depth(path)
    assert str(path) in str(error.value)
