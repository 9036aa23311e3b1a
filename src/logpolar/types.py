"""Array types that every room uses."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float32]
Image: TypeAlias = NDArray[Any]
"""Pixels as they come from a file or a user: gray, BGR or BGRA; 8 or 16 bit, float or boolean."""
