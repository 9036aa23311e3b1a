from __future__ import annotations

import json

import pytest

from feature_files import NAMES, write_feature_file
from logpolar.integrations.imc.checking import check_submission
from logpolar.integrations.imc.exporting import export_submission
from logpolar.matching.batch import match_pairs
from logpolar.matching.pairs import exhaustive_pairs


@pytest.fixture
def files(tmp_path):
    """A feature file and a match file of all its pairs."""
    features = write_feature_file(tmp_path / "f.h5")
    match_pairs(features, tmp_path / "m.h5", exhaustive_pairs(NAMES))
    return features, tmp_path / "m.h5"


@pytest.fixture
def submission(files, tmp_path):
    export_submission(*files, tmp_path / "s", "phototourism", "reichstag")
    return tmp_path / "s"


@pytest.fixture
def edit(submission):
    """Change the method in config.json by a function; returns the problems there are then."""

    def edited(change) -> list[str]:
        methods = json.loads((submission / "config.json").read_text())
        change(methods[0])
        (submission / "config.json").write_text(json.dumps(methods))
        return check_submission(submission).problems

    return edited
