"""The descriptors that benchmarks compare: models of ours, TFeat, RootSIFT."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from logpolar.evaluation.baselines import root_sift
from logpolar.evaluation.pairs import Describe
from logpolar.extraction import Extractor
from logpolar.models import load_model
from logpolar.sampling.patterns import Cartesian


@dataclass(frozen=True)
class Method:
    """A descriptor: ``kind`` is model, tfeat or root-sift, ``source`` the model's name or the file of the weights."""

    kind: str
    source: str = ""

    @property
    def name(self) -> str:
        return {"tfeat": "TFeat", "root-sift": "RootSIFT"}.get(self.kind) or Path(self.source).stem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="", help="names or files, with commas between")
    parser.add_argument("--tfeat", default="", help="file of TFeat's weights")
    parser.add_argument("--root-sift", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")


def methods_of(options: argparse.Namespace) -> list[Method]:
    methods = [Method("model", source) for source in options.model.split(",") if source]
    methods += [Method("tfeat", options.tfeat)] if options.tfeat else []
    methods += [Method("root-sift")] if options.root_sift else []
    if not methods or len({method.name for method in methods}) < len(methods):
        raise SystemExit("name one method or more, each once")
    return methods


def tfeat_network(weights: str, device: str) -> Callable[[Any], Any]:
    """TFeat (Balntas et al., 2016): patches (N, 32, 32) in, descriptors (N, 128) out.

    As published but for the length, which is 1 here: matching takes unit vectors.
    """
    import torch
    from torch import nn

    first, second = nn.Conv2d(1, 32, 7), nn.Conv2d(32, 64, 6)
    features = nn.Sequential(
        nn.InstanceNorm2d(1, affine=False), first, nn.Tanh(), nn.MaxPool2d(2, 2), second, nn.Tanh()
    )
    layers = nn.ModuleDict({"features": features, "descr": nn.Sequential(nn.Linear(4096, 128), nn.Tanh())})
    layers.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    layers.eval().to(device)

    def describe(patches: Any) -> Any:
        values = layers["features"](patches[:, None]).flatten(1)
        return nn.functional.normalize(layers["descr"](values), dim=1)

    return describe


@lru_cache(maxsize=1)
def describer(method: Method, device: str) -> Describe:
    if method.kind == "root-sift":
        return root_sift
    from logpolar.evaluation.torch_describer import torch_describer

    if method.kind == "tfeat":
        return torch_describer(tfeat_network(method.source, device), Cartesian(12), device)
    model = load_model(method.source)
    if device == "cpu":
        extractor = Extractor(model, max_size=None, threads=1)
        return lambda view, keypoints: extractor.extract(view, keypoints).descriptors
    return torch_describer(model.network().eval().to(device), model.sampling, device)
