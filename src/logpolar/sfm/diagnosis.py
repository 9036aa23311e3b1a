"""What went wrong in a reconstruction, in words, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import atan, degrees
from typing import Literal

import numpy as np

from logpolar.geometry.cameras import Matrix
from logpolar.sfm.facts import Facts, Lens, SceneModel

FEW_KEYPOINTS = 50
FEW_INLIERS = 30
"""COLMAP registers a photo that sees at least this many known points."""
FOCAL_RANGE = 0.35, 6.0
"""Focal lengths over the longer side that lenses have: 110 to 10 degrees of view."""
STRONG_DISTORTION = 1.0
SUSPICIOUS_SHARE = 0.1
"""Two photos of a model that share fewer points than this fraction of their inliers contradict it, where the matches
themselves could not be compared with it."""
SUSPICIOUS_AGREEMENT = 0.3
"""Two photos of which fewer matches than this fraction agree with the model contradict it."""
WEAK_POINTS, LARGE_ERROR = 0.1, 2.5
"""Fraction and multiple of the median over photos."""
NOTABLE_ERROR = 1.0
"""Pixels: below it no photo is called bad, however good the others are."""


@dataclass(frozen=True)
class Finding:
    """Something that a user should know; ``photos`` are rows of the list of photos."""

    level: Literal["problem", "warning"]
    title: str
    advice: str
    photos: Sequence[int] = ()


def diagnose(facts: Facts) -> list[Finding]:
    """Findings, problems first."""
    checks = (
        _no_model,
        _no_points,
        _unreadable,
        _keypoints,
        _unpaired,
        _islands,
        _weak_pairs,
        _separate_models,
        _lenses,
    )
    found = [finding for check in (*checks, _look_alikes, _weak_photos) for finding in check(facts)]
    return sorted(found, key=lambda finding: finding.level != "problem")


def why_unregistered(facts: Facts) -> dict[int, str]:
    """Reasons by row of the photos that are not in the largest model."""
    largest = set(facts.models[0].photos.tolist()) if facts.models else set()
    return {row: _reason(facts, row, largest) for row in range(len(facts.photos)) if row not in largest}


def weakest_photos(facts: Facts, count: int = 5) -> list[int]:
    """Registered photos of the largest model with the fewest points, the weakest first."""
    rows = facts.models[0].photos.tolist() if facts.models else []
    return sorted(rows, key=lambda row: (facts.photos[row].points, facts.photos[row].name))[:count]


def _reason(facts: Facts, row: int, largest: set[int]) -> str:
    photo, best = facts.photos[row], facts.best_pair(row)
    if photo.unreadable:
        return "cannot be read"
    if photo.keypoints == 0:
        return "no keypoints"
    if photo.model is not None:
        return f"in another model, number {photo.model}"
    if best is None:
        tried = facts.pairs.matches[(facts.pairs.rows == row).any(axis=1)]
        if not len(tried):
            return "not paired with any photo"
        return f"no verified pair; {int(tried.max())} matches in the best of {len(tried)}"
    partner, inliers = facts.photos[best[0]].name, best[1]
    if inliers < FEW_INLIERS:
        return f"too few inliers: {inliers} with {partner}, the best"
    if largest and not largest & set(_island_of(facts, row)):
        return "not connected to the photos of the model"
    return f"COLMAP could not place it; {inliers} inliers with {partner}"


def _island_of(facts: Facts, row: int) -> list[int]:
    return next(island for island in facts.islands if row in island)


def _no_model(facts: Facts) -> Iterator[Finding]:
    if facts.models:
        return
    advice = (
        "COLMAP starts from a pair with many inliers and a baseline. Try --look-at all, --pairing exhaustive and "
        "more keypoints, or add photos a step apart with large overlap; photos from one spot, however many, give no "
        "depth."
    )
    yield Finding("problem", "No model: COLMAP found no pair of photos to start from", advice)


def _no_points(facts: Facts) -> Iterator[Finding]:
    for model in facts.models:
        if not len(model.points):
            yield Finding("problem", f"Model {model.number} has no points", "Its cameras are shown alone.")


def _unreadable(facts: Facts) -> Iterator[Finding]:
    rows = [row for row, photo in enumerate(facts.photos) if photo.unreadable]
    if rows:
        reasons = "; ".join(facts.photos[row].unreadable for row in rows[:3]) + ("; ..." if len(rows) > 3 else "")
        yield Finding("problem", f"{_photos(rows)} cannot be read", reasons, rows)


def _keypoints(facts: Facts) -> Iterator[Finding]:
    none = [row for row, photo in enumerate(facts.photos) if photo.keypoints == 0]
    few = [row for row, photo in enumerate(facts.photos) if 0 < (photo.keypoints or 0) < FEW_KEYPOINTS]
    if none:
        advice = "Blank, out of focus or very dark photos have none. Remove them, or raise --min-size for small photos."
        yield Finding("problem", f"{_photos(none)} without keypoints", advice, none)
    if few:
        advice = "Too few to match reliably: check focus and exposure, and --max-size."
        yield Finding("warning", f"{_photos(few)} with fewer than {FEW_KEYPOINTS} keypoints", advice, few)


def _unpaired(facts: Facts) -> Iterator[Finding]:
    if facts.pairs.matches.max(initial=-1) < 0 and facts.models:
        return  # no database
    paired = set(facts.pairs.rows.ravel().tolist())
    rows = [row for row, photo in enumerate(facts.photos) if row not in paired and (photo.keypoints or 0) > 0]
    if rows:
        yield Finding("problem", f"{_photos(rows)} not paired with any other", "Try --pairing exhaustive.", rows)


def _islands(facts: Facts) -> Iterator[Finding]:
    """Groups of photos that nothing connects with the group of the model or, without one, with the largest group."""
    inside = set(facts.models[0].photos.tolist()) if facts.models else set()
    main = max(facts.islands, key=lambda island: len(inside & set(island)), default=[])
    groups = [island for island in facts.islands if island is not main and len(island) > 1]
    if groups:
        rows = [row for island in groups for row in island]
        sizes = ", ".join(str(len(island)) for island in groups)
        advice = (
            "Nothing connects these groups with the rest, so they cannot become one model. Try --look-at all, and "
            "--pairing exhaustive if pairs were chosen by name or retrieval; or add photos between the groups."
        )
        beside = "the group of the model" if inside else "the largest group"
        title = f"The match graph falls apart: beside {beside}, of {_photos(main)}, {_counted(len(groups), 'island')}"
        yield Finding("problem", f"{title} of {sizes}", advice, rows)


def _weak_pairs(facts: Facts) -> Iterator[Finding]:
    """Photos whose best pair is too weak to be registered by."""
    if not (facts.pairs.inliers >= 0).any():
        return
    rows = []
    for row, photo in enumerate(facts.photos):
        best = facts.best_pair(row)
        if photo.model is None and (photo.keypoints or 0) > 0 and (best is None or best[1] < FEW_INLIERS):
            rows.append(row)
    if rows:
        advice = (
            f"COLMAP needs {FEW_INLIERS} known points to place a photo. Second looks at all pairs (--look-at all), "
            "more keypoints (--max-keypoints, --max-size) and photos with a smaller change of viewpoint help."
        )
        yield Finding("warning", f"{_photos(rows)} with too few inliers in every pair", advice, rows)


def _separate_models(facts: Facts) -> Iterator[Finding]:
    """Models that photos or verified pairs connect."""
    for first, second in combinations(facts.models, 2):
        both = sorted(set(first.photos.tolist()) & set(second.photos.tolist()))
        links = _between(facts, first, second)
        inliers = int(facts.pairs.strength[links].sum())
        if not (both or len(links)):
            continue
        parts = [_photos(both) + " in both"] if both else []
        parts += [f"{_counted(len(links), 'verified pair')} between them, {inliers} inliers"] if len(links) else []
        tried = "Models that share three photos are joined if their points agree; photos of what lies between help."
        advice = f"{'; '.join(parts)}. {tried}"
        sizes = f"{len(first.photos)} and {len(second.photos)} photos"
        title = f"Models {first.number} and {second.number}, of {sizes}, could be one"
        yield Finding("warning", title, advice, sorted({*both, *facts.pairs.rows[links].ravel().tolist()}))


def _between(facts: Facts, first: SceneModel, second: SceneModel) -> np.ndarray:
    a, b = facts.pairs.rows.T if len(facts.pairs) else np.zeros((2, 0), np.intp)
    here, there = (np.isin(np.arange(len(facts.photos)), model.photos) for model in (first, second))
    here, there = here & ~there, there & ~here
    return np.flatnonzero(facts.verified & ((here[a] & there[b]) | (there[a] & here[b])))


def _lenses(facts: Facts) -> Iterator[Finding]:
    """Cameras of registered photos whose focal length or distortion no lens has."""
    for lens in facts.lenses.values():
        rows = [row for row, photo in enumerate(facts.photos) if photo.lens == lens.number and photo.model is not None]
        reason = _implausible(lens)
        if rows and reason:
            advice = (
                "Its photos do not determine it: too few of them, too little depth, or all from one direction. "
                "Let photos of one camera share it (--camera-mode), or give the camera if you know it."
            )
            yield Finding("warning", f"Camera {lens.number} is implausible: {reason}", advice, rows)


def _implausible(lens: Lens) -> str:
    longer = max(lens.width, lens.height)
    ratio, fisheye = lens.focal / max(longer, 1), "FISHEYE" in lens.kind
    if not (0 if fisheye else FOCAL_RANGE[0]) < ratio < FOCAL_RANGE[1]:
        view = degrees(2 * atan(0.5 / max(ratio, 1e-9)))
        return f"focal length {lens.focal:.0f} px for photos of {longer} px, a view of {view:.{view < 10:d}f} degrees"
    # After focal length and principal point come the coefficients of the distortion.
    if lens.kind in ("SIMPLE_RADIAL", "RADIAL") and abs(lens.parameters[3]) > STRONG_DISTORTION:
        return f"a radial distortion of {lens.parameters[3]:.2f}"
    return ""


def _look_alikes(facts: Facts) -> Iterator[Finding]:
    """Photos that match well though the model says that they see different things."""
    suspects = look_alikes(facts)
    if not suspects:
        return
    first, second = (facts.photos[row].name for row in facts.pairs.rows[suspects[0]])
    agreement = _agreement(facts)[suspects[0]]
    agree = "" if np.isnan(agreement) else f", {round(100 * agreement)} % of the matches agree with the model"
    advice = (
        f"{first} and {second}: {facts.pairs.inliers[suspects[0]]} inliers, {facts.pairs.shared[suspects[0]]} common "
        f"points{agree}. Repeated structure, such as two like facades. If the model looks folded, leave out one "
        "photo of each pair."
    )
    title = f"{_counted(len(suspects), 'pair')} of look-alike photos: they match, but the model places them apart"
    yield Finding("warning", title, advice, sorted({*facts.pairs.rows[suspects].ravel().tolist()}))


def look_alikes(facts: Facts) -> list[int]:
    """Rows of the pairs whose matches contradict a model that has both photos, those with most inliers first."""
    agreement, suspects = _agreement(facts), []
    for model in facts.models:
        inside = np.isin(facts.pairs.rows, model.photos).all(axis=1)
        strong = inside & (facts.pairs.inliers >= FEW_INLIERS)
        few = np.isnan(agreement) & (facts.pairs.shared < SUSPICIOUS_SHARE * facts.pairs.inliers)
        suspects += np.flatnonzero(strong & (few | (agreement < SUSPICIOUS_AGREEMENT))).tolist()
    return sorted(set(suspects), key=lambda pair: -int(facts.pairs.inliers[pair]))


def _agreement(facts: Facts) -> Matrix:
    known = facts.pairs.agreement
    return np.full(len(facts.pairs), np.nan) if known is None else known


def _weak_photos(facts: Facts) -> Iterator[Finding]:
    placed = [row for row, photo in enumerate(facts.photos) if photo.model is not None]
    if len(placed) < 3:
        return
    points = np.median([facts.photos[row].points for row in placed])
    error = np.median([facts.photos[row].error or 0 for row in placed])
    weak = [row for row in placed if facts.photos[row].points < WEAK_POINTS * points]
    loose = [row for row in placed if (facts.photos[row].error or 0) > max(LARGE_ERROR * error, NOTABLE_ERROR)]
    if weak:
        title = f"{_photos(weak)} with far fewer points than the others (median {points:.0f})"
        yield Finding("warning", title, "Their poses are uncertain.", weak)
    if loose:
        title = f"{_photos(loose)} with a far larger error than the others (median {error:.2f} px)"
        yield Finding("warning", title, "Look at them: motion blur, a moving subject, or another lens.", loose)


def _photos(rows: Sequence[int]) -> str:
    return _counted(len(rows), "photo")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
