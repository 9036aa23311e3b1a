"""logpolar match-features"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logpolar.cli.options import (
    continuing,
    device_option,
    executor_option,
    jobs_option,
    make_workers,
    pairs_file_option,
    shard_size_option,
    shards_of,
)
from logpolar.cli.settings import make_settings, settings_options
from logpolar.matching.options import MatchingOptions
from logpolar.matching.pairs import PairingOptions
from logpolar.storage.atomic_io import check_output

SHARD_SIZE = 4096

if TYPE_CHECKING:
    from logpolar.features.collections import FeatureSource
    from logpolar.matching.pairs import Pair


@click.command(
    "match-features",
    short_help="Match the images of a feature file.",
    epilog="Example: logpolar match-features features.h5 -o matches.h5 --pairing retrieval --neighbours 20",
)
@click.argument("features", type=click.Path(path_type=Path))
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    required=True,
    help="HDF5 file, or collection, to add to.",
)
@settings_options(PairingOptions)
@pairs_file_option
@settings_options(MatchingOptions)
@device_option
@jobs_option
@executor_option
@shard_size_option("pairs", SHARD_SIZE)
@click.option("--overwrite", is_flag=True, help="Replace an existing file instead of continuing it.")
def match_features(
    features: Path,
    output: Path,
    pairs: Path | None,
    device: str,
    jobs: int,
    executor: str,
    shard_size: int | None,
    overwrite: bool,
    **settings: Any,
) -> None:
    """Match the images of a feature file or collection (`logpolar extract`; hloc), in hloc's layout.

    Rerun the command to resume after an interruption.
    """
    from logpolar.features.collections import open_features
    from logpolar.matching.batch import match_pairs

    with open_features(features) as file:
        chosen = choose(file, make_settings(PairingOptions, settings), pairs)
    shards = shards_of(output, shard_size, SHARD_SIZE)
    if not shards:
        check_output(output, features, *([pairs] if pairs else []))
    matching = make_settings(MatchingOptions, settings)
    with continuing(output):
        workers = make_workers(executor, jobs, batch=32)
        report = match_pairs(features, output, chosen, matching, workers, overwrite, True, device, shards)
    skipped = f", {report.skipped} already present" if report.skipped else ""
    click.echo(f"{output}: added {report.done} of {len(chosen)} pairs with {report.matches} matches{skipped}")


def choose(file: FeatureSource, options: PairingOptions, pairs: Path | None) -> list[Pair]:
    """The pairs that the options select; at least one."""
    from logpolar.errors import LogpolarError
    from logpolar.matching.pairs import choose_pairs, read_pairs

    names = file.names()
    if len(names) < 2:
        raise LogpolarError(f"{file.path}: has {len(names)} images; matching needs at least two")
    if pairs:
        return read_pairs(pairs, names)
    return choose_pairs(names, options, file)
