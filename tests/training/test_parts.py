"""What a config refers to: a model to start from, a network and a loss of the user's own."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from helpers import assert_one_error
from logpolar import load_model
from logpolar.cli import main
from logpolar.datasets.files import CorrespondenceFile
from logpolar.errors import LogpolarError
from logpolar.evaluation.descriptors.registry import open_method
from logpolar.evaluation.pairs import score_file
from logpolar.models.cards import NetworkOptions
from logpolar.models.export import save_model
from logpolar.models.network import DescriptorNetwork
from logpolar.training.parts import Parts
from logpolar.training.run import train

MINE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.layer = nn.Linear(options.rows * options.columns, 128)
    def forward(self, patches):
        values = self.layer(patches.flatten(1) - patches.mean(dim=(1, 2))[:, None])
        return values / (values.square().sum(dim=1, keepdim=True) + 1e-10).sqrt()

class Wide(Net):
    def forward(self, patches):
        return torch.cat([super().forward(patches)] * 2, dim=1)

def apart(anchors, positives, excluded):
    assert excluded.dtype == torch.bool and len(excluded) == len(anchors) == len(positives)
    return 100 * (anchors - positives).square().sum(dim=1).mean()
"""


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path / "mine.py"


@pytest.fixture
def start(tiny, tmp_path, quick):
    """A model file of the tests' architecture, with random weights."""
    config = tiny("optimisation.steps=1")
    torch.manual_seed(5)
    network = DescriptorNetwork(config.network)
    card = load_model(train(config, tmp_path / "first").model).card
    save_model(tmp_path / "start.safetensors", network.eval(), card)
    return tmp_path / "start.safetensors"


class TestInit:
    def test_training_starts_from_its_weights(self, tiny, start, tmp_path, quick):
        still = "optimisation.learning_rate=0.0", "optimisation.steps=1"
        report = train(tiny(f"init={start}", *still), tmp_path / "run")
        found, before = load_model(report.model), load_model(start)
        for name, values in before.weights.items():
            if name.endswith("weight"):  # statistics of the batch normalisations follow the data at once
                np.testing.assert_array_equal(found.weights[name], values)
        assert found.card.training["init"] == {"model": before.name, "digest": before.digest}

    def test_command_line(self, place, start, tmp_path, quick, monkeypatch):
        monkeypatch.chdir(tmp_path)  # not the folder of the config
        options = ["-o", "run", "--init", "start.safetensors", "--set", "optimisation.steps=1"]
        result = CliRunner().invoke(main, ["train", str(place / "tiny.toml"), *options])
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith("training tiny on ")
        assert result.stdout.splitlines()[0].endswith(", from tiny")

    def test_another_one_does_not_continue_a_run(self, tiny, start, tmp_path, quick):
        train(tiny("optimisation.steps=1"), tmp_path / "run")
        with pytest.raises(LogpolarError, match=r"another config .*init"):
            train(tiny("optimisation.steps=1", f"init={start}"), tmp_path / "run")

    def test_another_architecture(self, place, tmp_path):
        options = ["-o", str(tmp_path / "run"), "--init", "logpolar-96"]
        result = CliRunner().invoke(main, ["train", str(place / "tiny.toml"), *options])
        assert_one_error(result, "init: logpolar-96 has another architecture: rows 32, not 8 as in this config")

    @pytest.mark.parametrize("name", ["none.safetensors", "logpolar-96-int8"])
    def test_no_model_to_start_from(self, tiny, name):
        with pytest.raises(LogpolarError, match=r"^init: .*model") as caught:
            Parts.load(tiny(f"init={name}"))
        assert "\n" not in str(caught.value)


class TestOwnNetwork:
    def test_is_trained_and_written_with_its_sampling(self, tiny, mine, tmp_path, place):
        report = train(tiny(f"own_network={mine}:Net"), tmp_path / "run")
        assert report.model == tmp_path / "run" / "tiny.onnx"
        with CorrespondenceFile(place / "one.h5") as file:
            score = score_file(file, open_method(f"onnx:{report.model}").describer, "validation", 50)
        assert score.rank1 == pytest.approx(report.scores["one"].rank1, abs=0.02)
        training = json.loads((tmp_path / "run" / "card.json").read_text())["training"]
        assert training["own_network"]["function"] == "mine.py:Net"
        assert train(tiny(f"own_network={mine}:Net"), tmp_path / "run").was_complete

    @pytest.mark.parametrize(
        ("name", "words"),
        {
            "shape": ("Wide", r"own_network: mine.py:Wide: must map .* not to \(2, 256\)"),
            "no network": ("apart", "own_network: mine.py:apart: failed: TypeError"),
            "missing": ("Other", "own_network: .*has no function 'Other'"),
        }.values(),
    )
    def test_refused(self, tiny, mine, name, words):
        with pytest.raises(LogpolarError, match=words):
            Parts.load(tiny(f"own_network={mine}:{name}"))

    def test_not_with_a_model_to_start_from(self, tiny, mine):
        with pytest.raises(LogpolarError, match="exclude each other"):
            tiny(f"own_network={mine}:Net", "init=logpolar-96")


def test_own_loss_alone(tiny, mine, tmp_path, quick):
    """It pulls partners together, and nothing else does anything: the loss falls to a fraction."""
    alone = "loss.triplet=0.0", "loss.second_order=0.0", f"own_loss={mine}:apart"
    train(tiny(*alone, "optimisation.steps=12"), tmp_path / "run")
    rows = (tmp_path / "run" / "log.csv").read_text().splitlines()[1:]
    losses = [float(row.split(",")[1]) for row in rows]
    assert min(losses[-3:]) < 0.8 * losses[0]


def test_fresh_network_without_any_of_it(tiny):
    parts = Parts.load(tiny())
    assert (parts.teacher, parts.init, parts.network, parts.loss) == (None, None, None, None)
    assert isinstance(parts.make_network(NetworkOptions(8, 8)), DescriptorNetwork)
    assert parts.identity(tiny()) == {}
