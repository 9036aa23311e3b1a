"""The paper's Figs. 1 and 2 of the shipped photo, as plain functions over matplotlib (extra ``viz``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.correspondences import find_correspondences
from logpolar.datasets.options import CorrespondenceRules
from logpolar.errors import MissingExtraError
from logpolar.geometry.radius_search import keep_apart
from logpolar.images import to_bytes, to_gray
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import SiftDetector
from logpolar.sampling import Cartesian, ImagePyramid, LogPolar, Pattern
from logpolar.types import FloatArray
from logpolar.viewing.demo import DemoPair, demo_pair

try:
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle, Polygon
except ImportError as error:
    raise MissingExtraError("this figure", "viz") from error

SCALES = (1, 2, 4)
"""Factors of the keypoint's size in Fig. 1."""

SUPPORTS = (12, 16, 32, 64, 96, 128)
"""Those of the paper's Table 2."""

COLOURS = ("blue", "red", "green", "gold")
"""Of the keypoints in Fig. 2, as in the paper."""

SIFT_CELLS = 4
"""SIFT's cells along a side; each is 3 sigma, or 1.5 keypoint sizes, wide."""

_RINGS, _SECTORS = 4, 8  # of the log-polar pooling that Fig. 1 shows
_NAMES, _VIEWS = ("cartesian", "log-polar"), ("photo", "second view")


def sift_cells(xy: FloatArray, size: float, angle: float) -> NDArray[np.float64]:
    """(16, 4, 2): corners of the cells that SIFT pools over, in row-major order, rotated with the keypoint."""
    edges = (np.arange(SIFT_CELLS + 1) - SIFT_CELLS / 2) * 1.5 * size
    u, v = np.meshgrid(edges, edges)
    points = _rotated(np.stack([u, v], axis=-1), angle) + np.asarray(xy, np.float64)
    corners = [points[:-1, :-1], points[:-1, 1:], points[1:, 1:], points[1:, :-1]]
    return np.stack(corners, axis=2).reshape(-1, 4, 2)


def log_polar_radii(radius: float) -> NDArray[np.float64]:
    """Radii of the rings of log-polar pooling; each doubles the one inside."""
    return np.asarray(radius / 2.0 ** np.arange(_RINGS - 1, -1, -1), np.float64)


def plot_pooling(lambda_: float = 12.0) -> Figure:
    """Fig. 1: a row for each scale; SIFT's cells, log-polar cells, the samples of both patterns, and their patches.

    The yellow dot marks the same cell at all scales: its place in the photo changes.
    """
    gray = to_gray(demo_pair().first)
    keypoint = _central_keypoint(gray, lambda_ / 2 * max(SCALES))
    cartesian, log_polar = _patterns(lambda_)
    titles = (
        "(a) cartesian pooling\n(SIFT)",
        "(b) log-polar\npooling",
        "(c) log-polar\nsampling",
        "(d) log-polar\npatch",
        "cartesian\nsampling",
        "cartesian\npatch",
    )
    figure = Figure(figsize=(2.1 * len(titles) + 0.4, 2.1 * len(SCALES) + 0.6), layout="constrained")
    axes = figure.subplots(len(SCALES), len(titles), squeeze=False)
    pyramid = ImagePyramid(gray)
    reach = 1.02 * lambda_ / 2 * max(SCALES) * float(keypoint.size[0])
    for row, scale in zip(axes, SCALES, strict=True):
        scaled = replace(keypoint, size=keypoint.size * np.float32(scale))
        for axis in (*row[:3], row[4]):
            _show_photo(axis, gray, keypoint.xy[0], reach)
        _draw_sift_cells(row[0], scaled)
        _draw_log_polar_cells(row[1], scaled, lambda_)
        _draw_samples(row[2], scaled, log_polar)
        _draw_samples(row[4], scaled, cartesian)
        _show_patch(row[3], pyramid.sample(scaled, log_polar)[0])
        _show_patch(row[5], pyramid.sample(scaled, cartesian)[0])
        row[3].set_xlabel("log radius", fontsize=8)
        row[3].set_ylabel("angle", fontsize=8)
        row[0].set_ylabel(f"{scale}×", fontsize=12, rotation=0, labelpad=14, va="center")
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=10)
    return figure


def plot_pair(lambda_: float = 16.0) -> Figure:
    """Fig. 2: two views with four pairs of keypoints; beside each, their cartesian and log-polar patches."""
    pair = _views()
    keypoints_of = chosen_pairs(pair, lambda_ / 2)
    patterns = _patterns(lambda_)
    count = len(keypoints_of[0])
    figure = Figure(figsize=(14, 4.9), layout="constrained")
    outer = figure.add_gridspec(1, 4, width_ratios=[1.15, 0.55, 1.15, 0.55])
    for side, (view, keypoints) in enumerate(zip((pair.first, pair.second), keypoints_of, strict=True)):
        gray = to_gray(view)
        axis = figure.add_subplot(outer[2 * side])
        axis.imshow(to_bytes(gray), cmap="gray")
        _draw_supports(axis, keypoints, lambda_)
        axis.set(xlim=(-0.5, gray.shape[1] - 0.5), ylim=(gray.shape[0] - 0.5, -0.5))
        axis.set_xlabel(f"({'ac'[side]}) {_VIEWS[side]}")
        _hide_ticks(axis)
        grid, pyramid = outer[2 * side + 1].subgridspec(count, 2), ImagePyramid(gray)
        patches = [pyramid.sample(keypoints, pattern) for pattern in patterns]
        for index in range(count):
            for column, name in enumerate(_NAMES):
                small = figure.add_subplot(grid[index, column])
                _show_patch(small, patches[column][index], COLOURS[index])
                if index == 0:
                    small.set_title(name, fontsize=9)
                if index == count - 1 and column == 0:
                    small.set_xlabel(f"({'bd'[side]})")
    figure.suptitle(f"λ = {lambda_:g}", fontsize=10)
    return figure


def plot_supports() -> Figure:
    """Patches of one keypoint in both views, cartesian above log-polar, as the support grows."""
    pair = _views()
    keypoints_of = chosen_pairs(pair, SUPPORTS[1] / 2)
    figure = Figure(figsize=(1.5 * len(SUPPORTS) + 1.3, 6.6), layout="constrained")
    axes = figure.subplots(4, len(SUPPORTS), squeeze=False)
    for side, (view, keypoints) in enumerate(zip((pair.first, pair.second), keypoints_of, strict=True)):
        keypoint, pyramid = keypoints[:1], ImagePyramid(to_gray(view))
        for column, lambda_ in enumerate(SUPPORTS):
            for number, pattern in enumerate(_patterns(lambda_)):
                axis = axes[2 * number + side, column]
                _show_patch(axis, pyramid.sample(keypoint, pattern)[0])
                if column == 0:
                    axis.set_ylabel(f"{_NAMES[number]},\n{_VIEWS[side]}", fontsize=9)
    for axis, lambda_ in zip(axes[0], SUPPORTS, strict=True):
        axis.set_title(f"λ = {lambda_}", fontsize=10)
    return figure


def chosen_pairs(pair: DemoPair, radius: float) -> tuple[Keypoints, Keypoints]:
    """Up to four corresponding keypoints, spread over the views, in the order of ``COLOURS``.

    ``radius``: that of the support in keypoint sizes; patches must lie on the photo. The second, red, has the largest
    scale mismatch; the others are the largest without one.
    """
    detector = SiftDetector(None)
    first, second = (detector(to_gray(view)) for view in (pair.first, pair.second))
    shape = pair.second.shape[1], pair.second.shape[0]
    random = np.random.default_rng(0)
    found, _ = find_correspondences(first, second, pair.homography, shape, CorrespondenceRules(), random)
    mismatch = np.abs(found.log_scale_ratio)
    # In the photo, the patch of the second view is larger by the scale mismatch.
    reach = np.sqrt(2) * radius * found.first.size * np.exp(np.maximum(found.log_scale_ratio, 0))
    fits = reach < np.minimum(found.first.xy, np.array(pair.first.shape[1::-1]) - found.first.xy).min(axis=1)
    small = fits & (reach < min(pair.first.shape[:2]) / 6)  # several must fit side by side
    worst = int(np.argmax(np.where(small, mismatch, -1)))
    largest = np.argsort(-found.first.size).tolist()
    order = [worst, *(row for row in largest if small[row] and mismatch[row] < np.log(1.2))]
    kept = keep_apart(order, [found.first.xy], max(pair.first.shape) / 5, len(COLOURS))
    rows = np.concatenate([kept[1:2], kept[:1], kept[2:]])
    return found.first[rows], found.second[rows]


def _views() -> DemoPair:
    return demo_pair(zoom=2.0, rotation=30.0)


def _patterns(lambda_: float) -> tuple[Pattern, Pattern]:
    """Cartesian and log-polar, with the settings of the default model."""
    return Cartesian(lambda_, outside="mean"), LogPolar(lambda_, inner_radius=0.5, outside="mean")


def _central_keypoint(gray: FloatArray, reach: float) -> Keypoints:
    """The strongest keypoint near the middle, with the size whose support at the largest scale just fits."""
    keypoints = SiftDetector(None)(gray)
    middle = np.array(gray.shape[::-1], np.float32) / 2
    near = np.abs(keypoints.xy - middle).max(axis=1) < min(gray.shape) / 10
    best = int(np.argmax(np.where(near, keypoints.response, -1)))
    one = keypoints[best : best + 1]
    room = float(np.minimum(one.xy[0], np.array(gray.shape[::-1]) - 1 - one.xy[0]).min())
    return replace(one, size=np.array([room / reach], np.float32))


def _rotated(points: NDArray[np.float64], angle: float) -> NDArray[np.float64]:
    """Clockwise on the screen."""
    cosine, sine = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    return np.asarray(points @ np.array([[cosine, sine], [-sine, cosine]]), np.float64)


def _draw_sift_cells(axis: Any, keypoint: Keypoints) -> None:
    cells = sift_cells(keypoint.xy[0], float(keypoint.size[0]), float(keypoint.angle[0]))
    for cell in cells:
        axis.add_patch(Polygon(cell, fill=False, color="red", linewidth=1))
    _draw_dot(axis, cells[0].mean(axis=0))


def _draw_log_polar_cells(axis: Any, keypoint: Keypoints, lambda_: float) -> None:
    centre, radii = keypoint.xy[0], log_polar_radii(lambda_ / 2 * float(keypoint.size[0]))
    for radius in radii:
        axis.add_patch(Circle(tuple(centre), radius, fill=False, color="red", linewidth=1))
    sectors = [
        _rotated(np.array([[1.0, 0.0]]), float(keypoint.angle[0]) + 360 * k / _SECTORS)[0] for k in range(_SECTORS)
    ]
    for direction in sectors:
        ends = centre + direction * radii[[0, -1], None]
        axis.plot(*ends.T, color="red", linewidth=1)
    middle = _rotated(np.array([[1.0, 0.0]]), float(keypoint.angle[0]) + 180 / _SECTORS)[0]
    _draw_dot(axis, centre + middle * np.sqrt(radii[-2] * radii[-1]))


def _draw_dot(axis: Any, xy: NDArray[np.floating]) -> None:
    axis.plot(*xy, "o", color="yellow", markeredgecolor="black", markersize=5)


def _draw_samples(axis: Any, keypoint: Keypoints, pattern: Pattern) -> None:
    points = pattern.locate(keypoint.xy, keypoint.size, keypoint.angle)
    axis.scatter(points.x.ravel(), points.y.ravel(), s=1.5, color="blue", linewidths=0)


def _draw_supports(axis: Any, keypoints: Keypoints, lambda_: float) -> None:
    """The square of the cartesian pattern, the inscribed disc of the log-polar one, and the orientation."""
    for index, colour in zip(range(len(keypoints)), COLOURS, strict=False):
        centre, radius = keypoints.xy[index], lambda_ / 2 * float(keypoints.size[index])
        corners = _rotated(np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], np.float64) * radius, keypoints.angle[index])
        tip = centre + _rotated(np.array([[radius, 0.0]]), float(keypoints.angle[index]))[0]
        axis.add_patch(Polygon(corners + centre, fill=False, color=colour, linestyle="--"))
        axis.add_patch(Circle(tuple(centre), radius, fill=False, color=colour, linewidth=1.5))
        axis.plot(*np.stack([centre, tip]).T, color=colour)
        axis.plot(*centre, ".", color=colour)


def _show_photo(axis: Any, gray: FloatArray, centre: FloatArray, reach: float) -> None:
    axis.imshow(to_bytes(gray), cmap="gray")
    axis.set(xlim=(centre[0] - reach, centre[0] + reach), ylim=(centre[1] + reach, centre[1] - reach))
    axis.set_facecolor("0.85")
    _hide_ticks(axis)


def _show_patch(axis: Any, patch: FloatArray, colour: str = "black") -> None:
    axis.imshow(patch, cmap="gray", vmin=0, vmax=1)
    _hide_ticks(axis)
    for edge in axis.spines.values():
        edge.set(color=colour, linewidth=1 if colour == "black" else 3)


def _hide_ticks(axis: Any) -> None:
    axis.set_xticks([])
    axis.set_yticks([])
