"""The paper's Tables 1 to 5, and what goes beyond the paper: fixed sizes and structure from motion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logpolar.evaluation.protocol import decimal, percent
from logpolar.evaluation.report import paper_numbers as paper
from logpolar.evaluation.report.runs import Run
from logpolar.evaluation.report.writing import INTERVAL, NONE, Section, Table, counted, in_paper, of_protocol
from logpolar.evaluation.schema import ABLATION

_SFM_NOTE = (
    "Not in the paper: COLMAP models of photos with unknown intrinsics, their cameras compared with the "
    "true ones after a similarity. COLMAP SIFT is COLMAP's own extractor and matcher with its defaults; all "
    "others are `logpolar sfm` with that descriptor of OpenCV's SIFT keypoints and the ratio given. No image has "
    "more keypoints than the limit, all pairs are matched, verification and mapper are the same. Correct are images "
    "in the largest model within 5 degrees and 0.1 of the extent, the median distance of true cameras to their "
    "middle. Rotation (degrees) and position (in extents) are medians of registered images, which favours methods "
    "that register only easy ones. The mapper is far from deterministic with unknown intrinsics: figures are means of "
    "several models from the same matches, with consecutive seeds; in brackets the fewest and the most registered "
    "images. Scenes whose true cameras come from COLMAP with SIFT lack what SIFT cannot register."
)


def fpr95_by_scene(runs: Sequence[Run]) -> Section:
    section = Section(
        "Table 1: FPR95 by scene",
        paper.NOT_COMPARABLE["Table 1"],
        "logpolar eval patches SCENES.h5 -d sift -d paper-cartesian-12 -d logpolar-96 -o results/patches",
        paper.TABLE_1,
        of_protocol(runs, "patches"),
    )
    means, rows = paper.TABLE_1[paper.MEAN], []
    for run, name, scenes in section.methods():
        ours = {scene: _without(result, "classes") for scene, result in scenes.items()}
        section.ours.setdefault(run.label, {})[name] = ours
        mean, other = scenes["mean"], in_paper(run, name, means)
        low, high = (percent(limit) for limit in mean["fpr95_interval"])
        cells = [percent(mean["fpr95"]), f"{low} - {high}" if low else NONE, decimal(mean["rank1"])]
        cells += [decimal(mean["rank1_scales_differ_2x"]), counted(mean)]
        rows.append([name, run.label, *cells, other or NONE, f"{means[other]:.2f}" if other else NONE])
    columns = ["FPR95 %, ours", INTERVAL, "rank-1", "rank-1, scale mismatch > 2x", "N (pairs)"]
    columns = ["descriptor", "run", *columns, "in the paper", "FPR95 %, paper"]
    section.add_table("Means of scenes, and the paper's average of nine.", columns, rows)
    for run in section.runs:
        scenes = dict.fromkeys(scene for found in run.results.values() for scene in found)
        rows = [[scene, *(percent(found[scene]["fpr95"]) for found in run.results.values())] for scene in scenes]
        section.tables.append(Table(f"Ours, FPR95 %: {run.label}.", ["scene", *run.results], rows))
    rows = [[scene, *(f"{value:.2f}" for value in row.values())] for scene, row in paper.TABLE_1.items()]
    section.add_table("The paper's, FPR95 %.", ["scene", *means], rows)
    return section


def fpr95_by_support(runs: Sequence[Run]) -> Section:
    section = Section(
        "Table 2: FPR95 by support λ",
        paper.NOT_COMPARABLE["Table 2"],
        "logpolar ablate CONFIG.toml --test 'SCENES.h5' -o results/ablation",
        dict(paper.TABLE_2),
        of_protocol(runs, ABLATION),
    )
    found = {("paper", kind): _supports(paper.TABLE_2, kind, paper.TABLE_2_LAMBDAS) for kind in ("Cart", "LogPol")}
    ranks = {}
    for run in section.runs:
        section.ours[run.label] = run.results
        for pattern, kind in (("cartesian", "Cart"), ("log-polar", "LogPol")):
            models = [row for row in run.results.values() if row["pattern"] == pattern]
            found[run.label, kind] = {row["lambda"]: percent(row["fpr95"]) for row in models}
            ranks[run.label, kind] = {row["lambda"]: decimal(row["rank1"]) for row in models}
    section.add_table("FPR95 %.", *_support_rows(found))
    section.add_table("Rank-1 of the same models, not in the paper.", *_support_rows(ranks))
    return section


def _supports(row: paper.Row, kind: str, lambdas: Sequence[float], digits: int = 2) -> dict[float, str]:
    return {lambda_: f"{row[paper.method(kind, lambda_)]:.{digits}f}" for lambda_ in lambdas}


def _support_rows(found: Mapping[tuple[str, str], Mapping[float, str]]) -> tuple[list[str], list[list[str]]]:
    """A row for each method, a column for each support; methods in their order, each the paper's first."""
    lambdas = sorted({lambda_ for cells in found.values() for lambda_ in cells})
    kinds = list(dict.fromkeys(kind for _, kind in found))
    rows = [
        [kind, source, *(cells.get(lambda_, NONE) or NONE for lambda_ in lambdas)]
        for (source, kind), cells in sorted(found.items(), key=lambda item: kinds.index(item[0][1]))
    ]
    return ["method", "run", *(f"λ = {lambda_:g}" for lambda_ in lambdas)], rows


def hpatches_ranks(runs: Sequence[Run]) -> Section:
    section = Section(
        "Table 3: HPatches, rank-1",
        paper.NOT_COMPARABLE["Table 3"],
        "logpolar eval hpatches HPATCHES/ -d sift -d paper-cartesian-12 -d logpolar-96 -o results/hpatches",
        paper.TABLE_3,
        of_protocol(runs, "hpatches"),
    )
    splits, rows = tuple(paper.TABLE_3), []
    for run, name, scores in section.methods():
        section.ours[run.label] = run.results
        for score in scores:
            at = score["options"]
            published = (at["mode"], at["turn"], at["zoom"]) == ("paper", 0, 1)
            other = in_paper(run, name, paper.TABLE_3[splits[0]]) if published else None
            cells = [at["mode"], f"{at['turn']:g}", f"{at['zoom']:g}"]
            for split in splits:
                there = score["splits"].get(split)
                cells += [decimal(there["rank1"]), counted(there)] if there else [NONE, "0 (0)"]
            theirs = [f"{paper.TABLE_3[split][other]:.3f}" if other else NONE for split in splits]
            rows.append([name, run.label, *cells, other or NONE, *theirs])
    columns = ["descriptor", "run", "mode", "rotation", "zoom"]
    columns += [text for split in splits for text in (f"{split}, ours", "N (pairs)")]
    columns += ["in the paper", *(f"{split}, paper" for split in splits)]
    section.add_table("Ours beside the paper's, where the condition is the paper's.", columns, rows)
    theirs_rows = [
        [name, *(f"{paper.TABLE_3[split][name]:.3f}" for split in splits)] for name in paper.TABLE_3[splits[0]]
    ]
    section.add_table("The paper's, rank-1.", ["method", *splits], theirs_rows)
    return section


def amos_ranks(runs: Sequence[Run]) -> Section:
    section = Section(
        "Table 4: AMOS patches, rank-1 by support λ",
        paper.NOT_COMPARABLE["Table 4"],
        "logpolar eval amos AMOS/ -d sift -d paper-cartesian-12 -d logpolar-96 --lambdas 6,12,16,32,64,96 "
        "-o results/amos",
        dict(paper.TABLE_4),
        of_protocol(runs, "amos"),
    )
    names = list(dict.fromkeys(name.partition(",")[0] for name in paper.TABLE_4))
    found = {("paper", name): _supports(paper.TABLE_4, name, paper.TABLE_4_LAMBDAS, 3) for name in names}
    for run, name, score in section.methods():
        section.ours[run.label] = run.results
        plain = name.partition(" (")[0]  # supports are columns
        kind, lambda_ = paper.method_of(run.identity(name)) or (plain, run.identity(name).get("lambda", 0))
        data = " (stand-in)" if "stand-in" in score.get("lists", "") else ""
        found.setdefault((f"{run.label}, {plain}{data}", kind), {})[lambda_] = decimal(score["rank1"])
    section.add_table("Rank-1; N of ours is with the runs below.", *_support_rows(found))
    return section


def poses(runs: Sequence[Run]) -> Section:
    section = Section(
        "Table 5: PhotoTourism, poses",
        paper.NOT_COMPARABLE["Table 5"],
        "logpolar eval phototourism SCENES -d sift -d paper-cartesian-12 -d logpolar-96 -o results/phototourism",
        paper.TABLE_5,
        of_protocol(runs, "phototourism"),
    )
    rows = []
    for run, name, found in section.methods():
        section.ours.setdefault(run.label, {})[name] = {"ratio": found["ratio"], **found["mean"]}
        other, cells = in_paper(run, name, paper.TABLE_5["stereo"]), [f"{found['ratio']:g}"]
        for views in ("two", "several"):
            score = found["mean"].get(views)
            cells += [decimal(score["map15"]), decimal(score["maa10"]), str(score["pairs"])] if score else [NONE] * 3
        theirs = [f"{row[other]:.4f}" if other else NONE for row in paper.TABLE_5.values()]
        rows.append([name, run.label, *cells, other or NONE, *theirs])
    columns = [f"{task}, {what}" for task in paper.TABLE_5 for what in ("mAP 15", "mAA 10", "N pairs")]
    columns = ["descriptor", "run", "ratio", *columns, "in the paper"]
    columns += [f"{task}, mAP 15, paper" for task in paper.TABLE_5]
    section.add_table("Ours beside the paper's, means of scenes.", columns, rows)
    names = paper.TABLE_5["stereo"]
    theirs_rows = [[name, *(f"{row[name]:.4f}" for row in paper.TABLE_5.values())] for name in names]
    section.add_table("The paper's, mAP 15.", ["method", *paper.TABLE_5], theirs_rows)
    return section


def scale_free(runs: Sequence[Run]) -> Section:
    """Runs with fixed sizes, beside those on the same pairs with the detector's."""
    section = Section(
        "Without the detector's scale: log-polar against cartesian",
        "Not in the paper: all keypoints of an image get one size, so that the detector's scales are "
        "lost, and the descriptor must do without.",
        "logpolar eval patches SCENES.h5 --fixed-size median -d paper-cartesian-12 -d logpolar-96 "
        "-o results/patches-fixed",
        None,
        [run for run in runs if run.fixed_size is not None],
    )
    rows = []
    for run, name, results in section.methods():
        measures = _measures(run.protocol, results)
        section.ours.setdefault(run.label, {})[name] = {measure.name: measure.value for measure in measures}
        kept = [other for other in of_protocol(runs, run.protocol) if _same_pairs(run, other)]
        found = next((other.results[name] for other in kept if name in other.results), None)
        before = {measure.name: measure.text for measure in _measures(run.protocol, found)} if found else {}
        kind = run.identity(name).get("sampling", {}).get("pattern", "cartesian")
        rule = run.fixed_size if isinstance(run.fixed_size, str) else f"{run.fixed_size:g} of the longer side"
        for measure in measures:
            cells = [measure.name, measure.text or NONE, before.get(measure.name, "") or NONE, measure.count]
            rows.append([name, kind, run.label, str(rule), *cells])
    columns = ["descriptor", "pattern", "run", "size of all", "measure", "without scales", "with the detector's"]
    caption = "The detector's scales: those of the run on the same pairs, if there is one."
    section.add_table(caption, [*columns, "N (pairs)"], rows)
    return section


@dataclass(frozen=True)
class _Measure:
    name: str
    value: float | None
    count: str
    percent: bool = False

    @property
    def text(self) -> str:
        return percent(self.value) if self.percent else decimal(self.value)


def _measures(protocol: str, found: Any) -> list[_Measure]:
    """The main figures of a protocol, of one method."""
    if protocol == "hpatches":
        return [
            _Measure(f"{split}, rank-1 (rotation {at['turn']:g}, zoom {at['zoom']:g})", there["rank1"], counted(there))
            for score in found
            for at in (score["options"],)
            for split, there in score["splits"].items()
        ]
    mean = found["mean"]
    if protocol == "phototourism":
        return [
            _Measure(f"{task}, mAA 10", mean[views]["maa10"], f"({mean[views]['pairs']})")
            for views, task in (("two", "stereo"), ("several", "multi-view"))
            if views in mean
        ]
    if protocol == "retrieval":
        return [_Measure("rank-1 among distractors", mean["shares"]["1"], counted(mean))]
    fpr95 = _Measure("FPR95 %", mean["fpr95"], counted(mean), percent=True)
    return [fpr95, _Measure("rank-1", mean["rank1"], counted(mean))]


def _same_pairs(one: Run, other: Run) -> bool:
    options = (_without(run.options, "fixed_size", "resamples") for run in (one, other))
    return one.data == other.data and next(options) == next(options)


def structure_from_motion(runs: Sequence[Run]) -> Section:
    from logpolar.evaluation.sfm import StructureFromMotion, scene_cells

    section = Section(
        "Structure from motion",
        _SFM_NOTE,
        "logpolar eval sfm SCENES -d logpolar-96 -d rootsift -d colmap-sift --downscale 3 -o results/sfm",
        None,
        of_protocol(runs, "sfm"),
    )
    for run in section.runs:
        section.ours[run.label] = {
            name: {"all": found["all"], **{scene: _without(s, "repeats") for scene, s in found["scenes"].items()}}
            for name, found in run.results.items()
        }
        rows, scenes = [], list(dict.fromkeys(scene for found in run.results.values() for scene in found["scenes"]))
        for scene in [*scenes, *(["all"] if len(scenes) > 1 else [])]:
            for name, found in run.results.items():
                score = found["all"] if scene == "all" else found["scenes"].get(scene)
                if score is not None:
                    rows.append([scene, name, *scene_cells(score, NONE), f"{found['ratio']:g}"])
        factor, most = run.options.get("shrink", 1), run.options.get("keypoints")
        reduced = f"every second photo downscaled {factor:g} times" if factor > 1 else "photos as they are"
        caption = f"{run.label}: {reduced}, up to {most} keypoints, {run.options.get('repeats')} models each."
        section.tables.append(Table(caption, ["scene", "descriptor", *StructureFromMotion.columns[1:]], rows))
    return section


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
