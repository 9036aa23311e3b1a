"""logpolar collection info, check, merge"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click


@click.group("collection", short_help="Collections of feature or match shards.")
def collection() -> None:
    """Look at, check and merge collections: folders of shards, as `extract --shard-size` writes them."""


@collection.command(epilog="Example: logpolar collection info features/")
@click.argument("path", type=click.Path(path_type=Path))
def info(path: Path) -> None:
    """Print what a collection holds."""
    from logpolar.matching.merging import describe_collection

    found = describe_collection(path)
    click.echo(f"{path}: {found.items} {found.unit}s with {found.amount} {found.what} in {found.shards} shards")
    click.echo(f"{found.size / 1e6:.1f} MB; settings: {json.dumps(found.settings)}")


@collection.command(epilog="Example: logpolar collection check features/ --drop")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--drop", is_flag=True, help="Take bad shards out of the manifest; rerun extract to fill the gap.")
def check(path: Path, drop: bool) -> None:
    """Compare every shard with its hash; exit code 1 if one is missing or damaged."""
    from logpolar.matching.merging import check_collection

    faults, kept = check_collection(path, drop)
    for shard, reason in faults:
        state = "dropped" if drop else "is listed"
        click.echo(f"logpolar: {path / shard.file}: {reason}; {state}, with {len(shard.items)} entries", err=True)
    click.echo(f"{path}: {kept} shards are sound, {len(faults)} are not")
    if faults:
        sys.exit(1)


@collection.command(epilog="Example: logpolar collection merge first/ second/ more.h5 -o all/")
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="Collection, or file *.h5.")
def merge(sources: tuple[Path, ...], output: Path) -> None:
    """Merge collections and files, made with the same settings, into a collection or one file, for hloc for example.

    Of an image that several of them hold the first one counts. The sources stay as they are.
    """
    from logpolar.matching.merging import merge_sources

    count, skipped = merge_sources(sources, output)
    more = f", {skipped} were there already" if skipped else ""
    click.echo(f"{output}: {count} entries added{more}")
