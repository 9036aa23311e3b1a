"""Logs of a run: CSV files, and TensorBoard event files if it is installed."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from logpolar.storage.atomic_io import write_whole


class Table:
    """A CSV file whose first column is the step; rows appear as soon as they are added."""

    def __init__(self, path: Path, after: int) -> None:
        """Continues an existing file, dropping its rows after step ``after``."""
        self._path = path
        self._columns: list[str] = []
        if path.exists():
            with path.open(newline="") as file:
                header, *rows = [row for row in csv.reader(file) if row] or [[]]
            kept = [row for row in rows if row[0].isdigit() and int(row[0]) <= after]  # a crash may leave half a row
            text = io.StringIO()
            csv.writer(text).writerows([header, *kept])
            write_whole(path, text.getvalue().encode())
            self._columns = header

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        with self._path.open("a", newline="") as file:
            writer = csv.writer(file)
            if not self._columns:
                self._columns = ["step", *values]
                writer.writerow(self._columns)
            writer.writerow([step, *(values[name] for name in self._columns[1:])])


class Records:
    """The log of a run in a folder: ``log.csv``, ``validation.csv``, ``tensorboard/``."""

    def __init__(self, folder: Path, after: int, tensorboard: bool) -> None:
        self._tables = {name: Table(folder / f"{name}.csv", after) for name in ("log", "validation")}
        self._board = _open_board(folder / "tensorboard", after) if tensorboard else None

    def add(self, table: str, step: int, values: Mapping[str, Any]) -> None:
        self._tables[table].add(step, values)
        for name, value in values.items():
            if self._board and isinstance(value, int | float):
                self._board.add_scalar(f"{table}/{name}", value, step)

    def close(self) -> None:
        if self._board:
            self._board.close()


def _open_board(folder: Path, after: int) -> Any:
    """A writer, or None where TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=after + 1)
