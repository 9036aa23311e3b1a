from __future__ import annotations

import pytest

from logpolar.errors import LogpolarError
from logpolar.training.detector_config import detector_config_to_toml, read_detector_config

TEXT = """
name = "mine"
[[data]]
kind = "photos"
files = ["photos"]
[network]
channels = [8, 16, 24]
[crops]
side = 128
"""


@pytest.fixture
def config_file(tmp_path):
    (tmp_path / "photos").mkdir()
    path = tmp_path / "config.toml"
    path.write_text(TEXT)
    return path


def test_configs_survive_writing(config_file):
    config = read_detector_config(config_file, ["objectives.cost=0.2", "optimisation.steps=7"])
    assert (config.name, config.network.channels, config.crops.side) == ("mine", (8, 16, 24), 128)
    assert (config.objectives.cost, config.optimisation.steps) == (0.2, 7)
    assert config.data[0].files == (str(config_file.parent / "photos"),)
    config_file.write_text(detector_config_to_toml(config))
    assert read_detector_config(config_file) == config


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("crops.side=100", "multiple of 8"),
        ("crops.sides=96", "did you mean 'side'"),
        ("network.channels=[1,2]", "three resolutions"),
        ("network.window=-1", "window"),
        ("objectives.tolerance=0", "tolerance must be at least 0.5"),
        ("name=a/b", "file name"),
    ],
)
def test_mistakes_are_named(config_file, change, words):
    with pytest.raises(LogpolarError, match=words):
        read_detector_config(config_file, [change])


def test_something_must_be_learned_from_something(config_file):
    zeros = [f"objectives.{each}=0.0" for each in ("imitation", "matchability", "repeatability")]
    with pytest.raises(LogpolarError, match="nothing would be learned"):
        read_detector_config(config_file, zeros)
    config_file.write_text(TEXT.replace('"photos"]', '"nowhere"]'))
    with pytest.raises(LogpolarError, match="nowhere: no such file"):
        read_detector_config(config_file)
    config_file.write_text("")
    with pytest.raises(LogpolarError, match="no \\[\\[data"):
        read_detector_config(config_file)
