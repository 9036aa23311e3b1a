from __future__ import annotations

import json

from click.testing import CliRunner

from helpers import assert_one_error
from logpolar.cli import main
from logpolar.sfm import localisation
from logpolar.sfm.localisation import LocalisedPhoto


def run(*arguments: object):
    return CliRunner().invoke(main, ["localize", *map(str, arguments)])


class Fake:
    """Knows one photo."""

    model = None

    def __init__(self, *arguments):
        pass

    def localise(self, photos):
        for path in photos:
            found = LocalisedPhoto(path.name, inliers=40, matches=50, rotation_sigma=0.1, position_sigma=0.02)
            yield found if path.name == "known.jpg" else LocalisedPhoto(path.name, reason=f"{path}: not localised")


def test_poses_are_printed(tmp_path, monkeypatch):
    monkeypatch.setattr(localisation, "Localiser", Fake)
    result = run(tmp_path, "known.jpg")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("known.jpg 1 0 0 0 0 0 0  # 40 of 50 inliers; +- 0.1 degrees")
    both = run(tmp_path, "known.jpg", "other.jpg", "--json")
    assert both.exit_code == 1
    assert "other.jpg: not localised" in both.stderr
    assert [each["inliers"] for each in json.loads(both.stdout)] == [40, 0]


def test_mistakes_are_one_line(tmp_path):
    assert_one_error(run(tmp_path, "photo.jpg"), "no finished model of `logpolar sfm`")
