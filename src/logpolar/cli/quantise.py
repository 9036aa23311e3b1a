"""logpolar quantise"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from logpolar.cli.options import max_size_option
from logpolar.errors import LogpolarError
from logpolar.storage.atomic_io import check_output

if TYPE_CHECKING:
    from logpolar.types import FloatArray


@click.command(
    short_help="Make a faster variant of a model, in int8 or bfloat16.",
    epilog="Example: logpolar quantise logpolar-96 photos/ -o logpolar-96-int8.safetensors --test scene.h5",
)
@click.argument("model")
@click.argument("sources", nargs=-1, required=True, metavar="PATH...")
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="Model file (.safetensors).")
@click.option(
    "--precision",
    type=click.Choice(["int8", "bfloat16"]),
    default="int8",
    show_default=True,
    help="bfloat16 needs OpenVINO.",
)
@click.option(
    "--test",
    "tests",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Correspondence file to measure the variant on; repeatable.",
)
@click.option("--split", type=click.Choice(["train", "validation", "test"]), help="Measure on this split only.")
@click.option("--pairs", type=click.IntRange(min=0), default=0, show_default="all", help="Image pairs of a test file.")
@click.option("--title", default="test scenes", show_default=True, help="Title of the results on the card.")
@max_size_option
def quantise(
    model: str,
    sources: tuple[str, ...],
    output: Path,
    precision: str,
    tests: tuple[Path, ...],
    split: str | None,
    pairs: int,
    title: str,
    max_size: int,
) -> None:
    """Make a variant of a model that runs faster on CPUs (extra 'onnx').

    int8 is calibrated on photos, or the train split of correspondence files (PATH...). The card of the variant names
    its parent and precision, the cosine similarity to the parent's descriptors and, with --test, FPR95 and rank-1; of
    a detector, calibrated on photos, how many of the parent's keypoints it finds. Processors on which its results
    differ refuse it.
    """
    import numpy as np

    from logpolar.evaluation.variants import calibration_images, calibration_photos, measure_variant
    from logpolar.models.files import is_detector, load_model
    from logpolar.models.quantisation import calibration_patches, make_variant

    if output.suffix.lower() != ".safetensors":
        raise LogpolarError(f"{output}: model files end in .safetensors")
    check_output(output, Path(model), *map(Path, sources), *tests)
    random = np.random.default_rng(0)  # the same variant each time
    if is_detector(model):
        if tests or precision != "int8":
            raise LogpolarError("detectors are quantised to int8, and measured by `logpolar eval detectors`")
        images = list(calibration_photos(sources, max_size or None, random))
        _quantise_detector(model, images, output, sources)
        return
    loaded = load_model(model)
    patches = calibration_patches(loaded, calibration_images(sources, max_size or None, random), random)
    names = ", ".join(Path(source).name for source in sources)
    made = make_variant(output, loaded, "int8" if precision == "int8" else "bfloat16", patches, names)
    for name, figures in made.card.figures.items():
        click.echo(f"{name}: mean {figures['average']}, smallest {figures['smallest']} (N = {figures['patches']})")
    if tests:
        for scene, score in measure_variant(output, tests, split, pairs, title).items():
            click.echo(f"{scene}: {score.in_words()}")
    click.echo(f"wrote {output} ({precision}, from {loaded.name}), {output.stat().st_size / 1e6:.1f} MB")


def _quantise_detector(model: str, images: list[FloatArray], output: Path, sources: tuple[str, ...]) -> None:
    from logpolar.models.files import load_detector
    from logpolar.models.quantisation import make_detector_variant

    made = make_detector_variant(output, load_detector(model), images, ", ".join(Path(each).name for each in sources))
    for name, figures in made.card.figures.items():
        click.echo(f"{name}: {figures['found']} found within 1 px, mean distance {figures['pixels']} px")
    click.echo(f"wrote {output} (int8, from {model}), {output.stat().st_size / 1e6:.1f} MB")
