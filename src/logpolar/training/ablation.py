"""The paper's second table: cartesian and log-polar patches over lambda, trained alike."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from logpolar.datasets.files import CorrespondenceFile, file_names
from logpolar.errors import LogpolarError, StorageError
from logpolar.evaluation.pairs import Score, mean_score, score_file
from logpolar.models.describers import open_describer
from logpolar.sampling.patterns import Cartesian, LogPolar, Pattern
from logpolar.storage.atomic_io import write_whole
from logpolar.storage.documents import markdown_table, write_json
from logpolar.storage.inputs import parse_json, read_bytes
from logpolar.training.config import find_files
from logpolar.training.data import load_training_data
from logpolar.training.options import TrainingConfig
from logpolar.training.processes import World
from logpolar.training.run import train

LAMBDAS = (12.0, 16.0, 32.0, 64.0, 96.0, 128.0)


@dataclass(frozen=True)
class AblationRow:
    """One model and its score on each test file."""

    pattern: str
    lambda_: float
    scores: dict[str, Score]

    @property
    def mean(self) -> Score:
        return mean_score(list(self.scores.values()))


def ablate(
    config: TrainingConfig,
    folder: Path,
    tests: Sequence[Path],
    lambdas: Sequence[float] = LAMBDAS,
    pairs: int = 0,
    progress: bool = False,
) -> list[AblationRow]:
    """Train a model for each pattern and lambda, each in its own folder, and test it on the files.

    Finished models and scores are kept, so the same call resumes. Without ``tests`` the validation splits of the
    training files are used. ``pairs`` limits the image pairs of a file, 0 for all.
    """
    device = World().device(config.run.device)
    sources = [find_files(source) for source in config.data]
    trained = {path.resolve() for files in sources for path in files}
    for path in tests:
        if path.resolve() in trained:
            raise LogpolarError(f"{path}: is among the training files; test on files that are not trained on")
        CorrespondenceFile(path).close()  # raises if unreadable, before hours are spent
    copies = config.augmentation.used_copies
    data = load_training_data(
        sources, config.batch.per_pair, device, progress=progress, copies=copies, seed=config.run.seed
    )
    files, split = (list(tests), None) if tests else ([path for each in sources for path in each], "validation")
    rows = []
    for kind in ("cartesian", "log-polar"):
        for lambda_ in lambdas:
            name = f"{kind}-{lambda_:g}"
            network = replace(config.network, circular=config.network.circular and kind == "log-polar")
            sampling = with_support(config.sampling, kind, lambda_)
            variant = replace(config, name=name, description="", sampling=sampling, network=network)
            report = train(variant, folder / name, progress=progress, data=data)
            target = report.model.with_name(f"{split or 'test'}-{pairs}.json")
            rows.append(AblationRow(kind, lambda_, _scores(report.model, files, split, pairs, target, str(device))))
            write_whole(folder / "table.csv", table_csv(rows).encode())
            write_whole(folder / "table.md", table_markdown(rows).encode())
    return rows


def with_support(base: Pattern, kind: str, lambda_: float) -> Pattern:
    """The pattern of that kind and lambda; other common options are the base's."""
    if kind == "log-polar" and isinstance(base, LogPolar):
        return replace(base, lambda_=lambda_)
    make = LogPolar if kind == "log-polar" else Cartesian
    return make(lambda_, base.rows, base.columns, antialias=base.antialias, outside=base.outside)


def _stored_scores(target: Path) -> dict[str, Any]:
    try:
        stored = parse_json(read_bytes(target))
        return {name: Score.from_dict(values).to_dict() for name, values in stored.items()}
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise StorageError(f"{target}: not the scores of an ablation; delete it") from error


def _scores(
    model: Path, files: Sequence[Path], split: str | None, pairs: int, target: Path, device: str
) -> dict[str, Score]:
    """Scores by file; ``target`` stores those already computed."""
    known = _stored_scores(target) if target.exists() else {}
    describer = open_describer(model, device=device, precision="float32", runtime="torch")
    names = file_names(files)
    for path, name in zip(files, names, strict=True):
        if name not in known:
            with CorrespondenceFile(path) as file:
                known[name] = score_file(file, describer, split, pairs).to_dict()
            write_json(target, known)
    scores = {name: Score.from_dict(known[name]) for name in names}
    return {name: score for name, score in scores.items() if score.pairs}


def table_csv(rows: Sequence[AblationRow]) -> str:
    """Every figure of every model and file."""
    text = io.StringIO()
    writer = csv.writer(text)
    for row in rows:
        for name, score in {**row.scores, "mean": row.mean}.items():
            values = score.to_dict()
            if text.tell() == 0:
                writer.writerow(["pattern", "lambda", "file", *values])
            writer.writerow([row.pattern, f"{row.lambda_:g}", name, *values.values()])
    return text.getvalue()


def table_markdown(rows: Sequence[AblationRow]) -> str:
    """The paper's table: FPR95 in percent, mean of the files, by pattern and lambda; and rank-1 below."""
    lambdas = list(dict.fromkeys(row.lambda_ for row in rows))
    lines = []
    for title, name, factor, digits in (
        ("FPR95 %", "fpr95", 100, 3),
        ("rank-1", "rank1", 1, 4),
        ("rank-1, scales differ 2x", "rank1_scales_differ_2x", 1, 3),
    ):
        for kind in dict.fromkeys(row.pattern for row in rows):
            cells = {row.lambda_: factor * getattr(row.mean, name) for row in rows if row.pattern == kind}
            shown = [f"{cells[lambda_]:.{digits}f}" if lambda_ in cells else "" for lambda_ in lambdas]
            lines.append([f"{kind}, {title}", *shown])
    return markdown_table(["lambda", *(f"{lambda_:g}" for lambda_ in lambdas)], lines)
