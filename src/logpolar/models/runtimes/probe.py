"""Run a network in reduced precision once: ``python -m logpolar.models.runtimes.probe openvino|torch PRECISION``.

``processor.py`` starts it as a child process, because it may die.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from logpolar.models.cards import Variant
from logpolar.models.files import load_model
from logpolar.settings import DEFAULT_MODEL


def _run_openvino(precision: str) -> None:
    from logpolar.models.runtimes.base import check_patches
    from logpolar.models.runtimes.openvino_cpu import OpenVinoDescriber

    model = load_model(f"{DEFAULT_MODEL}-int8" if precision == "int8" else DEFAULT_MODEL)
    if precision == "bfloat16":
        model = replace(model, card=replace(model.card, variant=Variant("bfloat16", model.name, model.digest)))
    OpenVinoDescriber(model).describe_patches(check_patches(32, 32))


def _run_torch() -> None:
    import torch

    network = load_model(DEFAULT_MODEL).network()
    with torch.autocast("cpu", torch.bfloat16):
        network(torch.from_numpy(np.ones((8, 32, 32), np.float32))).sum().backward()


if __name__ == "__main__":
    if sys.argv[1] == "openvino":
        _run_openvino(sys.argv[2])
    else:
        _run_torch()
