from __future__ import annotations

import json
import re

from logpolar.viewing.pages.document import PageFigure, PageSection, PageTable, write_document


def test_everything_is_in_the_page(tmp_path):
    table = PageTable("Scores.", ["name", "score"], [["a", "1"], ("b", "2")], ["run 1", ""])
    section = PageSection("First", ["A note."], [table], [PageFigure("A plot", b"abc")])
    write_document(tmp_path / "p.html", "Title", "Intro", [section], "logpolar eval", {"numpy": "2"})
    data = json.loads(re.search(r'id="data">(.*?)</script>', (tmp_path / "p.html").read_text()).group(1))
    assert data == {
        "title": "Title",
        "intro": "Intro",
        "sections": [
            {
                "title": "First",
                "notes": ["A note."],
                "tables": [
                    {
                        "caption": "Scores.",
                        "columns": ["name", "score"],
                        "rows": [["a", "1"], ["b", "2"]],
                        "hints": ["run 1", ""],
                    }
                ],
                "figures": [{"caption": "A plot", "picture": "data:image/png;base64,YWJj"}],
            }
        ],
        "command": "logpolar eval",
        "versions": "numpy 2",
    }
