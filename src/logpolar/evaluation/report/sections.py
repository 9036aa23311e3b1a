"""The sections of a report: every table and figure of the paper that measurements go into."""

from __future__ import annotations

from collections.abc import Sequence

from logpolar.evaluation.report.figures import (
    fpr95_by_errors,
    patches_of_pairs,
    rank_figures,
    ranks_among_distractors,
    sampling_patterns,
)
from logpolar.evaluation.report.runs import Run
from logpolar.evaluation.report.structure import structure_from_motion
from logpolar.evaluation.report.tables import (
    amos_ranks,
    fpr95_by_scene,
    fpr95_by_support,
    hpatches_ranks,
    of_protocol,
    poses,
    scale_free,
)
from logpolar.evaluation.report.writing import Section


def paper_sections(runs: Sequence[Run]) -> list[Section]:
    """In the order of the paper; what it does not have comes last."""
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
