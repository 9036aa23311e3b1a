from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def small(photo):
    """A piece of the photo that is wider than high, BGR."""
    return np.ascontiguousarray(photo[:90, 100:260])
