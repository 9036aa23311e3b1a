"""The paper's Figs. 1, 2, 4 and 5: the first two of the shipped photo, the others of our runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from logpolar.errors import LogpolarError
from logpolar.evaluation.formatting import decimal
from logpolar.evaluation.patches import ANGLE_EDGES, SCALE_EDGES, Classes
from logpolar.evaluation.report import paper_numbers as paper
from logpolar.evaluation.report.runs import Run
from logpolar.evaluation.report.tables import NONE, counted, in_paper, of_protocol
from logpolar.evaluation.report.writing import Section, Table

_PLACES = (1, 2, 5, 10, 100, 1000)


def sampling_patterns() -> Section:
    section = Section(
        "Fig. 1: Pooling and sampling",
        "Drawn with this library's own patterns on the photo that it ships. SIFT and others pool features over regions "
        "whose size follows the keypoint's: at another scale they cover other parts of the image. Log-polar patches "
        "are shifted instead.",
        "",
    )

    def draw() -> Any:
        from logpolar.evaluation.report.paper_plots import plot_pooling

        return plot_pooling()

    section.figures["figure-1"] = ("Pooling and sampling as the size of a keypoint is 1, 2 and 4 times as large", draw)
    return section


def patches_of_pairs() -> Section:
    section = Section(
        "Fig. 2: Cartesian and log-polar patches",
        "Four keypoints that SIFT found in both of two views of the shipped photo, the second one reduced, turned and "
        "tilted. Patches are those of the detected sizes and orientations; the red keypoint is the one whose sizes "
        "disagree most.",
        "",
    )

    def draw_pair() -> Any:
        from logpolar.evaluation.report.paper_plots import plot_pair

        return plot_pair()

    def draw_supports() -> Any:
        from logpolar.evaluation.report.paper_plots import plot_supports

        return plot_supports()

    section.figures["figure-2"] = ("Corresponding patches of two views, λ = 16", draw_pair)
    section.figures["figure-2-supports"] = (
        "The blue keypoint in both views as the support λ grows; plain gray is off the image",
        draw_supports,
    )
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
            name = _file_name("figure-4", run, section.runs)
            section.figures[name] = (
                f"FPR95 by errors of the detector, means of scenes: {run.label}",
                _drawing(classes),
            )
    return section


def _drawing(classes: Mapping[str, Classes]) -> Callable[[], Any]:
    def draw() -> Any:
        from logpolar.evaluation.figures import plot_classes

        return plot_classes(classes)

    return draw


def _classes(run: Run, values: Mapping[str, Any]) -> Classes:
    shape = len(ANGLE_EDGES) - 1, len(SCALE_EDGES) - 1
    try:
        counts, shares = np.array(values["counts"], np.int64), np.array(values["fpr95"], np.float64)  # None is NaN
    except (TypeError, ValueError):
        counts, shares = np.zeros(0, np.int64), np.zeros(0)
    if counts.shape != shape or shares.shape != shape:
        size = " x ".join(map(str, shape))
        raise LogpolarError(f"{run.path}: the classes are not the {size} of this version; run its command again")
    return Classes(counts, shares)


def ranks_among_distractors(runs: Sequence[Run]) -> Section:
    section = Section(
        "Fig. 5: Retrieval, ranks among distractors",
        paper.NOT_COMPARABLE["Fig. 5"],
        "logpolar eval retrieval SCENES.h5 -d sift -d paper-cartesian-12 -d logpolar-96 -o results/retrieval",
        dict(paper.FIGURE_5),
        of_protocol(runs, "retrieval"),
    )
    rows = []
    for run in section.runs:
        section.ours[run.label] = run.results
        for name, scenes in run.results.items():
            mean, other = scenes["mean"], in_paper(run, name, paper.FIGURE_5)
            cells = [decimal(mean["shares"].get(str(place))) or NONE for place in _PLACES]
            cells += [counted(mean), f"{mean['distractors']:.0f}"]
            rows.append([name, run.label, *cells, f"about {paper.FIGURE_5[other]:.2f}" if other else NONE])
    if rows:
        columns = ["descriptor", "run", "rank-1", *(f"rank ≤ {place}" for place in _PLACES[1:])]
        columns += ["N (pairs)", "distractors, mean", "rank-1, paper"]
        section.tables.append(Table("Share of keypoints whose partner is at that rank or a better one.", columns, rows))
    section.figures |= rank_figures("figure-5", section.runs)
    return section


def rank_figures(start: str, runs: Sequence[Run]) -> dict[str, tuple[str, Callable[[], Any]]]:
    """A figure of ranks for each run of retrieval that has results."""
    figures = {}
    for run in runs:
        curves = {name: _curve(run, found["mean"]) for name, found in run.results.items()}
        if curves:
            caption = f"Share of matches by rank, means of scenes: {run.label}"
            figures[_file_name(start, run, runs)] = (caption, _rank_drawing(curves))
    return figures


def _rank_drawing(curves: Mapping[str, tuple[list[int], list[float]]]) -> Callable[[], Any]:
    def draw() -> Any:
        from logpolar.evaluation.figures import plot_ranks

        places = next(iter(curves.values()))[0]
        return plot_ranks(places, {name: np.array(shares) for name, (_, shares) in curves.items()})

    return draw


def _curve(run: Run, mean: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    """The whole curve; files of older versions have its values at some places only."""
    curve = mean.get("curve", {"places": list(mean["shares"]), "shares": list(mean["shares"].values())})
    try:
        places, shares = [int(place) for place in curve["places"]], [float(share) for share in curve["shares"]]
        if len(places) != len(shares):
            raise ValueError("not as many")
    except (KeyError, TypeError, ValueError) as error:
        raise LogpolarError(f"{run.path}: a 'curve' that is none; run its command again") from error
    return places, shares


def _file_name(start: str, run: Run, runs: Sequence[Run]) -> str:
    """With what is in brackets in the label, where there are several."""
    if len(runs) == 1:
        return start
    return f"{start}-{re.sub(r'[^0-9A-Za-z._-]+', '-', run.label.partition(' ')[2]).strip('-')}"
