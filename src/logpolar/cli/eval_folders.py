"""logpolar eval hpatches, logpolar eval amos: published folders of images"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logpolar.cli.eval_keypoints import by_source, keypoint_options, note_keypoints, take_source
from logpolar.cli.eval_output import (
    Report,
    bar,
    decimal,
    eval_options,
    open_descriptors,
    present,
    read_numbers,
    take_common,
    takes_lambda,
    working,
)
from logpolar.cli.settings import make_settings, settings_options
from logpolar.evaluation.options import AmosOptions, HPatchesOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logpolar.cli.eval_keypoints import Groups
    from logpolar.evaluation.descriptors.keypoint_sources import KeypointSource
    from logpolar.evaluation.descriptors.opening import Descriptor
    from logpolar.evaluation.hpatches_scores import HPatchesScore

_FOLDER = click.argument("folder", type=click.Path(path_type=Path))
_SPLITS = ("viewpoint", "illumination")
_SHOWN_PIXELS = 3  # the threshold of matching accuracy in tables

Scores = dict[str, dict[HPatchesOptions, "HPatchesScore"]]


@click.command(
    short_help="Ranks and matches on HPatches sequences.",
    epilog="Example: logpolar eval hpatches hpatches/ -d sift -d logpolar-96 -o results/ --turns 0,45,90",
)
@_FOLDER
@eval_options
@keypoint_options
@click.option("--turns", default="", metavar="NUMBERS", help="Degrees with commas between: measure at each as well.")
@click.option("--zooms", default="", metavar="NUMBERS", help="Factors with commas between: measure at each as well.")
@settings_options(HPatchesOptions)
def hpatches(folder: Path, turns: str, zooms: str, **values: Any) -> None:
    """The paper's Table 3 on a folder of HPatches sequences, and curves over rotation and zoom.

    rank-1: mode paper has all correspondences of a split in one pool, mode full ranks within each pair. MMA: share of
    mutual nearest neighbours within some pixels of the truth. --turns and --zooms turn and enlarge the second images.
    """
    common = take_common(values)
    options = make_settings(HPatchesOptions, values)
    source = take_source(values, options.keypoints, options.contrast, common.device)
    turned = [replace(options, turn=turn) for turn in read_numbers(turns, "--turns", -180, 180)]
    zoomed = [replace(options, zoom=zoom) for zoom in read_numbers(zooms, "--zooms", 0.25, 4)]
    opened = open_descriptors(common, keypoints=options.keypoints)
    groups, data = by_source(opened, source), _identify_hpatches(folder, options)
    conditions = list(dict.fromkeys([options, *turned, *zoomed]))
    with working(common):
        found = _score_hpatches(folder, data, common.cache, groups, conditions)
    columns = ["turn", "zoom"]
    columns += [f"{split}, {what}" for split in _SPLITS for what in ("rank-1", f"MMA {_SHOWN_PIXELS} px", "N (pairs)")]
    settings = {**asdict(options), "turns": turns, "zooms": zooms, **source.settings}
    report = Report("hpatches", data, settings, opened, columns)
    for name, scores in ((name, found[name]) for name, _ in present(opened)):
        report.results[name] = [score.to_dict() for score in scores.values()]
        for at, score in scores.items():
            _add_hpatches(report, name, at, score)
    note_keypoints(report, opened, source)
    if len(turned) + len(zoomed):
        report.notes.append("Turned and zoomed images have other keypoints, and pools of other sizes: see N.")
    if found:
        _add_curves(report, found, options, turned, zoomed)
    report.write(common.output)


def _identify_hpatches(folder: Path, options: HPatchesOptions) -> dict[str, str]:
    from logpolar.evaluation.cache import listing_identity
    from logpolar.evaluation.hpatches import hpatches_pairs

    hpatches_pairs(folder, options)  # raises for a folder that cannot be used
    return listing_identity(folder, [path for path in folder.glob("[iv]_*/*") if path.is_file()])


def _score_hpatches(
    folder: Path, data: dict[str, str], cache: Path | None, groups: Groups, conditions: Sequence[HPatchesOptions]
) -> Scores:
    """Scores by descriptor and condition; keypoints are detected once for all descriptors that share them."""
    found: Scores = {}
    for source, descriptors in groups:
        found |= _score_group(folder, data, cache, source, descriptors, conditions)
    return found


def _score_group(
    folder: Path,
    data: dict[str, str],
    cache: Path | None,
    source: KeypointSource,
    descriptors: Sequence[tuple[str, Descriptor]],
    conditions: Sequence[HPatchesOptions],
) -> Scores:
    import cv2

    from logpolar.evaluation.cache import DescriptorCache
    from logpolar.evaluation.hpatches import hpatches_pairs
    from logpolar.evaluation.hpatches_scores import HPatchesTally

    settings = {"max_size": conditions[0].max_size, "opencv": cv2.__version__, **source.settings}
    found: Scores = {name: {} for name, _ in descriptors}
    with ExitStack() as stack:
        caches = {
            name: stack.enter_context(DescriptorCache(cache, descriptor, "hpatches", data, settings))
            for name, descriptor in descriptors
        }
        for at in conditions:
            tallies = {name: HPatchesTally(cache, at) for name, cache in caches.items()}
            for named in bar(f"turn {at.turn:g}, zoom {at.zoom:g}", "pair")(hpatches_pairs(folder, at, source)):
                for tally in tallies.values():
                    tally.add(named)
            for name, tally in tallies.items():
                found[name][at] = tally.score()
    return found


def _add_hpatches(report: Report, name: str, at: HPatchesOptions, score: HPatchesScore) -> None:
    place = score.thresholds.index(_SHOWN_PIXELS)
    cells = [f"{at.turn:g}", f"{at.zoom:g}"]
    for split in _SPLITS:
        found = score.splits.get(split)
        if found is None:
            cells += ["", "", "0 (0)"]
            continue
        cells += [decimal(found.rank1), decimal(found.matching_accuracy[place])]
        cells.append(f"{found.correspondences} ({found.pairs})")
        plain = found.to_dict()
        accuracy = dict(zip(score.thresholds, plain.pop("matching_accuracy"), strict=True))
        where = {"descriptor": name, "turn": at.turn, "zoom": at.zoom, "split": split}
        report.records[""].append(
            {**where, **plain, **{f"mma_{pixels:g}": share for pixels, share in accuracy.items()}}
        )
    report.add(name, cells)


def _add_curves(
    report: Report,
    found: Scores,
    base: HPatchesOptions,
    turned: Sequence[HPatchesOptions],
    zoomed: Sequence[HPatchesOptions],
) -> None:
    splits = [split for split in _SPLITS if all(split in scores[base].splits for scores in found.values())]

    def draw_accuracy() -> Any:
        from logpolar.evaluation.figures import plot_curves

        panels = {
            split: {
                name: (scores[base].thresholds, scores[base].splits[split].matching_accuracy)
                for name, scores in found.items()
            }
            for split in splits
        }
        return plot_curves(panels, "threshold, px", "mean matching accuracy")

    def draw_sweep(conditions: Sequence[HPatchesOptions], field: str, label: str) -> Any:
        from logpolar.evaluation.figures import plot_curves

        ordered = sorted({base, *conditions}, key=lambda at: float(getattr(at, field)))
        places = [float(getattr(at, field)) for at in ordered]
        panels = {
            split: {
                name: (places, [scores[at].splits[split].rank1 for at in ordered]) for name, scores in found.items()
            }
            for split in splits
        }
        return plot_curves(panels, label, "rank-1", log2=field == "zoom")

    report.figures["-mma"] = draw_accuracy
    if turned:
        report.figures["-turns"] = lambda: draw_sweep(turned, "turn", "second image turned by, degrees")
    if zoomed:
        report.figures["-zooms"] = lambda: draw_sweep(zoomed, "zoom", "second image enlarged by")


@click.command(
    short_help="Ranks on AMOS patches.",
    epilog="Example: logpolar eval amos AMOS/ -d sift -d logpolar-96 -o results/ --lambdas 2,6,12",
)
@_FOLDER
@eval_options
@click.option(
    "--lambdas",
    default="",
    metavar="NUMBERS",
    help="Supports with commas between, for all descriptors that take one and have none in their spec.",
)
@settings_options(AmosOptions)
def amos(folder: Path, lambdas: str, **values: Any) -> None:
    """The paper's Table 4 on a folder of AMOS patches: Train/, train_patches.pt, images_in_views.npy.

    Ranks among all pairs of all views. Scales in these files are half-widths of patches, not sizes of SIFT keypoints:
    lambda = 2 is the patch itself. Needs the extra 'torch' to read the files.

    A text file that lists pairs of images of fixed cameras, as for `dataset aligned`, stands in for the folder: places
    are then those of SIFT keypoints of the first images, and the results say so.
    """
    from logpolar.evaluation.amos import RANKS, amos_pairs, score_amos
    from logpolar.evaluation.cache import DescriptorCache

    common = take_common(values)
    options = make_settings(AmosOptions, values)
    supports = read_numbers(lambdas, "--lambdas", 0.01, 1000)
    specs = [
        each
        for spec in common.specs
        for each in ([f"{spec},lambda={support:g}" for support in supports] if takes_lambda(spec) else []) or [spec]
    ]
    opened = open_descriptors(common, specs)
    pairs = amos_pairs(folder, options)
    report = Report(
        "amos",
        pairs.identity(),
        {**asdict(options), "lambdas": lambdas},
        opened,
        ["rank-1", *(f"rank ≤ {place}" for place in RANKS[1:]), "N (views)"],
    )
    with working(common):
        for name, descriptor in present(opened):
            with DescriptorCache(common.cache, descriptor, "amos", pairs.identity(), {}) as cache:
                score = score_amos(pairs, cache, bar(name))
            report.add(name, [*(decimal(score.cumulative[k]) for k in RANKS), f"{score.pairs} ({score.views})"])
            plain = score.to_dict()
            report.results[name] = plain
            shares = {f"rank_{place}": share for place, share in plain["cumulative"].items()}
            counts = {key: plain[key] for key in ("pairs", "views", "images")}
            report.records[""].append({"descriptor": name, **counts, **shares})
    report.notes.append(f"Order of images: {pairs.lists}; views left out: {len(pairs.left_out)}.")
    report.write(common.output)
