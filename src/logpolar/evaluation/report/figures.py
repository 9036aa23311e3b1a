"""The paper's Figs. 1, 2, 4 and 5: the first two of the shipped photo, the others of our runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from logpolar.errors import LogpolarError
from logpolar.evaluation.patches import ANGLE_EDGES, MISMATCH_EDGES, Classes
from logpolar.evaluation.report import paper_numbers as paper
from logpolar.evaluation.report.runs import Run
from logpolar.evaluation.report.writing import NONE, Section, in_paper, of_protocol
from logpolar.evaluation.retrieval import Retrieval, summary_cells


def _drawing(module: str, function: str, *arguments: Any) -> Callable[[], Any]:
    """Draws by a function of a module that needs matplotlib, and is imported only then."""

    def draw() -> Any:
        from importlib import import_module

        return getattr(import_module(f"logpolar.evaluation.{module}"), function)(*arguments)

    return draw


def sampling_patterns() -> Section:
    section = Section(
        "Fig. 1: Pooling and sampling",
        "Drawn with this library's patterns on the shipped photo. SIFT and others pool features over regions whose "
        "size follows the keypoint's: at another scale they cover other regions of the image. Log-polar patches are "
        "shifted instead.",
        "",
    )
    caption = "Pooling and sampling as the size of a keypoint is 1, 2 and 4 times as large"
    section.figures["figure-1"] = caption, _drawing("report.paper_plots", "plot_pooling")
    return section


def patches_of_pairs() -> Section:
    section = Section(
        "Fig. 2: Cartesian and log-polar patches",
        "Four keypoints that SIFT found in two views of the shipped photo, the second one downscaled, rotated and "
        "tilted. Patches have the detected sizes and orientations; the red keypoint has the largest scale mismatch.",
        "",
    )
    draw = _drawing("report.paper_plots", "plot_pair")
    section.figures["figure-2"] = "Corresponding patches of two views, λ = 16", draw
    caption = "The blue keypoint in both views as the support λ grows; plain gray is off the image"
    section.figures["figure-2-supports"] = caption, _drawing("report.paper_plots", "plot_supports")
    return section


def fpr95_by_errors(runs: Sequence[Run]) -> Section:
    section = Section(
        "Fig. 4: FPR95 by scale and orientation errors",
        paper.NOT_COMPARABLE["Fig. 4"],
        "logpolar eval patches SCENES.h5 -d sift -d paper-cartesian-12 -d logpolar-96 -o results/patches",
        None,
        of_protocol(runs, "patches"),
    )
    for run in section.runs:
        section.ours[run.label] = {name: found["mean"]["classes"] for name, found in run.results.items()}
        if run.results:
            classes = {name: _classes(run, found["mean"]["classes"]) for name, found in run.results.items()}
            caption = f"FPR95 by errors of the detector, means of scenes: {run.label}"
            name = _file_name("figure-4", run, section.runs)
            section.figures[name] = caption, _drawing("figures", "plot_classes", classes)
    return section


def _classes(run: Run, values: Mapping[str, Any]) -> Classes:
    shape = len(ANGLE_EDGES) - 1, len(MISMATCH_EDGES) - 1
    try:
        counts, fractions = np.array(values["counts"], np.int64), np.array(values["fpr95"], np.float64)  # None is NaN
    except (TypeError, ValueError):
        counts, fractions = np.zeros(0, np.int64), np.zeros(0)
    if counts.shape != shape or fractions.shape != shape:
        size = " x ".join(map(str, shape))
        raise LogpolarError(f"{run.path}: 'classes' is not the {size} table of this version; rerun its command")
    return Classes(counts, fractions)


def ranks_among_distractors(runs: Sequence[Run]) -> Section:
    section = Section(
        "Fig. 5: Retrieval, ranks among distractors",
        paper.NOT_COMPARABLE["Fig. 5"],
        "logpolar eval retrieval SCENES.h5 -d sift -d paper-cartesian-12 -d logpolar-96 -o results/retrieval",
        dict(paper.FIGURE_5),
        of_protocol(runs, "retrieval"),
    )
    rows = []
    for run, name, scenes in section.methods():
        section.ours[run.label] = run.results
        other = in_paper(run, name, paper.FIGURE_5)
        cells = [cell or NONE for cell in summary_cells(scenes["mean"])]
        rows.append([name, run.label, *cells, f"about {paper.FIGURE_5[other]:.2f}" if other else NONE])
    columns = ["descriptor", "run", *Retrieval.columns, "rank-1, paper"]
    section.add_table("Fraction of keypoints whose match has that rank or a better one.", columns, rows)
    section.figures |= rank_figures("figure-5", section.runs)
    return section


def rank_figures(start: str, runs: Sequence[Run]) -> dict[str, tuple[str, Callable[[], Any]]]:
    """A figure of ranks for each run of retrieval that has results."""
    figures = {}
    for run in runs:
        curves = {name: _curve(run, found["mean"]) for name, found in run.results.items()}
        if curves:
            caption = f"Fraction of matches by rank, means of scenes: {run.label}"
            places = next(iter(curves.values()))[0]
            fractions = {name: np.array(values) for name, (_, values) in curves.items()}
            figures[_file_name(start, run, runs)] = caption, _drawing("figures", "plot_ranks", places, fractions)
    return figures


def _curve(run: Run, mean: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    """The whole curve; files of older versions have its values at some places only."""
    curve = mean.get("curve", {"places": list(mean["shares"]), "shares": list(mean["shares"].values())})
    try:
        places, fractions = [int(place) for place in curve["places"]], [float(each) for each in curve["shares"]]
        if len(places) != len(fractions):
            raise ValueError("different lengths")
    except (KeyError, TypeError, ValueError) as error:
        raise LogpolarError(f"{run.path}: 'curve' is not a curve; rerun its command") from error
    return places, fractions


def _file_name(start: str, run: Run, runs: Sequence[Run]) -> str:
    """With the label's text in brackets if there are several runs."""
    if len(runs) == 1:
        return start
    return f"{start}-{re.sub(r'[^0-9A-Za-z._-]+', '-', run.label.partition(' ')[2]).strip('-')}"
