"""Figures with matplotlib (extra ``viz``)."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from logpolar.errors import MissingExtraError
from logpolar.geometry.radius_search import keep_apart
from logpolar.images import to_bytes
from logpolar.keypoints import Keypoints
from logpolar.sampling import Cartesian, ImagePyramid, LogPolar, Pattern
from logpolar.types import FloatArray

try:
    from matplotlib import colormaps
    from matplotlib.figure import Figure as Figure
except ImportError as error:
    raise MissingExtraError("this figure", "viz") from error


def spread_keypoints(keypoints: Keypoints, count: int, min_gap: float, max_size: float) -> Keypoints:
    """The strongest keypoints at least ``min_gap`` pixels apart; those above ``max_size`` last."""
    order = np.lexsort((-keypoints.response, keypoints.size > max_size))
    best = keypoints[order[:2000]]  # enough to choose from; more would be slow
    return best[keep_apart(range(len(best)), [best.xy], min_gap, count)]


def plot_patches(gray: FloatArray, keypoints: Keypoints, log_polar: LogPolar, cartesian: Cartesian) -> Figure:
    """Sample positions and patches of both patterns, one row per keypoint, after Figs. 1 and 2 of the paper.

    The last two columns show the same keypoint at twice its size: the cartesian patch changes completely, the
    log-polar patch shifts to the left.
    """
    titles = (
        f"log-polar samples, λ = {log_polar.lambda_:g}",
        f"cartesian samples, λ = {cartesian.lambda_:g}",
        "log-polar patch",
        "cartesian patch",
        "log-polar, size × 2",
        "cartesian, size × 2",
    )
    count = len(keypoints)
    figure = Figure(figsize=(2.2 * len(titles) + 4.4, 2.3 * count + 0.5), layout="constrained")
    overview, details = cast(Any, figure.subfigures(1, 2, width_ratios=[4.4, 2.2 * len(titles)]))
    colours = [colormaps["tab10"](index % 10) for index in range(count)]
    _plot_overview(overview.subplots(), gray, keypoints, log_polar, cartesian, colours)

    pyramid = ImagePyramid(gray)
    doubled = Keypoints(keypoints.xy, 2 * keypoints.size, keypoints.angle, keypoints.response)
    patches = [pyramid.sample(points, pattern) for points in (keypoints, doubled) for pattern in (log_polar, cartesian)]
    axes = details.subplots(count, len(titles), squeeze=False)
    for row in range(count):
        one = keypoints[row : row + 1]
        _plot_samples(axes[row, 0], gray, one, log_polar, colours[row])
        _plot_samples(axes[row, 1], gray, one, cartesian, colours[row])
        axes[row, 0].set_ylabel(f"keypoint {row + 1}", fontsize=8, color=colours[row])
        for axis, seen in zip(axes[row, 2:], patches, strict=True):
            axis.imshow(seen[row], cmap="gray", vmin=0, vmax=1)
            axis.set_xticks([])
            axis.set_yticks([])
        for axis in axes[row, 2::2]:
            axis.set_xlabel("log radius", fontsize=7)
            axis.set_ylabel("angle", fontsize=7)
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=9)
    return figure


def _plot_overview(
    axis: Any,
    gray: FloatArray,
    keypoints: Keypoints,
    log_polar: LogPolar,
    cartesian: Cartesian,
    colours: list[Any],
) -> None:
    from matplotlib.patches import Circle, Polygon

    axis.imshow(to_bytes(gray), cmap="gray")
    axis.set(xlim=(-0.5, gray.shape[1] - 0.5), ylim=(gray.shape[0] - 0.5, -0.5))
    for index, colour in enumerate(colours):
        (x, y), size = keypoints.xy[index], keypoints.size[index]
        axis.add_patch(Circle((x, y), log_polar.lambda_ / 2 * size, fill=False, color=colour))
        phi = np.radians(keypoints.angle[index] + np.array([45, 135, 225, 315]))
        corners = cartesian.lambda_ * size / np.sqrt(2) * np.stack([np.cos(phi), np.sin(phi)], axis=1)
        axis.add_patch(Polygon(corners + keypoints.xy[index], fill=False, color=colour, linestyle="--"))
        axis.plot(x, y, ".", color=colour)
        axis.annotate(str(index + 1), (x, y), color=colour, xytext=(4, 4), textcoords="offset points", weight="bold")
    axis.set_title("support regions (dashed: cartesian)", fontsize=9)
    axis.axis("off")


def _plot_samples(axis: Any, gray: FloatArray, keypoint: Keypoints, pattern: Pattern, colour: Any) -> None:
    points = pattern.locate(keypoint.xy, keypoint.size, keypoint.angle)
    x, y = (values.reshape(-1) for values in (points.x, points.y))
    centre, reach = keypoint.xy[0], 1.05 * max(np.ptp(x), np.ptp(y)) / 2
    axis.imshow(to_bytes(gray), cmap="gray")
    axis.scatter(x, y, s=1.2, color=colour, linewidths=0)
    axis.set(xlim=(centre[0] - reach, centre[0] + reach), ylim=(centre[1] + reach, centre[1] - reach))
    axis.set_facecolor("0.85")
    axis.set_xticks([])
    axis.set_yticks([])
