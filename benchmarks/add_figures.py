"""Put measured figures into the card of a model file.

python benchmarks/add_figures.py MODEL.safetensors "test scenes" FIGURES.json
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from logpolar.models import load_model
from logpolar.models.export import save_model
from logpolar.models.quantisation import add_figures


def main() -> None:
    path, name, figures = Path(sys.argv[1]), sys.argv[2], json.loads(Path(sys.argv[3]).read_text())
    model = load_model(path)
    if model.card.variant:
        add_figures(path, {name: figures})
        return
    save_model(path, model.network(), replace(model.card, figures={**model.card.figures, name: figures}))


if __name__ == "__main__":
    main()
