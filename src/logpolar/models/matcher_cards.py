"""Cards of learned matchers, and how keypoints are presented to them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from logpolar.keypoints import Keypoints
from logpolar.sampling.patterns import check_entries
from logpolar.settings import DESCRIPTOR_SIZE, check_settings, setting
from logpolar.storage.inputs import parse_json
from logpolar.types import FloatArray

TABLE_COLUMNS = 6
"""Columns of ``keypoint_table``."""

POSITION_OCTAVES = 6
"""Of the waves that encode positions: twice the longer side of an image to a sixteenth of it."""

_TYPICAL_SIZE = np.exp(-5.0)
"""Keypoint size over the longer side of the image whose logarithm is 0 in the table: 7 px in 1024."""


@dataclass(frozen=True)
class MatcherOptions:
    """Architecture of a learned matcher."""

    inputs: int = setting(DESCRIPTOR_SIZE, "Length of the descriptors.", 1)
    width: int = setting(192, "Length of a keypoint's state: a multiple of the heads.", 8, 1024)
    heads: int = setting(3, "Attention heads; width / heads = 64 is fastest on a GPU.", 1, 32)
    layers: int = setting(6, "Layers, each of attention within an image and to the other image.", 1, 32)
    expansion: int = setting(3, "Hidden width of a layer's last step, in widths.", 1, 8)

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) is not int:
                raise ValueError(f"{name} must be an integer, not {value!r}")
        check_settings(self)
        if self.width % (2 * self.heads) or self.width // self.heads < 4:
            raise ValueError(f"width must be a multiple of twice the {self.heads} heads, not {self.width}")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def multiply_adds(self, first: int, second: int) -> int:
        """Of all layers, for two images with these numbers of keypoints."""
        pointwise = (4 + 4 + 2 * self.expansion + 1) * self.width**2 * (first + second)
        pointwise += 2 * self.width * self.inputs * (first + second)
        attention = 2 * self.width * (first**2 + second**2 + 2 * first * second) + 4 * self.inputs * first * second
        return self.layers * (pointwise + attention)


@dataclass(frozen=True)
class MatcherCard:
    """Description of a learned matcher. It is of use only with the descriptors that it was trained on."""

    name: str
    description: str
    network: MatcherOptions
    descriptor: str  # name of the descriptor model
    descriptor_hash: str  # SHA-256 of its file; empty: not checked
    training: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    licence: str = "Apache-2.0"

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(asdict(self), indent=indent)

    @classmethod
    def from_json(cls, text: str) -> MatcherCard:
        """The inverse of ``to_json``; raises ``ValueError`` for anything else."""
        values = parse_json(text)
        check_entries(values, cls, "card")
        if not isinstance(values["training"], dict) or not isinstance(values["figures"], dict):
            raise ValueError("the card's training and figures must be tables")
        network = values.pop("network")
        check_entries(network, MatcherOptions, "card's network")
        return cls(network=MatcherOptions(**network), **values)


def keypoint_table(keypoints: Keypoints, image_size: tuple[int, int]) -> FloatArray:
    """What a matcher sees of keypoints (N, 6): x, y, ln size, angle, whether sizes are known, whether angles are.

    Convention:
        x, y     from the image's centre, in halves of its longer side
        ln size  of size / longer side, less -5; 0 if unknown
        angle    radians, clockwise on the screen; 0 if unknown

    Sizes, or angles, that are the same for all keypoints of an image carry no information: they count as unknown, so
    that upright keypoints and those of detectors without a scale are well defined.
    """
    longer = max(image_size)
    centre = (np.array(image_size, np.float32) - 1) / 2
    table = np.zeros((len(keypoints), TABLE_COLUMNS), np.float32)
    table[:, :2] = (keypoints.xy - centre) / (longer / 2)
    if _varies(keypoints.size):
        table[:, 2], table[:, 4] = np.log(keypoints.size / (longer * _TYPICAL_SIZE)), 1
    if _varies(keypoints.angle):
        table[:, 3], table[:, 5] = np.radians(keypoints.angle), 1
    return table


def _varies(values: FloatArray) -> bool:
    return len(values) > 0 and bool(values.min() < values.max())
