"""What the API reference makes of our docstrings, which are written to be read in the source.

Fields of dataclasses are explained by comments behind them; formulas and layouts are aligned in columns.
"""

from __future__ import annotations

import re
from textwrap import dedent, indent
from typing import Any

import griffe

COLUMNS = re.compile(r"\S {2,}\S")
HEADING = re.compile(r"\w+:\n(?= )")
"""Of a section such as ``Convention:``, whose text follows indented."""


class Docstrings(griffe.Extension):
    """Comments become docstrings; paragraphs in columns become code."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring is None and attr.lines:
            comment = re.search(r"  # (.*)", attr.lines[0])
            if comment:
                text = comment[1][0].upper() + comment[1][1:] + "."
                attr.docstring = griffe.Docstring(text, lineno=attr.lineno, parent=attr)

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = columns_as_code(obj.docstring.value)


def columns_as_code(text: str) -> str:
    """Fence what is aligned in columns, within its section if it is in one."""
    shown, in_section = [], False
    for paragraph in text.split("\n\n"):
        heading = HEADING.match(paragraph)
        in_section = bool(heading) or (in_section and paragraph.startswith(" "))
        start = heading[0] if heading else ""
        body = paragraph.removeprefix(start)
        if COLUMNS.search(body) and not body.lstrip().startswith(("|", ">>>", "-")):
            body = indent(f"```text\n{dedent(body).rstrip()}\n```", "    " if in_section else "")
        shown.append(start + body)
    return "\n\n".join(shown)
