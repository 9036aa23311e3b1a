from __future__ import annotations

import pytest

from feature_files import NAMES, write_feature_file
from logpolar.matching.files import match_pairs
from logpolar.matching.pairs import exhaustive_pairs


@pytest.fixture
def files(tmp_path):
    """A feature file and a match file of all its pairs."""
    features = write_feature_file(tmp_path / "f.h5")
    match_pairs(features, tmp_path / "m.h5", exhaustive_pairs(NAMES))
    return features, tmp_path / "m.h5"
