"""The paper's Tables 1 to 5, and what it looks like without the detector's scales, of our runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logpolar.evaluation.formatting import decimal, percent
from logpolar.evaluation.report import paper_numbers as paper
from logpolar.evaluation.report.runs import ABLATION, Run
from logpolar.evaluation.report.writing import Section, Table

NONE = "–"
"""Where the paper has no counterpart, or we no figure."""


def of_protocol(runs: Sequence[Run], protocol: str, fixed: bool = False) -> list[Run]:
    """Runs of a protocol, those with the detector's scales or those without."""
    return [run for run in runs if run.protocol == protocol and (run.fixed_size is not None) == fixed]


def in_paper(run: Run, name: str, row: paper.Row) -> str | None:
    """The counterpart of a descriptor, which it has on the paper's kind of keypoints only."""
    return paper.counterpart(run.identity(name), row) if run.on_sift else None


def counted(score: Mapping[str, Any]) -> str:
    return f"{score['correspondences']} ({score['pairs']})"


def fpr95_by_scene(runs: Sequence[Run]) -> Section:
    section = Section(
        "Table 1: FPR95 by scene",
        paper.NOT_COMPARABLE["Table 1"],
        "logpolar eval patches SCENES.h5 -d sift -d paper-cartesian-12 -d logpolar-96 -o results/patches",
        paper.TABLE_1,
        of_protocol(runs, "patches"),
    )
    means, rows = paper.TABLE_1[paper.MEAN], []
    for run in section.runs:
        section.ours[run.label] = {
            name: {scene: _without(result, "classes") for scene, result in scenes.items()}
            for name, scenes in run.results.items()
        }
        for name, scenes in run.results.items():
            mean, other = scenes["mean"], in_paper(run, name, means)
            cells = [percent(mean["fpr95"]), _interval(mean["fpr95_interval"]), decimal(mean["rank1"])]
            cells += [decimal(mean["rank1_scales_differ_2x"]), counted(mean)]
            rows.append([name, run.label, *cells, other or NONE, f"{means[other]:.2f}" if other else NONE])
    if rows:
        columns = ["FPR95 %, ours", "95 %", "rank-1", "rank-1, scales differ > 2x", "N (pairs)"]
        columns = ["descriptor", "run", *columns, "in the paper", "FPR95 %, paper"]
        section.tables.append(Table("Means of scenes, and the paper's average of nine.", columns, rows))
    section.tables += [_scenes_table(run) for run in section.runs]
    section.tables.append(
        Table(
            "The paper's, FPR95 %.",
            ["scene", *means],
            [[scene, *(f"{value:.2f}" for value in row.values())] for scene, row in paper.TABLE_1.items()],
        )
    )
    return section


def _scenes_table(run: Run) -> Table:
    scenes = list(dict.fromkeys(scene for found in run.results.values() for scene in found))
    rows = [[scene, *(percent(found[scene]["fpr95"]) for found in run.results.values())] for scene in scenes]
    return Table(f"Ours, FPR95 %: {run.label}.", ["scene", *run.results], rows)


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
    section.tables.append(_support_table("FPR95 %.", found))
    if ranks:
        section.tables.append(_support_table("Rank-1 of the same models, which the paper does not have.", ranks))
    return section


def _supports(row: paper.Row, kind: str, lambdas: Sequence[float], digits: int = 2) -> dict[float, str]:
    return {lambda_: f"{row[paper.method(kind, lambda_)]:.{digits}f}" for lambda_ in lambdas}


def _support_table(caption: str, found: Mapping[tuple[str, str], Mapping[float, str]]) -> Table:
    """A row a method, a column a support; methods in their order, each the paper's first."""
    lambdas = sorted({lambda_ for cells in found.values() for lambda_ in cells})
    kinds = list(dict.fromkeys(kind for _, kind in found))
    rows = [
        [kind, source, *(cells.get(lambda_, NONE) or NONE for lambda_ in lambdas)]
        for (source, kind), cells in sorted(found.items(), key=lambda item: kinds.index(item[0][1]))
    ]
    return Table(caption, ["method", "run", *(f"λ = {lambda_:g}" for lambda_ in lambdas)], rows)


def hpatches_ranks(runs: Sequence[Run]) -> Section:
    section = Section(
        "Table 3: HPatches, rank-1",
        paper.NOT_COMPARABLE["Table 3"],
        "logpolar eval hpatches HPATCHES/ -d sift -d paper-cartesian-12 -d logpolar-96 -o results/hpatches",
        paper.TABLE_3,
        of_protocol(runs, "hpatches"),
    )
    splits, rows = tuple(paper.TABLE_3), []
    for run in section.runs:
        section.ours[run.label] = run.results
        for name, scores in run.results.items():
            for score in scores:
                at = score["options"]
                other = in_paper(run, name, paper.TABLE_3[splits[0]]) if _as_published(at) else None
                cells = [at["mode"], f"{at['turn']:g}", f"{at['zoom']:g}"]
                for split in splits:
                    there = score["splits"].get(split)
                    cells += [decimal(there["rank1"]), counted(there)] if there else [NONE, "0 (0)"]
                theirs = [f"{paper.TABLE_3[split][other]:.3f}" if other else NONE for split in splits]
                rows.append([name, run.label, *cells, other or NONE, *theirs])
    if rows:
        columns = ["descriptor", "run", "mode", "turn", "zoom"]
        columns += [text for split in splits for text in (f"{split}, ours", "N (pairs)")]
        columns += ["in the paper", *(f"{split}, paper" for split in splits)]
        section.tables.append(Table("Ours beside the paper's, where the condition is the paper's.", columns, rows))
    values = {name: [f"{paper.TABLE_3[split][name]:.3f}" for split in splits] for name in paper.TABLE_3[splits[0]]}
    theirs_table = [[name, *cells] for name, cells in values.items()]
    section.tables.append(Table("The paper's, rank-1.", ["method", *splits], theirs_table))
    return section


def _as_published(options: Mapping[str, Any]) -> bool:
    return (options["mode"], options["turn"], options["zoom"]) == ("paper", 0, 1)


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
    for run in section.runs:
        section.ours[run.label] = run.results
        for name, score in run.results.items():
            plain = name.partition(" (")[0]  # supports are columns
            kind, lambda_ = paper.method_of(run.identity(name)) or (plain, run.identity(name).get("lambda", 0))
            found.setdefault((f"{run.label}, {plain}", kind), {})[lambda_] = decimal(score["rank1"])
    section.tables.append(_support_table("Rank-1; N of ours is with the runs below.", found))
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
    for run in section.runs:
        section.ours[run.label] = {
            name: {"ratio": found["ratio"], **found["mean"]} for name, found in run.results.items()
        }
        for name, found in run.results.items():
            other = in_paper(run, name, paper.TABLE_5["stereo"])
            cells = [f"{found['ratio']:g}"]
            for views in ("two", "several"):
                score = found["mean"].get(views)
                cells += (
                    [decimal(score["map15"]), decimal(score["maa10"]), str(score["pairs"])] if score else [NONE] * 3
                )
            theirs = [f"{row[other]:.4f}" if other else NONE for row in paper.TABLE_5.values()]
            rows.append([name, run.label, *cells, other or NONE, *theirs])
    if rows:
        columns = [f"{task}, {what}" for task in paper.TABLE_5 for what in ("mAP 15", "mAA 10", "N pairs")]
        columns = ["descriptor", "run", "ratio", *columns, "in the paper"]
        columns += [f"{task}, mAP 15, paper" for task in paper.TABLE_5]
        section.tables.append(Table("Ours beside the paper's, means of scenes.", columns, rows))
    names = list(paper.TABLE_5["stereo"])
    theirs_rows = [[name, *(f"{row[name]:.4f}" for row in paper.TABLE_5.values())] for name in names]
    section.tables.append(Table("The paper's, mAP 15.", ["method", *paper.TABLE_5], theirs_rows))
    return section


def scale_free(runs: Sequence[Run]) -> Section:
    """Runs that throw the detector's scales away, beside those on the same pairs which keep them."""
    section = Section(
        "Without the detector's scale: log-polar against cartesian",
        "The paper does not have this: all keypoints of an image are given one size, so that whatever the detector "
        "knows of scale is lost, and the descriptor must do without.",
        "logpolar eval patches SCENES.h5 --fixed-size median -d paper-cartesian-12 -d logpolar-96 "
        "-o results/patches-fixed",
        None,
        [run for run in runs if run.fixed_size is not None],
    )
    rows = []
    for run in section.runs:
        kept = [other for other in of_protocol(runs, run.protocol) if _same_pairs(run, other)]
        measured = {name: _measures(run.protocol, found) for name, found in run.results.items()}
        section.ours[run.label] = {name: {m.name: m.value for m in measures} for name, measures in measured.items()}
        for name, measures in measured.items():
            found = next((other.results[name] for other in kept if name in other.results), None)
            before = {m.name: m.text for m in _measures(run.protocol, found)} if found else {}
            kind = run.identity(name).get("sampling", {}).get("pattern", "cartesian")
            rule = run.fixed_size if isinstance(run.fixed_size, str) else f"{run.fixed_size:g} of the longer side"
            for measure in measures:
                cells = [measure.name, measure.text or NONE, before.get(measure.name, "") or NONE, measure.count]
                rows.append([name, kind, run.label, str(rule), *cells])
    if rows:
        columns = ["descriptor", "pattern", "run", "size of all", "measure", "without scales", "with the detector's"]
        caption = "The detector's scales: those of the run on the same pairs, if there is one."
        section.tables.append(Table(caption, [*columns, "N (pairs)"], rows))
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
    """What a protocol is about, of one descriptor."""
    if protocol == "hpatches":
        return [
            _Measure(f"{split}, rank-1 (turn {at['turn']:g}, zoom {at['zoom']:g})", there["rank1"], counted(there))
            for score in found
            for at in (score["options"],)
            for split, there in score["splits"].items()
        ]
    if protocol == "phototourism":
        return [
            _Measure(f"{task}, mAA 10", found["mean"][views]["maa10"], f"({found['mean'][views]['pairs']})")
            for views, task in (("two", "stereo"), ("several", "multi-view"))
            if views in found["mean"]
        ]
    mean = found["mean"]
    if protocol == "retrieval":
        return [_Measure("rank-1 among distractors", mean["shares"]["1"], counted(mean))]
    fpr95 = _Measure("FPR95 %", mean["fpr95"], counted(mean), percent=True)
    return [fpr95, _Measure("rank-1", mean["rank1"], counted(mean))]


def _same_pairs(one: Run, other: Run) -> bool:
    def key(run: Run) -> tuple[Any, ...]:
        return run.data, {name: value for name, value in run.options.items() if name not in ("fixed_size", "resamples")}

    return key(one) == key(other)


def _interval(limits: Sequence[float | None]) -> str:
    low, high = (percent(limit) for limit in limits)
    return f"{low} - {high}" if low else NONE


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
