"""What several tests share: one real photo, in gray and in the library's own form."""

from __future__ import annotations

from importlib import resources

import cv2
import numpy as np
import pytest

from logpolar.images import to_gray


@pytest.fixture(scope="session")
def photo() -> np.ndarray:
    """The shipped photo, BGR, 512 x 512."""
    data = (resources.files("logpolar") / "assets" / "astronaut.jpg").read_bytes()
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)


@pytest.fixture(scope="session")
def gray(photo: np.ndarray) -> np.ndarray:
    """The shipped photo, gray float32 in [0, 1]."""
    return to_gray(photo)
