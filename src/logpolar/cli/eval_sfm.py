"""logpolar eval sfm"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logpolar.cli.eval_output import (
    Common,
    Report,
    bar,
    eval_options,
    make_folder,
    open_descriptors,
    take_common,
    working,
)
from logpolar.cli.options import jobs_option
from logpolar.cli.settings import make_settings, settings_options
from logpolar.errors import LogpolarError
from logpolar.evaluation.sfm.options import StructureTest

if TYPE_CHECKING:
    from logpolar.evaluation.sfm.measuring import Reconstruct, SceneScore
    from logpolar.evaluation.sfm.photos import ScenePhotos

COLMAP_SIFT = "colmap-sift"
"""The spec of COLMAP's own features and matcher."""

_COLUMNS = (
    *("scene", "registered", "reduced ones", "right", "points", "track length", "reprojection, px"),
    *("rotation, °", "position", "pairs verified", "keypoints", "ratio"),
)


@click.command(
    short_help="Structure from motion against known cameras, and COLMAP's own SIFT.",
    epilog="Example: logpolar eval sfm scenes/trevi_fountain -d logpolar-96 -d colmap-sift --shrink 3 -o results/",
)
@click.argument("scenes", nargs=-1, required=True, metavar="SCENES...", type=click.Path(path_type=Path))
@eval_options
@settings_options(StructureTest)
@jobs_option
def sfm(scenes: tuple[Path, ...], jobs: int, **values: Any) -> None:
    """Models of photos alone, by `logpolar sfm` with each descriptor, whose cameras are compared with the true ones.

    SCENES are as for `logpolar eval phototourism`; of them only the images are used, and poses as the truth. The
    descriptor 'colmap-sift' stands for COLMAP alone: its SIFT with as many keypoints, its matcher with its defaults.
    All have the same pairs, every image with every other, and the same verification and mapper. With --cache a second
    run goes on where the first one stopped. Needs the extra 'sfm'.
    """
    from logpolar.sfm.pycolmap_compat import import_pycolmap

    import_pycolmap("structure from motion")
    common, test = take_common(values), make_settings(StructureTest, values)
    contestants = _open(common, test, jobs)
    chosen = _choose(scenes, test)
    found: dict[str, dict[str, SceneScore]] = {each.name: {} for each in contestants if each.reconstruct}
    with working(common), _place(common) as place:
        for photos in chosen:
            _measure(photos, contestants, found, place, test)
    data = {photos.scene.name: _data(photos, test) for photos in chosen}
    report = Report("sfm", data, asdict(test), contestants, _COLUMNS)
    for each in contestants:
        if each.reconstruct:
            _add(report, each, found[each.name], test.seed)
    _add_notes(report, test, len(data))
    report.write(common.output)


@dataclass(frozen=True)
class _Contestant:
    """Who reconstructs; nobody if weights are not at hand."""

    spec: str
    name: str
    identity: dict[str, Any] | None
    ratio: float
    reconstruct: Reconstruct | None


def _open(common: Common, test: StructureTest, jobs: int) -> list[_Contestant]:
    from logpolar.evaluation.sfm.measuring import by_colmap, by_descriptor

    specs = [spec for spec in dict.fromkeys(common.specs) if spec != COLMAP_SIFT]
    found = {}
    for each in open_descriptors(common, specs, test.keypoints):
        ratio = test.sift_ratio if _is_sift(each.identity or {}) else test.ratio
        way = by_descriptor(each.spec, ratio, test, common.device, jobs) if each.identity else None
        found[each.spec] = _Contestant(each.spec, each.name, each.identity, ratio, way)
    if COLMAP_SIFT in common.specs:
        identity = _colmap_identity()
        found[COLMAP_SIFT] = _Contestant(COLMAP_SIFT, "COLMAP SIFT", identity, identity["max_ratio"], by_colmap(test))
    return [found[spec] for spec in dict.fromkeys(common.specs)]


def _is_sift(identity: dict[str, Any]) -> bool:
    """OpenCV's or kornia's SIFT, with keypoints of its own or not."""
    return identity.get("kind") in ("sift", "rootsift") or "SIFT" in identity.get("class", "")


def _colmap_identity() -> dict[str, Any]:
    from logpolar.sfm.pycolmap_compat import import_pycolmap_4

    pycolmap = import_pycolmap_4("COLMAP's SIFT")
    matching = {key: getattr(pycolmap.FeatureMatchingOptions().sift, key) for key in ("max_ratio", "cross_check")}
    return {"kind": COLMAP_SIFT, "pycolmap": str(pycolmap.__version__), **matching}


def _choose(paths: tuple[Path, ...], test: StructureTest) -> list[ScenePhotos]:
    from logpolar.evaluation.poses.scenes import read_scene
    from logpolar.evaluation.sfm.photos import choose_photos

    found = []
    for path in paths:
        scene = read_scene(path, min_shared=1, min_visibility=0)
        if scene.altered:
            raise LogpolarError(f"{path}: has reduced or turned copies of images, which stand where others stand")
        for reason in scene.left_out.values():
            click.echo(f"logpolar: left out: {reason}", err=True)
        found.append(choose_photos(scene, test))
    names = [photos.scene.name for photos in found]
    if len(set(names)) < len(names):
        raise LogpolarError("two scenes have the same name, and so would their results")
    if "all" in names:
        raise LogpolarError("a scene cannot be called 'all', as all together are; rename the folder")
    return found


@contextlib.contextmanager
def _place(common: Common) -> Iterator[Path]:
    """Where photos and models lie: in the cache, or for this run alone."""
    if common.cache is None:
        with tempfile.TemporaryDirectory(prefix="logpolar-sfm-") as folder:
            yield Path(folder)
    else:
        make_folder(common.cache)
        yield common.cache


def _measure(
    photos: ScenePhotos,
    contestants: list[_Contestant],
    found: dict[str, dict[str, SceneScore]],
    place: Path,
    test: StructureTest,
) -> None:
    from logpolar.evaluation.cache import cache_name
    from logpolar.evaluation.sfm.measuring import measure_structure
    from logpolar.evaluation.sfm.photos import write_photos

    scene, own = photos.scene.name, photos.identity(test.shrink)
    folder = place / Path(cache_name("sfm", scene, own)).stem
    make_folder(folder)
    write_photos(photos, folder / "photos", test.shrink)
    for each in bar(scene, "model")([each for each in contestants if each.reconstruct]):
        settings = {"identity": each.identity, "ratio": each.ratio, **asdict(test)}
        del settings["repeats"]  # more of them go on in the same folder
        output = folder / Path(cache_name("model", each.name, settings)).stem
        assert each.reconstruct is not None
        found[each.name][scene] = measure_structure(photos, folder / "photos", output, each.reconstruct, test)


def _data(photos: ScenePhotos, test: StructureTest) -> dict[str, Any]:
    counts = {"images": len(photos.names), "reduced": sum(photos.reduced), "of": len(photos.scene.images)}
    return {**photos.scene.identity(), **photos.identity(test.shrink), **counts, "left_out": photos.scene.left_out}


# Results


def _add(report: Report, each: _Contestant, scores: dict[str, SceneScore], seed: int) -> None:
    from logpolar.evaluation.sfm.measuring import sum_up

    scenes = {scene: score.to_dict() for scene, score in scores.items()}
    together = sum_up(list(scores.values()))
    report.results[each.name] = {"ratio": each.ratio, "all": together, "scenes": scenes}
    rows = {**scenes, "all": together} if len(scenes) > 1 else scenes
    for scene, values in rows.items():
        plain = {key: value for key, value in values.items() if key != "repeats"}
        report.records[""].append({"descriptor": each.name, "scene": scene, "seed": seed, "ratio": each.ratio, **plain})
        report.add(each.name, [scene, *_cells(values), f"{each.ratio:g}"])


def _cells(values: dict[str, Any]) -> list[str]:
    from logpolar.evaluation.formatting import decimal

    def share(name: str, whole: str) -> str:
        return f"{values[name]:.4g} of {values[whole]}"

    counted = "verified" in values
    return [
        f"{share('registered', 'images')} ({values['registered_least']} - {values['registered_most']})",
        share("reduced_registered", "reduced") if values["reduced"] else "",
        share("right", "images"),
        f"{values['points']:.0f}",
        decimal(values["mean_track_length"], 2),
        decimal(values["mean_reprojection_error"], 2),
        decimal(values["rotation_median"], 2),
        decimal(values["position_median"], 3),
        share("verified", "pairs") if counted else "",
        decimal(values["keypoints_mean"], 0) if counted else "",
    ]


def _add_notes(report: Report, test: StructureTest, scenes: int) -> None:
    from logpolar.evaluation.sfm.measuring import MEANINGS

    report.notes.append(
        f"Registered: {MEANINGS['registered']}. Right: {MEANINGS['right']}. Rotation and position are medians: "
        f"{MEANINGS['rotation_median']}; {MEANINGS['position_median']}."
    )
    if test.repeats > 1:
        report.notes.append(
            f"Means of {test.repeats} models from the same matches, COLMAP's mapper started with different seeds; "
            "behind the registered images the least and the most."
        )
    if test.shrink > 1:
        report.notes.append(f"Every second image, by name, is {test.shrink:g} times smaller: the reduced ones.")
    if scenes > 1:
        report.notes.append("All: counts are sums over scenes, other figures means of them.")
