"""Model files and their cards, networks, runtimes, export and quantisation."""

from logpolar.models.files import Model, load_model, shipped_models

__all__ = ["Model", "load_model", "shipped_models"]
