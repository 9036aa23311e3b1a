"""What the API reference makes of our docstrings, which are written to be read in the source.

Fields of dataclasses are explained by comments behind them, arguments by lines that begin with their names; formulas
and layouts are aligned in columns; examples have the prompt of Python.
"""

from __future__ import annotations

import re
from textwrap import dedent, indent
from typing import Any

import griffe

COLUMNS = re.compile(r"\S {2,}\S")
HEADING = re.compile(r"\w+:\n(?= )")
"""Of a section such as ``Convention:``, whose text follows indented."""

TERM = re.compile(r"``\w+``[^:\n]*: ")
"""How a line begins that explains an argument."""


class Docstrings(griffe.Extension):
    """Comments become docstrings, and docstrings Markdown."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring is None and attr.lines:
            comment = re.search(r"  # (.*)", attr.lines[0])
            if comment:
                text = comment[1][0].upper() + comment[1][1:] + "."
                attr.docstring = griffe.Docstring(text, lineno=attr.lineno, parent=attr)

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(text: str) -> str:
    """Fences around examples and what is aligned in columns, within its section if it is in one; lists of terms."""
    shown, in_section = [], False
    for paragraph in text.split("\n\n"):
        heading = HEADING.match(paragraph)
        in_section = bool(heading) or (in_section and paragraph.startswith(" "))
        start = heading[0] if heading else ""
        body = paragraph.removeprefix(start)
        margin = "    " if in_section else ""
        if body.startswith(">>>"):
            body = fenced("python", re.sub(r"(?m)^(>>>|\.\.\.) |\s*# doctest: \+SKIP$", "", body))
        elif TERM.match(body):
            body = as_list(body)
        elif COLUMNS.search(body) and not body.lstrip().startswith(("|", "-")):
            body = indent(fenced("text", dedent(body)), margin)
        shown.append(start + body)
    return "\n\n".join(shown)


def fenced(language: str, code: str) -> str:
    return f"```{language}\n{code.rstrip()}\n```"


def as_list(paragraph: str) -> str:
    """An item for each line that begins with a term; other lines belong to the item before them."""
    return "\n".join(f"- {line}" if TERM.match(line) else f"    {line}" for line in paragraph.splitlines())
