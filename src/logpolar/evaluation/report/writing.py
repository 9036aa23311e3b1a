"""A report: our runs beside the paper's tables and figures, as Markdown, as JSON, and as pictures.

Sections are the paper's tables and figures. What has no run is named, with the command that would run it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logpolar.errors import MissingExtraError
from logpolar.evaluation.report.runs import Run
from logpolar.storage.atomic_io import write_whole
from logpolar.storage.documents import markdown_table, write_json


@dataclass(frozen=True)
class Table:
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass
class Section:
    """A table or a figure of the paper. ``command``: what runs it; empty if it needs no run.

    ``paper`` and ``ours`` are the numbers behind the tables, ours by run, as plain values. ``figures``: functions that
    draw, by the name of the file without its ending, with captions.
    """

    title: str
    note: str
    command: str
    paper: Any = None
    runs: Sequence[Run] = ()
    ours: dict[str, Any] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    figures: dict[str, tuple[str, Callable[[], Any]]] = field(default_factory=dict)

    @property
    def missing(self) -> bool:
        return bool(self.command) and not self.runs

    def markdown(self, drawn: Mapping[str, str]) -> str:
        parts = [f"## {self.title}\n", f"{self.note}\n"]
        if self.missing:
            parts.append(f"**Not run.** The command that will run it: `{self.command}`\n")
        for table in self.tables:
            parts += [f"{table.caption}\n", markdown_table(table.columns, table.rows)]
        for name, (caption, _) in self.figures.items():
            if name in drawn:
                parts.append(f"![{caption}]({drawn[name]})\n\n*{caption}*\n")
        return "\n".join(parts)

    def to_dict(self, drawn: Mapping[str, str]) -> dict[str, Any]:
        return {
            "title": self.title,
            "note": self.note,
            "not_run": self.command if self.missing else None,
            "runs": [run.label for run in self.runs],
            "paper": self.paper,
            "ours": self.ours,
            "figures": [drawn[name] for name in self.figures if name in drawn],
        }


def write_report(
    output: Path, sections: Sequence[Section], runs: Sequence[Run], made_by: Mapping[str, Any]
) -> tuple[list[str], str]:
    """Write the report; the names of its files, and why there are no figures, if so.

    ``output`` is a folder that exists, or a Markdown file: then all else goes to a folder of the same name beside it,
    which is made.
    """
    folder, markdown = (output.with_suffix(""), output) if output.suffix == ".md" else (output, output / "report.md")
    folder.mkdir(exist_ok=True)
    place = folder.relative_to(markdown.parent)
    drawn, reason = _draw(folder, sections)
    linked = {name: (place / file).as_posix() for name, file in drawn.items()}
    document = {
        "protocol": "report",
        **made_by,
        "runs": [run.about() for run in runs],
        "sections": [section.to_dict(drawn) for section in sections],
        "figures_left_out": reason,
    }
    write_json(folder / "report.json", document)
    write_whole(markdown, _markdown(sections, runs, linked, reason).encode())
    return [markdown.name, (place / "report.json").as_posix(), *linked.values()], reason


def _draw(folder: Path, sections: Sequence[Section]) -> tuple[dict[str, str], str]:
    drawn: dict[str, str] = {}
    try:
        for section in sections:
            for name, (_, draw) in section.figures.items():
                draw().savefig(folder / f"{name}.png", dpi=130)
                drawn[name] = f"{name}.png"
    except MissingExtraError as error:
        return {}, str(error)
    return drawn, ""


def _markdown(sections: Sequence[Section], runs: Sequence[Run], drawn: Mapping[str, str], reason: str) -> str:
    missing = [section.title for section in sections if section.missing]
    parts = [
        "# Our figures beside the paper's\n",
        'The paper: "Beyond Cartesian Representations for Local Descriptors", ICCV 2019. Descriptors of ours have a '
        "counterpart there if they are of the same kind with the same support λ; models were trained on other data. "
        "Of SIFT, ours at λ = 12 is OpenCV's, whose cells cover 6 keypoint sizes; the paper's code has patches of 12. "
        "Its Fig. 3, the network, and Fig. 6 and Table 6, its data set, have nothing to measure: see `logpolar models` "
        "and `logpolar dataset show`.\n",
    ]
    if missing:
        parts.append("Not run: " + "; ".join(title.partition(":")[0] for title in missing) + ".\n")
    if reason:
        parts.append(f"Figures are left out: {reason}\n")
    return "\n".join([*parts, *(section.markdown(drawn) for section in sections), _runs_markdown(runs)])


def _runs_markdown(runs: Sequence[Run]) -> str:
    parts = ["## Runs\n"]
    for run in runs:
        command = f"`{run.command}`" if run.command else "not recorded"
        seed = "not recorded" if run.seed is None else str(run.seed)
        versions = ", ".join(f"{name} {number}" for name, number in run.versions.items()) or "not recorded"
        lines = {"command": command, "N": counts(run), "seed": seed, "versions": versions, "options": _options(run)}
        absent = [each["name"] for each in run.descriptors if "missing" in each]
        lines |= {"not measured, weights not at hand": ", ".join(absent)} if absent else {}
        parts += [f"**{run.label}**\n", "\n".join(f"- {name}: {text}" for name, text in lines.items()) + "\n"]
    return "\n".join(parts)


def _options(run: Run) -> str:
    return ", ".join(f"{name} {value}" for name, value in run.options.items() if value != "") or "not recorded"


def counts(run: Run) -> str:
    """N of a run in words: each distinct one, since descriptors share what they are measured on."""
    found: dict[str, None] = {}
    for result in run.results.values():
        if run.protocol == "hpatches":
            found |= dict.fromkeys(
                f"{split['correspondences']} in {split['pairs']} pairs of {name}"
                for score in result
                for name, split in score["splits"].items()
            )
        elif run.protocol == "amos":
            found[f"{result['pairs']} in {result['views']} views"] = None
        elif run.protocol == "phototourism":
            found |= dict.fromkeys(f"{score['pairs']} pairs, {views} views" for views, score in result["mean"].items())
        elif run.protocol == "sfm":
            images = ", ".join(f"{score['images']} of {scene}" for scene, score in result["scenes"].items())
            found[f"{result['all']['images']} images ({images})"] = None
        else:
            score = result.get("mean", result)
            found[f"{score['correspondences']} correspondences in {score['pairs']} image pairs"] = None
    return "; ".join(found) or "0"
