"""Reports: every table and figure of the paper with measurements, and what goes beyond the paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from logpolar.evaluation.protocol import make_folder
from logpolar.evaluation.report.figures import (
    fpr95_by_errors,
    patches_of_pairs,
    rank_figures,
    ranks_among_distractors,
    sampling_patterns,
)
from logpolar.evaluation.report.page import write_report_page
from logpolar.evaluation.report.runs import Run, read_runs
from logpolar.evaluation.report.tables import (
    amos_ranks,
    fpr95_by_scene,
    fpr95_by_support,
    hpatches_ranks,
    poses,
    scale_free,
    structure_from_motion,
)
from logpolar.evaluation.report.writing import Section, of_protocol, write_report

PAGE = "report.html"


def report_results(folders: Sequence[Path], output: Path) -> tuple[list[Section], list[str], Path]:
    """Write the report of all results in folders: its sections, the names of its files, and their folder."""
    runs = read_runs(folders)
    sections = paper_sections(runs)
    parent = output.parent if output.suffix == ".md" else output
    make_folder(parent)
    made = write_report(output, sections, runs)
    page = output.with_suffix(".html") if output.suffix == ".md" else output / PAGE
    write_report_page(page, sections, runs, [parent / name for name in made if name.endswith(".png")])
    return sections, [page.name, *made], parent


def paper_sections(runs: Sequence[Run]) -> list[Section]:
    """In the order of the paper; what goes beyond it comes last."""
    without = scale_free(runs)
    without.figures |= rank_figures("scale-free-ranks", of_protocol(runs, "retrieval", fixed=True))
    return [
        sampling_patterns(),
        patches_of_pairs(),
        fpr95_by_scene(runs),
        fpr95_by_errors(runs),
        fpr95_by_support(runs),
        ranks_among_distractors(runs),
        hpatches_ranks(runs),
        amos_ranks(runs),
        poses(runs),
        without,
        structure_from_motion(runs),
    ]
