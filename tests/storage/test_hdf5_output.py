from __future__ import annotations

import errno
import os

import h5py
import numpy as np
import pytest

from logpolar.storage import hdf5_output
from logpolar.storage.hdf5_output import writing


def fill(file, groups=range(20)):
    for number in groups:
        file.create_dataset(f"{number}/a", data=np.full(300, number))


@pytest.fixture
def small_disk(monkeypatch):
    """A disk on which so many bytes can be written."""

    def of(size):
        left = [size]
        write = os.write

        def limited(handle, content):
            if left[0] <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written = write(handle, content[: left[0]])
            left[0] -= written
            return written

        monkeypatch.setattr(hdf5_output.os, "write", limited)

    return of


def test_content(tmp_path):
    with writing(tmp_path / "a.h5") as file:
        fill(file)
    with writing(tmp_path / "a.h5", "a") as file:
        file["more"] = 5
        del file["3"]
    with h5py.File(tmp_path / "a.h5") as file:
        assert sorted(file) == sorted(["more", *(str(number) for number in range(20) if number != 3)])
        assert all((file[f"{number}/a"][()] == number).all() for number in range(20) if number != 3)


def test_writing_anew_empties_the_file(tmp_path):
    (tmp_path / "a.h5").write_bytes(b"x" * 100_000)
    with writing(tmp_path / "a.h5") as file:
        file["a"] = 1
    assert (tmp_path / "a.h5").stat().st_size < 10_000


@pytest.mark.parametrize("size", [0, 1, 700, 3000, 9000, 20_000])
def test_a_full_disk_is_one_error(tmp_path, small_disk, size):
    small_disk(size)
    with pytest.raises(OSError, match="No space left"), writing(tmp_path / "a.h5") as file:
        fill(file)
        assert all((file[f"{number}/a"][()] == number).all() for number in range(20))  # HDF5 sees what it wrote


def test_a_full_disk_while_a_file_grows(tmp_path, small_disk):
    with writing(tmp_path / "a.h5") as file:
        fill(file)
    small_disk(5000)
    with pytest.raises(OSError, match="No space left"), writing(tmp_path / "a.h5", "a") as file:
        fill(file, range(20, 40))


def test_another_error_in_the_block_stays_what_it_is(tmp_path):
    with pytest.raises(KeyError, match="mine"), writing(tmp_path / "a.h5"):
        raise KeyError("mine")


def test_a_file_that_somebody_reads_is_refused(tmp_path):
    with writing(tmp_path / "a.h5") as file:
        file["a"] = 1
    with h5py.File(tmp_path / "a.h5"), pytest.raises(BlockingIOError), writing(tmp_path / "a.h5", "a"):
        pass
