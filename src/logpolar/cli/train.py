"""logpolar train"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from logpolar.cli.options import Number, inner_radius_option
from logpolar.outputs import check_output


@click.command(
    short_help="Train a model on photos of your own.",
    epilog="Example: logpolar train photos/ -o my-model.safetensors --device cuda --steps 12000",
)
@click.argument("photos", nargs=-1, required=True, metavar="PHOTOS...")
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="Model file (.safetensors).")
@click.option("--pattern", type=click.Choice(["log-polar", "cartesian"]), default="log-polar", show_default=True)
@click.option("--lambda", "lambda_", type=Number(0, min_open=True), help="Default: 96, cartesian 12.")
@inner_radius_option
@click.option("--circular/--no-circular", default=None, help="Default: circular for log-polar only.")
@click.option("--antialias/--no-antialias", default=True, show_default=True)
@click.option("--views", type=click.IntRange(min=1), default=5, show_default=True, help="Pairs made of each photo.")
@click.option("--steps", type=click.IntRange(min=1), default=11000, show_default=True)
@click.option("--scale-jitter", type=Number(min=0), default=0.4, show_default=True, help="Of ln(size).")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1, ...")
@click.option("--jobs", "-j", type=click.IntRange(min=1), default=2, show_default=True, help="Processes making pairs.")
@click.option("--data", default="", help="What the photos are and where from, for the model's card.")
def train(
    photos: tuple[str, ...],
    output: Path,
    pattern: str,
    lambda_: float | None,
    inner_radius: Any,
    circular: bool | None,
    antialias: bool,
    views: int,
    steps: int,
    scale_jitter: float,
    seed: int,
    device: str,
    jobs: int,
    data: str,
) -> None:
    """Train a model on photos seen through random homographies (needs the extra 'torch').

    Every sixteenth photo is kept for validation. On a GPU this takes minutes, on a CPU a day.
    """
    from logpolar.errors import LogpolarError, MissingExtraError

    try:
        import torch  # noqa: F401

        from logpolar.training.photos import PhotoRecipe, train_on_photos
    except ImportError as error:
        raise MissingExtraError("training", "torch") from error
    from logpolar.images import find_images
    from logpolar.sampling import Cartesian, LogPolar
    from logpolar.training.batches import BatchOptions
    from logpolar.training.loop import TrainingOptions

    if output.suffix != ".safetensors":
        raise LogpolarError(f"{output}: a model file's name ends with .safetensors")
    check_output(output)
    log_polar = pattern == "log-polar"
    recipe = PhotoRecipe(
        pattern=LogPolar(lambda_ or 96.0, inner_radius=inner_radius, antialias=antialias)
        if log_polar
        else Cartesian(lambda_ or 12.0, antialias=antialias),
        circular=log_polar if circular is None else circular,
        views=views,
        batch=BatchOptions(scale_jitter=scale_jitter),
        training=TrainingOptions(steps=steps, seed=seed),
    )
    score = train_on_photos(list(find_images(photos).values()), output, recipe, device, jobs, data, progress=True)
    click.echo("validation: " + ", ".join(f"{key} {value}" for key, value in score.to_dict().items()))
    click.echo(f"wrote {output}")
