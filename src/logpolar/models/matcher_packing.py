"""How the weights of learned matchers are stored: matrices of linear layers as int8, which halves the file.

Each row of a matrix W (outputs, inputs) has a scale, its largest magnitude: ``NAME`` = round(127 W / scale) as int8,
``NAME.scale`` (outputs,) as float32. Scales are not divided by 127: so the largest weight comes back as it was, and
weights that were read are stored as the same numbers again. A row of zeros has scale 0.

The other matrices, float16, make phases of up to 90 radians: half a step of int8 would be a third of a radian. Vectors
stay float32. Older files hold all matrices as float16.
"""

from __future__ import annotations

import numpy as np

from logpolar.models.files import Weights

_STEPS = 127
_LINEAR = ".weight"
_SCALE = ".scale"


def pack(weights: Weights) -> Weights:
    """Weights in float32 as they are stored."""
    packed: Weights = {}
    for name, values in weights.items():
        if values.ndim == 2 and name.endswith(_LINEAR):
            scale = np.abs(values).max(axis=1)
            steps = values / np.where(scale > 0, scale, 1)[:, None] * _STEPS
            packed[name], packed[name + _SCALE] = np.rint(steps).astype(np.int8), scale.astype(np.float32)
        else:
            packed[name] = values.astype(np.float16 if values.ndim > 1 else np.float32)
    return packed


def unpack(stored: Weights) -> Weights:
    """Stored weights, of any age, in float32; ``ValueError`` if one lacks its scales."""
    weights = dict(stored)
    for name in [name for name, values in stored.items() if values.dtype == np.int8]:
        scale = weights.pop(name + _SCALE, None)
        if scale is None:
            raise ValueError(f"no scales of '{name}'")
        if stored[name].ndim != 2 or not stored[name].size or scale.shape != stored[name].shape[:1]:
            raise ValueError(f"'{name}' of shape {stored[name].shape} with scales of shape {scale.shape}")
        if scale.dtype != np.float32 or not (np.isfinite(scale) & (scale >= 0)).all():
            raise ValueError(f"scales of '{name}' that are no lengths")
        weights[name] = stored[name].astype(np.float32) / _STEPS * scale[:, None]
    return weights
