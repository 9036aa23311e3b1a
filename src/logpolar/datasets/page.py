"""The page of a correspondence file: what is in it, how large its errors are, and image pairs to look at."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.pictures import draw_depths, draw_pairs, draw_patches, plot_statistics
from logpolar.datasets.statistics import Statistics
from logpolar.errors import MissingExtraError
from logpolar.sampling import Cartesian, LogPolar
from logpolar.storage.documents import versions
from logpolar.viewing.drawing import Picture
from logpolar.viewing.pages.document import PageFigure, PageSection, PageTable, write_document
from logpolar.viewing.pages.page import jpeg

MAX_ROWS = 2000
"""Images and pairs in the tables; of more, those with the most correspondences."""
_QUALITY = 85


def write_dataset_page(
    path: Path, file: CorrespondenceFile, statistics: Statistics, pairs: Sequence[int], count: int, command: str
) -> None:
    """Write the page; ``pairs`` are those to draw patches from, the first ``count`` of them are shown."""
    state = "" if file.complete else " This file is incomplete: rerun the command that builds it."
    intro = f"Correspondences from {file.settings.get('source')}.{state}"
    sections = [_content(file, statistics), _images(file), _pairs(file)]
    if pairs:
        sections += _pictures(file, pairs, count)
    else:
        sections.append(PageSection("Pictures", ["No correspondences to show."]))
    write_document(path, file.path.name, intro, sections, command, versions("h5py", "numpy"))


def _content(file: CorrespondenceFile, statistics: Statistics) -> PageSection:
    counts = [[what.replace("_", " "), str(number)] for what, number in file.counts().items()]
    counts += [[f"pairs of {split}", str(len(file.pairs(split)))] for split in ("train", "validation", "test")]
    mismatch = [[f"{100 * q:g} %", f"{value:.2f}x"] for q, value in statistics.quantiles().items()]
    mismatch.append(["above 2x", f"{100 * statistics.fraction_above(2):.2f} %"])
    causes = {"image pairs": file.summary.get("image_pairs_rejected", {}), "keypoints": statistics.rejects}
    rejects = [[what, cause, str(number)] for what, each in causes.items() for cause, number in each.items() if number]
    settings = [[name, _words(value)] for name, value in file.settings.items()]
    tables = [
        PageTable("Content.", ["", "number"], counts),
        PageTable("Scale mismatch: factor by which detected sizes disagree.", ["quantile", "mismatch"], mismatch),
        PageTable("Rejected, by cause.", ["what", "cause", "number"], rejects),
        PageTable("Settings.", ["setting", "value"], settings),
    ]
    left_out = [[name, reason] for name, reason in file.summary.get("left_out", {}).items()]
    if left_out:
        tables.append(PageTable("Images that were left out.", ["image", "reason"], left_out))
    return PageSection("Content", (), tables, _statistics_figure(file, statistics))


def _words(value: object) -> str:
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(f"{name} {_words(each)}" for name, each in value.items())


def _statistics_figure(file: CorrespondenceFile, statistics: Statistics) -> list[PageFigure]:
    try:
        figure = plot_statistics(statistics, file.path.name)
    except MissingExtraError:
        return []
    content = io.BytesIO()
    figure.savefig(content, dpi=90, format="png")
    caption = "Scale ratio, orientation residual, both in the classes of the paper's Fig. 4, and rejects by cause."
    return [PageFigure(caption, content.getvalue())]


def _images(file: CorrespondenceFile) -> PageSection:
    found = np.diff(file.correspondence_rows, axis=1).ravel()
    pairs, links = np.zeros(len(file.images), np.intp), np.zeros(len(file.images), np.intp)
    for side in (0, 1):
        np.add.at(pairs, file.pair_images[:, side], 1)
        np.add.at(links, file.pair_images[:, side], found)
    order = np.sort(np.argsort(-links, kind="stable")[:MAX_ROWS]).tolist()
    rows = []
    for number in order:
        image = file.images[number]
        size = f"{image.size[0]} x {image.size[1]}"
        rows.append([image.name, image.split, size, str(pairs[number]), str(links[number])])
    columns = ["image", "split", "size", "pairs", "correspondences"]
    return PageSection("Images", (), [PageTable(_of(len(rows), len(file.images), "images"), columns, rows)])


def _pairs(file: CorrespondenceFile) -> PageSection:
    found = np.diff(file.correspondence_rows, axis=1).ravel()
    mismatch = np.exp(np.abs(file.column("correspondences", "log_scale_ratio")))
    rows = []
    for number in np.sort(np.argsort(-found, kind="stable")[:MAX_ROWS]).tolist():
        first, second = (file.images[image] for image in file.pair_images[number])
        start, end = file.correspondence_rows[number].tolist()
        middle = f"{np.median(mismatch[start:end]):.2f}" if end > start else ""
        rows.append([first.name, second.name, first.split, str(end - start), middle])
    columns = ["first image", "second image", "split", "correspondences", "median scale mismatch"]
    return PageSection("Image pairs", (), [PageTable(_of(len(rows), len(file), "pairs"), columns, rows)])


def _of(shown: int, total: int, what: str) -> str:
    return f"All {total} {what}." if shown == total else f"The {shown} of {total} {what} with the most correspondences."


def _pictures(file: CorrespondenceFile, pairs: Sequence[int], count: int) -> list[PageSection]:
    shown = list(pairs[:count])
    names = [[file.images[image].name for image in file.pair_images[number]] for number in shown]
    drawn = [
        _figure(f"{first} and {second}, with some of their correspondences.", draw_pairs(file, [number]))
        for number, (first, second) in zip(shown, names, strict=True)
    ]
    sections = [PageSection("Pairs to look at", ["A random sample."], (), drawn)]
    patches = draw_patches(file, list(pairs), LogPolar(inner_radius=0.5), Cartesian())
    caption = "Patch pairs in both samplings, by increasing scale mismatch."
    sections.append(PageSection("Patches", (), (), [_figure(caption, patches)]))
    depths = draw_depths(file, sorted({image for number in shown for image in file.pair_images[number].tolist()}))
    if depths is not None:
        caption = "Images above their depth: nearer is brighter, red is unknown."
        sections.append(PageSection("Depth", (), (), [_figure(caption, depths)]))
    return sections


def _figure(caption: str, picture: Picture) -> PageFigure:
    factor = min(1600 / picture.shape[1], 1)
    small = cv2.resize(picture, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA) if factor < 1 else picture
    return PageFigure(caption, jpeg(small, _QUALITY), "jpeg")
