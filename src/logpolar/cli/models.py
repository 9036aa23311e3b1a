"""logpolar models"""

from __future__ import annotations

from typing import Any

import click


@click.command(short_help="List the shipped models and their results.", epilog="Example: logpolar models logpolar-96")
@click.argument("model", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print full cards as JSON.")
def models(model: tuple[str, ...], as_json: bool) -> None:
    """Show the shipped models, or model files, with their results."""
    import json

    from logpolar.models import load_model, shipped_models
    from logpolar.sampling.patterns import pattern_to_dict

    loaded = [load_model(name) for name in model or shipped_models()]
    if as_json:
        click.echo(json.dumps([json.loads(each.card.to_json()) for each in loaded], indent=2))
        return
    for each in loaded:
        card = each.card
        sampling = pattern_to_dict(card.sampling)
        click.secho(card.name, bold=True)
        click.echo(f"  {card.description}")
        click.echo("  sampling: " + ", ".join(f"{key} {value}" for key, value in sampling.items()))
        weights = sum(values.size for name, values in each.weights.items() if name.endswith("weight"))
        cost = (
            f"{card.network.multiply_adds / 1e6:.1f} million multiply-adds a patch, {weights / 1e6:.2f} million weights"
        )
        click.echo(f"  network: {cost}")
        click.echo(f"  data: {card.training.get('data', 'not stated')}")
        if card.variant:
            click.echo(f"  variant: {card.precision}, of {card.variant.parent} ({card.variant.parent_hash[:16]}...)")
        for title, figures in card.figures.items():
            click.echo(f"  {title}: {_in_words(figures)}")
        click.echo(f"  licence: {card.licence}; SHA-256 {each.digest[:16]}...")


def _in_words(figures: Any) -> str:
    """Results by scene as their mean, anything else as it is; the card holds the rest."""
    from logpolar.evaluation.pairs import Score

    shown = figures.get("mean", figures) if isinstance(figures, dict) else {"": figures}
    try:
        return Score.from_dict(shown).in_words()
    except TypeError:
        return ", ".join(f"{key} {value}".strip() for key, value in shown.items())
