"""A page of sections: notes, tables that sort by a click, and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from logpolar.viewing.pages.page import pack_picture, write_page


@dataclass(frozen=True)
class PageTable:
    """Cells are text. ``hints``: where the row comes from, shown while it is pointed at or focused; "" for none."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    hints: Sequence[str] = ()


@dataclass(frozen=True)
class PageFigure:
    """An encoded picture; the caption is also its alternative text."""

    caption: str
    picture: bytes
    kind: str = "png"


@dataclass(frozen=True)
class PageSection:
    title: str
    notes: Sequence[str] = ()
    tables: Sequence[PageTable] = field(default_factory=list)
    figures: Sequence[PageFigure] = field(default_factory=list)


def write_document(
    path: Path, title: str, intro: str, sections: Sequence[PageSection], command: str, versions: Mapping[str, str]
) -> None:
    """Write the page; ``command`` and ``versions`` stand at its end."""
    shown = [
        {
            "title": section.title,
            "notes": list(section.notes),
            "tables": [
                {
                    "caption": table.caption,
                    "columns": list(table.columns),
                    "rows": [list(row) for row in table.rows],
                    "hints": list(table.hints),
                }
                for table in section.tables
            ],
            "figures": [
                {"caption": each.caption, "picture": pack_picture(each.picture, each.kind)} for each in section.figures
            ],
        }
        for section in sections
    ]
    numbers = ", ".join(f"{name} {number}" for name, number in versions.items())
    data = {"title": title, "intro": intro, "sections": shown, "command": command, "versions": numbers}
    write_page(path, "document", title, data)
