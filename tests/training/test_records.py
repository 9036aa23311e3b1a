from __future__ import annotations

import contextlib
import sys

import pytest

from logpolar.training.records import Records, Table
from training_runs import read_rows


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.csv"


def fill(path, steps, after=0):
    table = Table(path, after)
    for step in steps:
        table.add(step, {"loss": step / 10, "rate": 10 * step})


def steps_of(path):
    return [int(row["step"]) for row in read_rows(path)]


class TestTable:
    def test_rows(self, path):
        fill(path, [1, 2])
        assert path.read_text().splitlines() == ["step,loss,rate", "1,0.1,10", "2,0.2,20"]

    def test_rows_appear_at_once(self, path):
        table = Table(path, 0)
        assert not path.exists()
        table.add(5, {"a": 1})
        assert read_rows(path) == [{"step": "5", "a": "1"}]

    def test_goes_on_without_what_is_later_than_the_checkpoint(self, path):
        fill(path, [2, 4, 6, 10, 12])
        fill(path, [8, 10], after=6)
        assert steps_of(path) == [2, 4, 6, 8, 10]
        assert path.read_text().count("step") == 1

    def test_later_rows_are_gone_before_any_is_added(self, path):
        fill(path, [2, 4, 10])
        Table(path, 4)
        assert steps_of(path) == [2, 4]

    def test_from_the_start(self, path):
        fill(path, [2, 4])
        fill(path, [1], after=0)
        assert steps_of(path) == [1]

    def test_values_follow_the_columns(self, path):
        fill(path, [1])
        Table(path, 1).add(2, {"rate": "r", "loss": "l"})
        assert read_rows(path)[1] == {"step": "2", "loss": "l", "rate": "r"}

    @pytest.mark.parametrize("tail", ["x", "\0\0\0\r\n", ",5\r\n", "\r\n\r\n"])
    def test_what_a_crash_left_is_dropped(self, path, tail):
        fill(path, [1, 2])
        with path.open("a", newline="") as file:
            file.write(tail)
        fill(path, [3], after=2)
        assert steps_of(path) == [1, 2, 3]

    def test_empty_file(self, path):
        path.touch()
        fill(path, [1])
        fill(path, [2], after=1)
        assert steps_of(path) == [1, 2]


class TestRecords:
    def test_two_tables(self, tmp_path):
        with contextlib.closing(Records(tmp_path, 0, tensorboard=False)) as records:
            records.add("log", 1, {"loss": 0.5})
            records.add("validation", 1, {"rank1": 0.25, "nothing": None})
        assert read_rows(tmp_path / "log.csv") == [{"step": "1", "loss": "0.5"}]
        assert read_rows(tmp_path / "validation.csv") == [{"step": "1", "rank1": "0.25", "nothing": ""}]
        assert sorted(each.name for each in tmp_path.iterdir()) == ["log.csv", "validation.csv"]

    def test_both_go_on(self, tmp_path):
        for after in (0, 2):
            with contextlib.closing(Records(tmp_path, after, tensorboard=False)) as records:
                for step in (after + 1, after + 2, after + 3):
                    records.add("log", step, {"loss": step})
                    records.add("validation", step, {"rank1": step})
        assert steps_of(tmp_path / "log.csv") == steps_of(tmp_path / "validation.csv") == [1, 2, 3, 4, 5]

    def test_tensorboard(self, tmp_path):
        accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        for after in (0, 2):
            with contextlib.closing(Records(tmp_path, after, tensorboard=True)) as records:
                for step in (after + 1, after + 2, after + 3):
                    records.add("log", step, {"loss": step / 4, "words": "none", "nothing": None})
        found = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
        found.Reload()
        assert found.Tags()["scalars"] == ["log/loss"]
        assert [(event.step, event.value) for event in found.Scalars("log/loss")] == [
            (step, step / 4) for step in (1, 2, 3, 4, 5)
        ]

    def test_its_absence_is_no_error(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
        with contextlib.closing(Records(tmp_path, 0, tensorboard=True)) as records:
            records.add("log", 1, {"loss": 0.5})
        assert [each.name for each in tmp_path.iterdir()] == ["log.csv"]
