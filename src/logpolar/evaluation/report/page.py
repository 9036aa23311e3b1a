"""The report as a page: the same tables and figures, sortable, each row with its N, interval and command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from logpolar.evaluation.protocol import made_by
from logpolar.evaluation.report.runs import Run
from logpolar.evaluation.report.writing import INTERVAL, INTRODUCTION, Section, Table, counts, run_lines
from logpolar.viewing.pages.document import PageFigure, PageSection, PageTable, write_document


def write_report_page(path: Path, sections: Sequence[Section], runs: Sequence[Run], figures: Sequence[Path]) -> None:
    """Write the page; ``figures``: the pictures of the sections, as far as they could be drawn."""
    made = made_by()
    pages = [_section(section, {each.stem: each for each in figures}) for section in sections if not section.missing]
    missing = [[section.title, section.command] for section in sections if section.missing]
    if missing:
        pages.append(PageSection("Not run", (), [PageTable("What would run them.", ["", "command"], missing)]))
    rows = [[run.label, *run_lines(run).values()] for run in runs]
    columns = ["run", *dict.fromkeys(name for run in runs for name in run_lines(run))]
    pages.append(PageSection("Runs", (), [PageTable("What the figures come from.", columns, rows)]))
    write_document(path, "Our figures beside the paper's", INTRODUCTION, pages, made["command"], made["versions"])


def _section(section: Section, drawn: Mapping[str, Path]) -> PageSection:
    return PageSection(
        section.title,
        [section.note],
        [_table(table, section.runs) for table in section.tables],
        [PageFigure(text, drawn[name].read_bytes()) for name, (text, _) in section.figures.items() if name in drawn],
    )


def _table(table: Table, runs: Sequence[Run]) -> PageTable:
    return PageTable(table.caption, table.columns, table.rows, [_hint(table, row, runs) for row in table.rows])


def _hint(table: Table, row: Sequence[str], runs: Sequence[Run]) -> str:
    """N, interval, seed and command of the run that a row or its table names; "" for the paper's numbers."""
    named = [run for run in runs if any(cell.split(", ")[0] == run.label for cell in row)]
    run = next(iter([*named, *(run for run in runs if f": {run.label}." in table.caption)]), None)
    if run is None:
        return ""
    cells = dict(zip(table.columns, row, strict=True))
    interval = f"95 % interval {cells[INTERVAL]}" if INTERVAL in cells else ""
    about = run_lines(run)
    parts = [f"{run.label}: N = {counts(run)}", interval, f"seed {about['seed']}", about["command"]]
    return "; ".join(part for part in parts if part)
