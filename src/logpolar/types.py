"""Array types used throughout the library."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float32]
Array: TypeAlias = NDArray[np.floating]
Matrix: TypeAlias = NDArray[np.float64]
Image: TypeAlias = NDArray[Any]
"""Pixels from a file or a user: gray, BGR or BGRA; 8 or 16 bit, float or boolean."""
Color: TypeAlias = Literal["bgr", "rgb"]
"""Order of an array's colour channels; alpha, if any, comes last."""
