"""Look again at two photos: match in the region that both show, at the same scale and rotation.

The first matches tell where that region lies in each photo, how much larger one shows it and how it is rotated. All
keypoints of the second look lie in it, and its features only have to match across what is left: viewpoint and light.
So there are several times as many correct matches where photos overlap little, or one is a close-up. The second look
can have other features than the first, upright keypoints without scale, which find what the first ones miss; then it
looks at the whole photos, too, before it looks at the region.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import cv2
import numpy as np

from logpolar.features.extractor import Extractor, ImageInput
from logpolar.features.features import Features
from logpolar.features.regions import Region, rotation
from logpolar.geometry.options import DEFAULT_REGION_SIZE, EstimationOptions
from logpolar.geometry.two_view import Points
from logpolar.geometry.verification import Cameras, VerifiedMatches, estimate_geometry, match_and_verify
from logpolar.images.resizing import MAX_ENLARGEMENT
from logpolar.matching.learned import matching_of_looks
from logpolar.matching.nearest import Matches
from logpolar.matching.options import MatchingOptions, PairMatchingOptions
from logpolar.types import Matrix

_LEAST = 8
"""Inliers of the first look that a second one needs: fewer tell nothing about the region."""

_OUTER = 2.0
"""Percent of the inliers on each side that do not count for the region: some of them are incorrect."""

_AROUND, _AROUND_PIXELS = 0.1, 8.0
"""How far the region reaches beyond the inliers, in sides and pixels."""

_MOST_ZOOM = 16.0
_SMALLEST = 16.0
"""Larger changes of scale, and regions with fewer pixels on the longer side, of the images as they were described, come
of incorrect matches."""

ExtractRegion: TypeAlias = Callable[[Region], Features]
"""Features of a region of an image."""


@dataclass(frozen=True, eq=False)
class MatchedImages:
    """The features of two images, and their verified matches.

    After a second look its features follow those of the whole images; ``found.looks`` counts both.
    """

    first: Features
    second: Features
    found: VerifiedMatches


def match_images(
    first: ImageInput,
    second: ImageInput,
    looks: Extractor | Sequence[Extractor] | None = None,
    model: str = "fundamental",
    matching: MatchingOptions | None = None,
    estimation: EstimationOptions | None = None,
    *,
    cameras: Cameras | None = None,
    region_size: int = DEFAULT_REGION_SIZE,
    device: str = "cpu",
) -> MatchedImages:
    """Match two images and estimate their geometry: extraction, ``match_and_verify``, and second looks.

    >>> pair = match_images("a.jpg", "b.jpg")                                   # doctest: +SKIP
    >>> pair.found.geometry.inlier_count                                        # doctest: +SKIP

    ``looks``: the extractor of the first look, then those of second looks; one alone looks once. By default
    ``logpolar-96`` and ``logpolar-sf``. One of other features than the first looks at the whole images, too. Make
    extractors once for many pairs: opening a model takes time.
    ``matching``: a learned matcher matches the looks at features that it was trained on, nearest neighbours the others.
    ``region_size``: see ``shared_regions``.
    """
    looks = [Extractor(), Extractor("logpolar-sf")] if looks is None else looks
    looks = [looks] if isinstance(looks, Extractor) else looks
    matchings = matching_of_looks(matching or PairMatchingOptions(), [each.settings for each in looks])
    whole, *others = looks
    ours, theirs = whole.extract(first), whole.extract(second)
    found = match_and_verify(ours, theirs, model, matchings[0], estimation, cameras=cameras, device=device)
    pair = MatchedImages(ours, theirs, found)
    options: dict[str, Any] = {"cameras": cameras, "region_size": region_size, "device": device}
    for extractor, own in zip(others, matchings[1:], strict=True):
        extract = partial(extractor.extract_region, first), partial(extractor.extract_region, second)
        other = extractor.settings != whole.settings
        pair = look_again(pair, extract, own, estimation, other=other, **options)
    return pair


def look_again(
    pair: MatchedImages,
    extract: tuple[ExtractRegion, ExtractRegion],
    matching: MatchingOptions | None = None,
    estimation: EstimationOptions | None = None,
    *,
    cameras: Cameras | None = None,
    other: bool = False,
    region_size: int = DEFAULT_REGION_SIZE,
    device: str = "cpu",
) -> MatchedImages:
    """Add the matches in the region that both images show, and estimate the geometry again from all of them.

    The pair is returned as it is if its inliers do not show a region, or if no inliers are added. ``other``: the second
    look has other features than the first, so it first looks at the whole images as well.
    """
    if pair.found.model == "none":
        return pair
    add = partial(_add, matching=matching, estimation=estimation or EstimationOptions(), cameras=cameras, device=device)
    if other:
        pair = add(pair, extract, (whole_region(pair.first), whole_region(pair.second)))
    regions = shared_regions(pair, region_size)
    return pair if regions is None else add(pair, extract, regions)


def _add(
    pair: MatchedImages,
    extract: tuple[ExtractRegion, ExtractRegion],
    regions: tuple[Region, Region],
    matching: MatchingOptions | None,
    estimation: EstimationOptions,
    cameras: Cameras | None,
    device: str,
) -> MatchedImages:
    """The pair with the matches of these regions, if they agree with each other and add inliers."""
    found, sides = pair.found, (pair.first, pair.second)
    # The threshold stays one of pixels of the first look, however large the region is seen.
    parts = tuple(
        replace(each(region), scale=side.scale) for each, region, side in zip(extract, regions, sides, strict=True)
    )
    again = match_and_verify(parts[0], parts[1], found.model, matching, estimation, cameras=cameras, device=device)
    if not again.geometry.common_scene:
        return pair
    first, second = (_joined(side, part) for side, part in zip(sides, parts, strict=True))
    before = len(pair.first), len(pair.second)
    matches = _joined_matches(found.matches, again.matches, before)
    geometry = estimate_geometry(found.model, first, second, matches, cameras, estimation)
    if geometry.inlier_count <= found.geometry.inlier_count:
        return pair
    # Guided matches fit by construction: those before them decide whether there is a common scene.
    geometry = replace(geometry, significance=max(found.geometry.significance, again.geometry.significance))
    unguided = None
    if found.unguided is not None or again.unguided is not None:
        unguided = _joined_matches(found.before_guiding, again.before_guiding, before)
    xy = [np.concatenate([getattr(each, name) for each in (found, again)]) for name in ("first_xy", "second_xy")]
    counts = (*(found.looks or (before,)), (len(parts[0]), len(parts[1])))
    return MatchedImages(
        first, second, VerifiedMatches(found.model, matches, geometry, xy[0], xy[1], found.threshold, unguided, counts)
    )


def whole_region(features: Features) -> Region:
    """An image as it was described in the first look."""
    width, height = features.image_size
    return Region(((width - 1) / 2, (height - 1) / 2), (width, height), factor=features.scale)


def shared_regions(pair: MatchedImages, size: int = DEFAULT_REGION_SIZE) -> tuple[Region, Region] | None:
    """The region that two images share, in each of them, by the inliers; None if these do not show one.

    Both are seen at the same scale and rotation, that of the first image. The longer side has ``size`` pixels, or as
    many as the images were described with if that is more; nothing is enlarged beyond ``MAX_ENLARGEMENT``.
    """
    inliers = pair.found.geometry.inliers
    if inliers.sum() < _LEAST:
        return None
    points = [np.asarray(xy[inliers], np.float64) for xy in (pair.found.first_xy, pair.found.second_xy)]
    zoom, degrees = _similarity(*points)
    first, second = pair.first.scale, pair.second.scale
    if not 1 / _MOST_ZOOM <= zoom * second / first <= _MOST_ZOOM:
        return None
    here, there = (
        _region(xy, side.image_size, angle)
        for xy, side, angle in zip(points, (pair.first, pair.second), (0.0, degrees), strict=True)
    )
    if min(here.longer * first, there.longer * second) < _SMALLEST:
        return None
    described = max(max(side.image_size) * side.scale for side in (pair.first, pair.second))
    factor = max(size, described) / max(here.longer * zoom, there.longer)
    factor = min(factor, MAX_ENLARGEMENT, MAX_ENLARGEMENT / zoom)
    return replace(here, factor=factor * zoom), replace(there, factor=factor)


def _similarity(first: Points, second: Points) -> tuple[float, float]:
    """How many times larger the second image shows things, and the degrees by which it is rotated."""
    matrix = cv2.estimateAffinePartial2D(first, second, method=cv2.LMEDS)[0]
    if matrix is None or not np.isfinite(matrix).all():
        return 0.0, 0.0
    return float(np.hypot(*matrix[:, 0])), float(np.degrees(np.arctan2(matrix[1, 0], matrix[0, 0])))


def _region(points: Points, size: tuple[int, int], degrees: float) -> Region:
    """Around points of an image and inside it, its sides in this direction."""
    width, height = size
    along = rotation(degrees)
    low, high = _box(points @ along, _OUTER)
    around = _AROUND * (high - low) + _AROUND_PIXELS
    edges = _box(np.array([[0.0, 0], [width - 1, 0], [0, height - 1], [width - 1, height - 1]]) @ along)
    low, high = np.maximum(low - around, edges[0]), np.minimum(high + around, edges[1])
    (x, y), sides = along @ (low + high) / 2, high - low + 1
    return Region((float(x), float(y)), (float(sides[0]), float(sides[1])), degrees)


def _box(points: Points, outer: float = 0.0) -> tuple[Matrix, Matrix]:
    """Smallest and largest coordinates of points, but for some percent on each side."""
    low, high = np.percentile(points, [outer, 100 - outer], axis=0)
    return low, high


def _joined(whole: Features, part: Features) -> Features:
    descriptors = np.concatenate([whole.descriptors, part.descriptors])
    return replace(whole, keypoints=whole.keypoints + part.keypoints, descriptors=descriptors)


def _joined_matches(whole: Matches, part: Matches, before: tuple[int, int]) -> Matches:
    """The matches of two looks; ``before``: the numbers of features that those of the second look follow."""
    indices = np.concatenate([whole.indices, part.indices + np.array(before, np.int32)])
    distances = np.concatenate([whole.distances, part.distances])
    known = whole.confidence is not None and part.confidence is not None
    confidence = np.concatenate([whole.confidence, part.confidence]) if known else None
    return Matches(indices, distances, confidence)
