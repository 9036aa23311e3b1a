"""logpolar train-matcher"""

from __future__ import annotations

from pathlib import Path

import click

from logpolar.cli.train import start_from, training


@click.command(
    "train-matcher",
    short_help="Train a matcher for a model's descriptors.",
    epilog="Example: logpolar train-matcher matcher.toml -o my-matcher --set optimisation.steps=30000",
)
@click.argument("config", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="Folder of the run.")
@click.option("--set", "changes", multiple=True, metavar="SECTION.KEY=VALUE", help="Change a key; repeatable.")
@click.option("--init", metavar="MATCHER", help="Start from this shipped matcher or file: fine-tune it.")
@click.option("--overwrite", is_flag=True, help="Start over in a folder that holds another run.")
def train_matcher(config: Path, output: Path, changes: tuple[str, ...], init: str | None, overwrite: bool) -> None:
    """Train a learned matcher as described by CONFIG, a TOML file (needs the extra 'train').

    Views are made of scenes (`dataset colmap`), photos and aligned pairs, and described once; the folder receives the
    matcher's file, a log and checkpoints. Rerunning the command resumes an interrupted run. Needs a GPU to be of use.
    """
    from logpolar.training.matcher_config import read_matcher_config

    settings = read_matcher_config(config, (*changes, *start_from(init)))
    with training(output):
        from logpolar.training.matcher_run import train_matcher

        report = train_matcher(settings, output, overwrite, click.echo)
    for name, values in report.figures.items():
        click.echo(f"{name}: precision {values['precision']:.4f}, recall {values['recall']:.4f}")
    if report.model:
        click.echo(f"wrote {report.model}")
