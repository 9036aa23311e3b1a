"""Structure from motion, which the paper does not have, of our runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from logpolar.evaluation.formatting import decimal
from logpolar.evaluation.report.runs import Run
from logpolar.evaluation.report.tables import NONE, of_protocol
from logpolar.evaluation.report.writing import Section, Table

_NOTE = (
    "The paper does not have this: photos alone into a COLMAP model, lenses unknown, and its cameras beside the "
    "true ones after a similarity. COLMAP SIFT is COLMAP's own extractor and matcher with its defaults; all "
    "others are `logpolar sfm` with that descriptor of OpenCV's SIFT keypoints and the ratio given. No image has "
    "more keypoints than the limit, all pairs are matched, verification and mapper are the same. Right are images "
    "in the largest model within 5 degrees and 0.1 of the extent, the median distance of true cameras to their "
    "middle. Rotation (degrees) and position (in extents) are medians of registered images: whoever registers "
    "only the easy ones can be ahead there. The mapper leaves much to chance where lenses are unknown: figures "
    "are means of several models from the same matches, with seeds that follow, and behind the registered images "
    "are the least and the most. Scenes whose true cameras come from COLMAP with SIFT lack what SIFT cannot "
    "register."
)
_COLUMNS = (
    *("registered", "reduced ones", "right", "points", "track length", "reprojection, px", "rotation", "position"),
    *("pairs verified", "keypoints", "ratio"),
)


def structure_from_motion(runs: Sequence[Run]) -> Section:
    section = Section(
        "Structure from motion",
        _NOTE,
        "logpolar eval sfm SCENES -d logpolar-96 -d rootsift -d colmap-sift --shrink 3 -o results/sfm",
        None,
        of_protocol(runs, "sfm"),
    )
    for run in section.runs:
        section.ours[run.label] = {
            name: {"all": found["all"], **{scene: _figures(score) for scene, score in found["scenes"].items()}}
            for name, found in run.results.items()
        }
        section.tables.append(_table(run))
    return section


def _table(run: Run) -> Table:
    """By scene, so that descriptors on the same photos stand together."""
    rows = []
    scenes = list(dict.fromkeys(scene for found in run.results.values() for scene in found["scenes"]))
    for scene in [*scenes, *(["all"] if len(scenes) > 1 else [])]:
        for name, found in run.results.items():
            score = found["all"] if scene == "all" else found["scenes"].get(scene)
            if score is not None:
                rows.append([scene, name, *_cells(score), f"{found['ratio']:g}"])
    shrink = run.options.get("shrink", 1)
    reduced = f"every second photo {shrink:g} times smaller" if shrink > 1 else "photos as they are"
    keypoints = run.options.get("keypoints")
    caption = f"{run.label}: {reduced}, up to {keypoints} keypoints, {run.options.get('repeats')} models each."
    return Table(caption, ["scene", "descriptor", *_COLUMNS], rows)


def _cells(score: Mapping[str, Any]) -> list[str]:
    def share(name: str, whole: str) -> str:
        return f"{score[name]:.4g} of {score[whole]}" if score.get(whole) else NONE

    numbers = (("mean_track_length", 2), ("mean_reprojection_error", 2), ("rotation_median", 2), ("position_median", 3))
    return [
        f"{share('registered', 'images')} ({score['registered_least']} - {score['registered_most']})",
        share("reduced_registered", "reduced"),
        share("right", "images"),
        f"{score['points']:.0f}",
        *(decimal(score[name], digits) or NONE for name, digits in numbers),
        share("verified", "pairs"),
        decimal(score.get("keypoints_mean"), 0) or NONE,
    ]


def _figures(score: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in score.items() if name != "repeats"}
