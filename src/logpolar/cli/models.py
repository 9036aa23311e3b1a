"""logpolar models"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from logpolar.models.files import DetectorModel, Model
    from logpolar.models.matcher_files import MatcherModel


@click.command(short_help="List the shipped models and their results.", epilog="Example: logpolar models logpolar-96")
@click.argument("model", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print full cards as JSON.")
def models(model: tuple[str, ...], as_json: bool) -> None:
    """Show the shipped models, or model files, with their results: descriptors, detectors, pairs of both, matchers."""
    import json

    from logpolar.models.files import PAIRS, shipped_detectors, shipped_models
    from logpolar.models.matcher_files import shipped_matchers

    shipped = (*shipped_models(), *shipped_detectors(), *shipped_matchers())
    loaded = [each for name in model or shipped for each in _load(name)]
    if as_json:
        click.echo(json.dumps([json.loads(each.card.to_json()) for each in loaded], indent=2))
        return
    for each in loaded:
        _show(each)
    for name, (descriptor, detector) in PAIRS.items():
        if not model or name in model:
            click.echo(f"{click.style(name, bold=True)}: keypoints of {detector}, described by {descriptor}")


def _load(name: str) -> list[Model | DetectorModel | MatcherModel]:
    """A descriptor, a detector, both halves of a pair, or a matcher."""
    from logpolar.models.files import is_detector, load_detector, load_model, take_apart
    from logpolar.models.matcher_files import is_matcher, load_matcher

    if is_matcher(name):
        return [load_matcher(name)]
    halves = (str(half) for half in take_apart(name) if half is not None)
    return [load_detector(half) if is_detector(half) else load_model(half) for half in halves]


def _show(model: Model | DetectorModel | MatcherModel) -> None:
    from logpolar.models.cards import ModelCard
    from logpolar.models.matcher_cards import MatcherCard
    from logpolar.sampling.patterns import pattern_to_dict

    card = model.card
    click.secho(card.name, bold=True)
    click.echo(f"  {card.description}")
    if isinstance(card, ModelCard):
        sampling = pattern_to_dict(card.sampling)
        click.echo("  sampling: " + ", ".join(f"{key} {value}" for key, value in sampling.items()))
        words = f"{card.network.multiply_adds / 1e6:.1f} million multiply-adds a patch"
    elif isinstance(card, MatcherCard):
        click.echo(f"  matches descriptors of {card.descriptor} ({card.descriptor_hash[:16]}...)")
        words = f"{card.network.multiply_adds(2048, 2048) / 1e9:.0f} billion multiply-adds for 2048 x 2048 keypoints"
    else:
        click.echo(f"  keypoints: {card.size:g} px, scores from {card.min_score:g}")
        words = f"{card.network.multiply_adds / 1e3:.1f} thousand multiply-adds a pixel"
    weights = sum(values.size for name, values in model.weights.items() if name.endswith("weight"))
    click.echo(f"  network: {words}, {weights / 1e6:.2f} million weights")
    click.echo(f"  data: {card.training.get('data', 'not stated')}")
    if not isinstance(card, MatcherCard) and card.variant:
        parent = card.variant
        click.echo(f"  variant: {parent.precision}, of {parent.parent} ({parent.parent_hash[:16]}...)")
    for title, figures in card.figures.items():
        click.echo(f"  {title}: {_in_words(figures)}")
    click.echo(f"  licence: {card.licence}; SHA-256 {model.digest[:16]}...")


def _in_words(figures: Any) -> str:
    """Results by scene as their mean, anything else as it is; the card holds the rest."""
    from logpolar.evaluation.pairs import Score

    shown = figures.get("mean", figures) if isinstance(figures, dict) else {"": figures}
    try:
        return Score.from_dict(shown).in_words()
    except TypeError:
        plain = {key: value for key, value in shown.items() if not isinstance(value, dict)}
        return ", ".join(f"{key} {value}".strip() for key, value in plain.items())
