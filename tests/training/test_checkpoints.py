from __future__ import annotations

import errno
import os
import pickle

import pytest
import torch

from logpolar.errors import LogpolarError
from logpolar.training.checkpoints import load_checkpoint, save_checkpoint

STATE = {
    "step": 12,
    "seconds": 1.5,
    "trainer": {
        "network": {"a.weight": torch.arange(6.0).reshape(2, 3)},
        "rate": torch.tensor(0.1, dtype=torch.float64),
    },
    "scores": {"scene": {"rank1": None, "pairs": 3}},
    "config": {"name": "ünï", "data": [{"files": ["a.h5"], "share": 1.0}]},
    "data": [3, 100],
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.pt"


def assert_refused(path, words="not a checkpoint, or a damaged one"):
    with pytest.raises(LogpolarError) as caught:
        load_checkpoint(path, "cpu")
    assert str(caught.value).startswith(f"{path}: {words}")
    assert "\n" not in str(caught.value)


def test_state_comes_back(path):
    save_checkpoint(path, STATE)
    found = load_checkpoint(path, "cpu")
    assert {key: found[key] for key in ("step", "seconds", "scores", "config")} == {
        key: STATE[key] for key in ("step", "seconds", "scores", "config")
    }
    assert torch.equal(found["trainer"]["network"]["a.weight"], STATE["trainer"]["network"]["a.weight"])
    assert found["trainer"]["rate"].dtype == torch.float64


@pytest.mark.parametrize("key", ["step", "trainer", "seconds", "scores", "config", "data"])
def test_one_that_lacks_something(path, key):
    save_checkpoint(path, {**STATE, key: "text"})
    assert_refused(path, f"this checkpoint is damaged ({key})")


def test_later_one_takes_the_place_of_the_former(path, tmp_path):
    save_checkpoint(path, STATE)
    save_checkpoint(path, {**STATE, "step": 13})
    assert load_checkpoint(path, "cpu")["step"] == 13
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_former_one_survives_a_full_disk(path, tmp_path, monkeypatch):
    save_checkpoint(path, STATE)
    before = path.read_bytes()

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        save_checkpoint(path, {**STATE, "step": 13})
    assert caught.value.filename == str(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint.pt"]


class TestRefused:
    @pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
    def test_cut_off(self, path, share):
        save_checkpoint(path, STATE)
        data = path.read_bytes()
        path.write_bytes(data[: int(share * len(data))])
        assert_refused(path)

    @pytest.mark.parametrize("content", [b"hello", b"\x80\x02.", b"PK\x03\x04" + 100 * b"\0", 5000 * b"\0"])
    def test_something_else(self, path, content):
        path.write_bytes(content)
        assert_refused(path)

    def test_bytes_changed_at_random(self, path):
        """Either it can be read, or it is refused in words."""
        save_checkpoint(path, STATE)
        data, refused = path.read_bytes(), 0
        generator = torch.Generator().manual_seed(0)
        start = data.index(b"data.pkl")
        for place in (start + torch.randint(0, 600, (100,), generator=generator)).tolist():
            path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
            try:
                load_checkpoint(path, "cpu")
            except LogpolarError:
                refused += 1
        assert refused > 30

    def test_wrong_order_of_the_pickle(self, path):
        """What torch's reader makes of a pickle whose stack runs empty is an IndexError."""
        torch.save(STATE, path)
        path.write_bytes(path.read_bytes().replace(b"\x80\x02}q\x00(", b"\x80\x020q\x00(", 1))
        assert_refused(path)

    def test_no_code_is_executed(self, path, tmp_path):
        class Evil:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "evil"),)

        torch.save({"format": "logpolar-checkpoint", "version": 1, "state": Evil()}, path)
        assert_refused(path)
        path.write_bytes(pickle.dumps(Evil()))
        assert_refused(path)
        assert not (tmp_path / "evil").exists()

    @pytest.mark.parametrize("content", [{"step": 3}, {"format": "another", "version": 1}, [1, 2], torch.zeros(3)])
    def test_of_another_program(self, path, content):
        torch.save(content, path)
        assert_refused(path, "not a checkpoint of logpolar")

    def test_of_another_version(self, path):
        torch.save({"format": "logpolar-checkpoint", "version": 99}, path)
        assert_refused(path, "checkpoint version 99, but this logpolar reads 2")

    def test_missing(self, path):
        with pytest.raises(FileNotFoundError):
            load_checkpoint(path, "cpu")
