"""Pictures of a correspondence file, to inspect its content."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.correspondences import ImagePair
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.statistics import ANGLE_EDGES, SCALE_EDGES, Statistics
from logpolar.images import to_bytes, to_gray
from logpolar.keypoints import Keypoints
from logpolar.sampling import Cartesian, ImagePyramid, LogPolar, Pattern
from logpolar.viewing.drawing import Picture, draw_matches, side_by_side, stack, with_caption

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_UNKNOWN = (0, 0, 200)  # red
_ROW_HEIGHT = 200
_PAIR_WIDTH = 800
_PATCH_SIDE = 112


def sample_pairs(
    file: CorrespondenceFile, count: int, random: np.random.Generator, split: str | None = None
) -> list[int]:
    """Random pairs with correspondences, of one split or of all."""
    counts = np.diff(file.correspondence_rows, axis=1)
    filled = [number for number in file.pairs(split) if counts[number] > 0]
    return [filled[index] for index in random.permutation(len(filled))[:count]]


def draw_pairs(file: CorrespondenceFile, numbers: list[int], most_lines: int = 40) -> Picture:
    """A page of image pairs with lines between correspondences."""
    cells = []
    for number in numbers:
        pair = file.read(number)
        names = [file.images[image].name for image in file.pair_images[number]]
        found, lines = pair.correspondences, slice(None, None, max(-(-len(pair.correspondences) // most_lines), 1))
        caption = f"{names[0]} - {names[1]}: {len(found)}, zoom {np.median(found.zoom):.2f}"
        good = np.ones(len(found.first.xy[lines]), np.bool_)
        drawn = draw_matches(pair.first, pair.second, found.first.xy[lines], found.second.xy[lines], good)
        factor = _PAIR_WIDTH / drawn.shape[1]
        small = cv2.resize(drawn, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)
        cells.append(with_caption(np.asarray(small, np.uint8), caption))
    return stack([side_by_side(cells[start : start + 2]) for start in range(0, len(cells), 2)])


def draw_depths(file: CorrespondenceFile, images: list[int], columns: int = 6) -> Picture | None:
    """Images above their depth in gray, red where unknown, and a legend: the paper's Fig. 6. None without depth."""
    cells = []
    for image in images:
        depth = file.read_depth_picture(image)
        if depth is None:
            continue
        gray = np.asarray(cv2.cvtColor(file.read_image(image), cv2.COLOR_GRAY2BGR), np.uint8)
        shaded = np.where(depth[:, :, None] > 0, depth[:, :, None], np.array(_UNKNOWN, np.uint8)).astype(np.uint8)
        cells.append(np.concatenate([_fit(gray), _fit(shaded, gray.shape[1] / gray.shape[0])]))
    if not cells:
        return None
    rows = [side_by_side(cells[start : start + columns]) for start in range(0, len(cells), columns)]
    return stack([*rows, _depth_legend()])


def _depth_legend() -> Picture:
    """What the shades mean: inverse depth, stretched to the range of each image."""
    legend = np.full((36, 480, 3), 255, np.uint8)
    legend[8:28, 50:250] = np.linspace(1, 255, 200)[None, :, None]
    legend[8:28, 340:360] = _UNKNOWN
    for text, x in (("far", 10), ("near", 260), ("unknown", 370)):
        cv2.putText(legend, text, (x, 23), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (20, 20, 20), 1, cv2.LINE_AA)
    return legend


def _fit(picture: Picture, aspect: float | None = None) -> Picture:
    """The picture at the height of a row."""
    aspect = picture.shape[1] / picture.shape[0] if aspect is None else aspect
    size = max(round(_ROW_HEIGHT * aspect), 1), _ROW_HEIGHT
    method = cv2.INTER_AREA if picture.shape[0] > _ROW_HEIGHT else cv2.INTER_NEAREST
    return np.asarray(cv2.resize(picture, size, interpolation=method), np.uint8)


def draw_patches(
    file: CorrespondenceFile, numbers: list[int], log_polar: LogPolar, cartesian: Cartesian, per_class: int = 3
) -> Picture:
    """Patch pairs in both samplings, by increasing scale mismatch, captioned with it."""
    classes: dict[tuple[float, float], list[Picture]] = {(0, 1.25): [], (1.25, 2): [], (2, np.inf): []}
    for number in numbers:
        pair = file.read(number)
        mismatch = np.exp(np.abs(pair.correspondences.log_scale_ratio))
        for (low, high), made in classes.items():
            # One per image pair, for variety.
            chosen = np.flatnonzero((mismatch > low) & (mismatch <= high))[:1]
            if len(chosen) and len(made) < per_class:
                made.append(_draw_patch_row(pair, int(chosen[0]), log_polar, cartesian))
    rows = [row for made in classes.values() for row in made]
    title = f"log-polar {log_polar.lambda_:g} (two), cartesian {cartesian.lambda_:g} (two)"
    return with_caption(stack(rows), title)


def _draw_patch_row(pair: ImagePair, which: int, log_polar: LogPolar, cartesian: Cartesian) -> Picture:
    found = pair.correspondences
    cells = []
    for pattern in (log_polar, cartesian):
        for image, keypoints in ((pair.first, found.first), (pair.second, found.second)):
            cells.append(_draw_patch(image, keypoints[which : which + 1], pattern))
    factor, residual = float(np.exp(found.log_scale_ratio[which])), float(found.angle_residual[which])
    sizes = f"sizes {found.first.size[which]:.1f} and {found.second.size[which]:.1f} px"
    return with_caption(side_by_side(cells), f"{sizes}, scale {factor:.2f}x, {residual:+.0f} degrees")


def _draw_patch(image: NDArray[np.uint8], keypoint: Keypoints, pattern: Pattern) -> Picture:
    patch = to_bytes(ImagePyramid(to_gray(image)).sample(keypoint, pattern)[0])
    large = cv2.resize(patch, (_PATCH_SIDE, _PATCH_SIDE), interpolation=cv2.INTER_NEAREST)
    return np.asarray(cv2.cvtColor(large, cv2.COLOR_GRAY2BGR), np.uint8)


def plot_statistics(statistics: Statistics, title: str) -> Figure:
    """Scale ratio, orientation residual, both together in the classes of the paper's Fig. 4, and rejects by cause."""
    from logpolar.viewing.plotting import Figure

    figure = Figure(figsize=(13, 8.5), layout="constrained")
    axes = figure.subplots(2, 2)
    ratio = statistics.log_scale_ratio / np.log(2)
    axes[0, 0].hist(ratio, bins=np.linspace(-3, 3, 61), log=True, color="tab:blue")
    axes[0, 0].set(title="scale ratio", xlabel="log2(detected / predicted size)", ylabel="correspondences")
    axes[0, 1].hist(statistics.angle_residual, bins=np.linspace(-25, 25, 51), color="tab:green")
    axes[0, 1].set(title="orientation residual", xlabel="degrees", ylabel="correspondences")
    _plot_classes(axes[1, 0], statistics)
    causes = {cause: count for cause, count in statistics.rejects.items() if count}
    axes[1, 1].barh(list(causes)[::-1], list(causes.values())[::-1], color="tab:red")
    axes[1, 1].set(title="keypoints without a correspondence, by cause", xscale="log")
    axes[1, 1].set_xlabel("keypoints; those about depth once an image, the others once a pair")
    figure.suptitle(title)
    return figure


def _plot_classes(axis: Any, statistics: Statistics) -> None:
    counts = statistics.table()
    axis.imshow(np.log10(np.maximum(counts, 0.5)), cmap="viridis", aspect="auto")
    for (row, column), count in np.ndenumerate(counts):
        colour = "black" if count > 0.2 * counts.max() else "white"
        axis.text(column, row, f"{count}", ha="center", va="center", color=colour, fontsize=8)
    scales = [f"{low:g}-{high:g}x" if np.isfinite(high) else f"> {low:g}x" for low, high in pairwise(SCALE_EDGES)]
    angles = [f"{low:g}-{high:g}°" for low, high in pairwise(ANGLE_EDGES)]
    axis.set_xticks(range(len(scales)), scales, fontsize=8)
    axis.set_yticks(range(len(angles)), angles, fontsize=8)
    axis.set(title="correspondences by both", xlabel="scales differ by", ylabel="orientations differ by")
