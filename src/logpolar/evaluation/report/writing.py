"""A report: our runs beside the paper's tables and figures, as Markdown, JSON and pictures.

Sections are the paper's tables and figures. Those without a run name the command for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logpolar.evaluation.protocol import draw_figures, made_by
from logpolar.evaluation.report import paper_numbers as paper
from logpolar.evaluation.report.runs import Run
from logpolar.storage.atomic_io import write_whole
from logpolar.storage.documents import markdown_table, write_json

NONE = "–"
"""Cell without a counterpart in the paper, or without a value."""

INTERVAL = "95 %"
"""Column with the interval of the column before it."""

INTRODUCTION = (
    'The paper: "Beyond Cartesian Representations for Local Descriptors", ICCV 2019. Our descriptors have a '
    "counterpart there if they are of the same kind with the same support λ; models were trained on other data. "
    "Our SIFT at λ = 12 is OpenCV's, whose cells cover 6 keypoint sizes; the paper's code has patches of 12. "
    "Its Fig. 3, the network, and Fig. 6 and Table 6, its data set, involve no measurement: see `logpolar models` "
    "and `logpolar dataset show`."
)


@dataclass(frozen=True)
class Table:
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass
class Section:
    """A table or a figure of the paper. ``command``: what runs it; empty if it needs no run.

    ``paper`` and ``ours`` are the numbers behind the tables, ours by run, as plain values. ``figures``: captions and
    functions that draw, by the name of the file without its ending.
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

    def methods(self) -> Iterator[tuple[Run, str, Any]]:
        """Runs, names of methods, and their results."""
        return ((run, name, found) for run in self.runs for name, found in run.results.items())

    def add_table(self, caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        if rows:
            self.tables.append(Table(caption, columns, rows))

    def markdown(self, drawn: Mapping[str, str]) -> str:
        blocks = [f"## {self.title}\n", f"{self.note}\n"]
        if self.missing:
            blocks.append(f"**Not run.** The command for it: `{self.command}`\n")
        for table in self.tables:
            blocks += [f"{table.caption}\n", markdown_table(table.columns, table.rows)]
        for name, (caption, _) in self.figures.items():
            if name in drawn:
                blocks.append(f"![{caption}]({drawn[name]})\n\n*{caption}*\n")
        return "\n".join(blocks)

    def to_dict(self, drawn: Mapping[str, str]) -> dict[str, Any]:
        return {
            "title": self.title,
            "note": self.note,
            "not_run": self.command if self.missing else None,
            "runs": [run.label for run in self.runs],
            "paper": self.paper,
            "ours": self.ours,
            "figures": [f"{name}.png" for name in self.figures if name in drawn],
        }


def of_protocol(runs: Sequence[Run], protocol: str, fixed: bool = False) -> list[Run]:
    """Runs of a protocol, those with the detector's scales or those with fixed sizes."""
    return [run for run in runs if run.protocol == protocol and (run.fixed_size is not None) == fixed]


def in_paper(run: Run, name: str, row: paper.Row) -> str | None:
    """The counterpart of a method in the paper, which has SIFT keypoints only."""
    return paper.counterpart(run.identity(name), row) if run.on_sift else None


def counted(score: Mapping[str, Any]) -> str:
    return f"{score['correspondences']} ({score['pairs']})"


def write_report(output: Path, sections: Sequence[Section], runs: Sequence[Run]) -> list[str]:
    """Write the report; the names of its files.

    ``output`` is an existing folder, or a Markdown file: then all else goes to a folder of the same name beside it.
    """
    folder, markdown = (output.with_suffix(""), output) if output.suffix == ".md" else (output, output / "report.md")
    folder.mkdir(exist_ok=True)
    place = folder.relative_to(markdown.parent)
    figures = {name: draw for section in sections for name, (_, draw) in section.figures.items()}
    made, reason = draw_figures(folder, figures)
    linked = {Path(file).stem: (place / file).as_posix() for file in made}
    document = {
        "protocol": "report",
        **made_by(),
        "runs": [run.about() for run in runs],
        "sections": [section.to_dict(linked) for section in sections],
        "figures_left_out": reason,
    }
    write_json(folder / "report.json", document)
    write_whole(markdown, _markdown(sections, runs, linked, reason).encode())
    return [markdown.name, (place / "report.json").as_posix(), *linked.values()]


def _markdown(sections: Sequence[Section], runs: Sequence[Run], drawn: Mapping[str, str], reason: str) -> str:
    missing = [section.title for section in sections if section.missing]
    blocks = [
        "# Our figures beside the paper's\n",
        f"{INTRODUCTION}\n",
    ]
    if missing:
        blocks.append("Not run: " + "; ".join(title.partition(":")[0] for title in missing) + ".\n")
    if reason:
        blocks.append(f"Figures are left out: {reason}\n")
    return "\n".join([*blocks, *(section.markdown(drawn) for section in sections), _runs_markdown(runs)])


def _runs_markdown(runs: Sequence[Run]) -> str:
    blocks = ["## Runs\n"]
    for run in runs:
        lines = run_lines(run) | ({"command": f"`{run.command}`"} if run.command else {})
        blocks += [f"**{run.label}**\n", "\n".join(f"- {name}: {text}" for name, text in lines.items() if text) + "\n"]
    return "\n".join(blocks)


def run_lines(run: Run) -> dict[str, str]:
    """What is known of a run, in words by name; the last may be empty."""
    return {
        "command": run.command or "not recorded",
        "N": counts(run),
        "seed": "not recorded" if run.seed is None else str(run.seed),
        "versions": ", ".join(f"{name} {number}" for name, number in run.versions.items()) or "not recorded",
        "options": _options(run),
        "not measured, weights missing": ", ".join(each["name"] for each in run.descriptors if "missing" in each),
    }


def _options(run: Run) -> str:
    return ", ".join(f"{name} {value}" for name, value in run.options.items() if value != "") or "not recorded"


def counts(run: Run) -> str:
    """The distinct N of a run, in words."""
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
