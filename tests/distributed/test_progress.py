from __future__ import annotations

import io

import pytest

from logpolar.distributed import progress, show_progress


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the test sets."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_lines_with_counts_and_time_left(clock, capsys):
    with show_progress(10, "features", "image", done=2) as lines:
        for _ in range(4):
            clock[0] += 15
            lines.update()
    assert capsys.readouterr().err.splitlines() == [
        "features: 4 of 10 images, about 2 min left",
        "features: 6 of 10 images, about 1 min left",
    ]


def test_a_quick_run_prints_nothing(clock, capsys):
    with show_progress(2, "features", "image") as lines:
        lines.update()
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal_and_nothing_if_not_shown(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    with show_progress(3, "features", "image", shown=False) as bar:
        bar.update()
    assert terminal.getvalue() == ""
    with show_progress(3, "features", "image") as bar:
        bar.update()
    assert "features" in terminal.getvalue()
