"""Figures of evaluations as plain functions over matplotlib (extra ``viz``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.errors import MissingExtraError
from logpolar.evaluation.patches import ANGLE_EDGES, FEWEST, MISMATCH_EDGES, Classes

try:
    from matplotlib import colormaps
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingExtraError("this figure", "viz") from error

Curve = tuple[Sequence[float], Sequence[float]]
"""Positions on the x axis and values there; NaN for missing values."""

_MARKERS = "osD^vP*X<>"


def plot_classes(classes: Mapping[str, Classes]) -> Figure:
    """The paper's Fig. 4: FPR95 by errors of the detector, a panel for each method, one colour bar for all.

    The scale mismatch grows to the right, the orientation error downwards. Classes with too few positives are gray.
    """
    columns = 2 if len(classes) == 4 else min(len(classes), 3)
    rows = math.ceil(len(classes) / columns)
    figure = Figure(figsize=(3.6 * columns + 1.2, 3.0 * rows + 0.5), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    most = max((float(np.nanmax(each.fpr95)) for each in classes.values() if np.isfinite(each.fpr95).any()), default=1)
    colours = colormaps["viridis"].with_extremes(bad="0.8")
    shown: Any = None
    for axis, (name, each) in zip(axes.flat, classes.items(), strict=False):
        shown = axis.imshow(100 * each.fpr95, cmap=colours, vmin=0, vmax=100 * most or 1, aspect="auto")
        axis.set_title(name, fontsize=10)
        for (row, column), value in np.ndenumerate(each.fpr95):
            if math.isfinite(value):
                ink = "black" if value > 0.6 * most else "white"
                axis.text(column, row, f"{100 * value:.3g}", ha="center", va="center", fontsize=7, color=ink)
        axis.set_xticks(np.arange(len(MISMATCH_EDGES)) - 0.5, [f"{edge:.3g}×" for edge in MISMATCH_EDGES], fontsize=7)
        axis.set_yticks(np.arange(len(ANGLE_EDGES)) - 0.5, [f"{edge:g}°" for edge in ANGLE_EDGES], fontsize=7)
    for axis in axes[:, 0]:
        axis.set_ylabel("orientation error", fontsize=8)
    for axis in axes.flat[len(classes) :]:
        axis.axis("off")
    for column in range(columns):
        last = axes[(len(classes) - 1 - column) // columns, column]
        last.set_xlabel("scale mismatch", fontsize=8)
    figure.colorbar(shown, ax=axes, label=f"FPR95, % (gray: fewer than {FEWEST} positives)")
    return figure


def plot_ranks(places: Sequence[int], fractions: Mapping[str, NDArray[np.floating]]) -> Figure:
    """The paper's Fig. 5: fraction of keypoints by the rank of their match."""
    figure = Figure(figsize=(6.5, 4.5), layout="constrained")
    axis = figure.subplots()
    for number, (name, values) in enumerate(fractions.items()):
        label = f"{name} ({values[0]:.3f} at 1)"
        axis.plot(places, values, label=label, drawstyle="steps-post", **_style(number, marked=False))
    axis.set(
        xscale="log", xlim=(1, max(places)), xlabel="rank", ylabel="fraction of matches with that rank or a better one"
    )
    axis.xaxis.set_major_formatter("{x:g}")
    lowest = min(float(np.min(values)) for values in fractions.values())
    axis.set_ylim(max(0, math.floor(10 * lowest - 0.5) / 10), 1.005)
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=8, loc="lower right")
    return figure


def plot_curves(panels: Mapping[str, Mapping[str, Curve]], xlabel: str, ylabel: str, log2: bool = False) -> Figure:
    """A panel for each title, with a curve for each method; ``log2`` for factors.

    The y axis runs from the tenth below the lowest value to 1.
    """
    values = [value for curves in panels.values() for _, y in curves.values() for value in y if math.isfinite(value)]
    least = max(math.floor(10 * min(values, default=0) - 1e-9), 0) / 10
    figure = Figure(figsize=(4.6 * len(panels) + 0.6, 3.9), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, (title, curves) in zip(axes, panels.items(), strict=True):
        for number, (name, (x, y)) in enumerate(curves.items()):
            axis.plot(x, y, label=name, **_style(number))
        ticks = sorted({place for x, _ in curves.values() for place in x})
        if log2:
            axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_xticks([], minor=True)
        axis.set(title=title, xlabel=xlabel, ylim=(least, 1 + 0.02 * (1 - least)))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(ylabel)
    axes[0].legend(fontsize=8)
    return figure


def _style(number: int, marked: bool = True) -> dict[str, Any]:
    """Ten colours, then dashed lines; markers tell curves apart without colour."""
    line = {"color": colormaps["tab10"](number % 10), "linestyle": ("-", "--", ":")[number // 10 % 3]}
    return {**line, "marker": _MARKERS[number % len(_MARKERS)], "markersize": 4} if marked else line
