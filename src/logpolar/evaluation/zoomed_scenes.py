"""Scenes whose second images are zoomed copies: reduced, or crops seen at a larger scale.

    zoom        the second image of each pair is reduced by this factor: everything is smaller, all of it in view
    true zoom   the second image is a crop, 1 / factor of the width and height, as a longer lens would see it

Convention of true zoom: no image is described at more than ``TRUE_ZOOM_SIZE`` pixels on the longer side, and the crop
has the size that the whole photo would have. So the crop of a photo of ``factor * TRUE_ZOOM_SIZE`` pixels or more is at
full resolution, which shows detail that the first image lacks; of smaller photos it is enlarged by what is missing.
The scene's ``enlarged`` says by how much. The crop lies around the median of the points of the model that the image
shows, and pairs must share ``min_shared`` points inside it; without a model, it is the middle of the image.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from logpolar.errors import StorageError
from logpolar.evaluation.posed_scenes import Gray, Observed, PosedImage, PosedScene
from logpolar.images import fitted_size, resize, resize_points, to_bytes, to_gray

TRUE_ZOOM_SIZE = 1024
"""Longer side, in pixels, of images under true zoom; larger photos have detail to spare."""

Box = tuple[int, int, int, int]
"""Left, top, width and height in pixels."""


def zoom_scene(scene: PosedScene, zoom: float = 1, true_zoom: float = 1, min_shared: int = 30) -> PosedScene:
    """The scene with a zoomed copy of every image that is the second of a pair, in its place; 1 leaves it as it is."""
    if zoom > 1 and true_zoom > 1:
        raise ValueError("choose one of zoom and true_zoom")
    if zoom == true_zoom == 1:
        return scene
    seconds = {row: number for number, row in enumerate(sorted({second for _, second in scene.pairs}))}
    if true_zoom > 1:
        firsts = [fit_image(image, TRUE_ZOOM_SIZE) for image in scene.images]
        copies = [crop_image(scene.images[row], true_zoom) for row in seconds]
    else:
        firsts = scene.images
        copies = [_reduced(scene.images[row], zoom) for row in seconds]
    count = len(firsts)
    pairs = [
        (first, count + seconds[second])
        for first, second in scene.pairs
        if _shared(firsts[first], copies[seconds[second]], min_shared)
    ]
    if not pairs:
        raise StorageError(f"{scene.name}: no two images share {min_shared} points after a true zoom of {true_zoom:g}")
    factor = max(_enlarged(scene.images[row], true_zoom) for row in seconds)
    return replace(scene, images=[*firsts, *copies], pairs=pairs, transformed=True, enlarged=factor)


def _enlarged(image: PosedImage, true_zoom: float) -> float:
    """By how much the crop of an image is enlarged; 1 where it is at full resolution."""
    longer = max(image.camera.width, image.camera.height)
    return max(true_zoom * min(TRUE_ZOOM_SIZE / longer, 1), 1)


def fit_image(image: PosedImage, max_size: int | None = None, min_size: int | None = None) -> PosedImage:
    """The image with its longer side between these limits, see ``fitted_size``."""
    before = image.camera.width, image.camera.height
    return _resized(image, image.name, fitted_size(before, max_size, min_size))


def crop_image(image: PosedImage, true_zoom: float) -> PosedImage:
    """The image through a longer lens."""
    whole = image.camera.width, image.camera.height
    width, height = (max(round(side / true_zoom), 1) for side in whole)
    centre = np.array(whole) / 2 if image.observed is None else np.median(image.observed.xy, axis=0)
    left, top = np.clip(np.rint(centre - (width / 2, height / 2)), 0, np.subtract(whole, (width, height))).astype(int)
    box = int(left), int(top), width, height
    part = replace(image, camera=image.camera.cropped(*box), read=partial(_read_box, image, box))
    if image.observed is not None:
        xy = image.observed.xy - box[:2]
        inside = ((xy >= -0.5) & (xy < np.subtract(box[2:], 0.5))).all(axis=1)  # of the pixels, not their centres
        part = replace(part, observed=Observed(image.observed.points[inside], xy[inside]))
    return _resized(part, f"{image.name}, true zoom {true_zoom:g}", fitted_size(whole, TRUE_ZOOM_SIZE))


def _reduced(image: PosedImage, zoom: float) -> PosedImage:
    before = image.camera.width, image.camera.height
    return _resized(image, f"{image.name}, zoom {zoom:g}", fitted_size(before, max(round(max(before) / zoom), 1)))


def _resized(image: PosedImage, name: str, size: tuple[int, int]) -> PosedImage:
    before = image.camera.width, image.camera.height
    if size == before:
        return replace(image, name=name)
    factor = np.divide(size, before)
    seen = image.observed and Observed(image.observed.points, resize_points(image.observed.xy, factor).astype(float))
    read = partial(_read_resized, image, size)
    return replace(image, name=name, camera=image.camera.resized(*size), read=read, observed=seen)


def _read_resized(image: PosedImage, size: tuple[int, int]) -> Gray:
    return to_bytes(resize(to_gray(image.read()), size))


def _read_box(image: PosedImage, box: Box) -> Gray:
    left, top, width, height = box
    return np.ascontiguousarray(image.read()[top : top + height, left : left + width])


def _shared(first: PosedImage, second: PosedImage, least: int) -> bool:
    if first.observed is None or second.observed is None:
        return True
    return len(np.intersect1d(first.observed.points, second.observed.points)) >= least
