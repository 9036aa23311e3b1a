from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from logpolar import load_model
from logpolar.errors import LogpolarError
from logpolar.training import processes
from logpolar.training.processes import World
from logpolar.training.run import train
from training_runs import assert_same_training, read_rows, state_of

NOTING = """
import atexit, json, os, pathlib, shutil
if "RANK" in os.environ:
    from logpolar.models import export
    from logpolar.training import run
    from logpolar.training.batches import BatchSampler

    place, rank, notes = pathlib.Path(__file__).parent, os.environ["RANK"], {"drawn": [], "saved": []}
    export.export_graph = run.network_file = lambda _: b"no graph"
    draw, save = BatchSampler.draw, run.save_checkpoint

    def noting_draw(self, generator):
        batch = draw(self, generator)
        notes["drawn"].append(float(batch.first.double().sum()))
        return batch

    def noting_save(path, state):
        save(path, state)
        notes["saved"].append(state["step"])
        if state["step"] == 4:
            (place / "half").mkdir()
            shutil.copy(path, place / "half")

    BatchSampler.draw, run.save_checkpoint = noting_draw, noting_save
    atexit.register(lambda: (place / f"{rank}.json").write_text(json.dumps(notes)))
"""
"""Python runs this first: each process notes what it draws and writes, and the fourth step's checkpoint is copied."""


def in_two_processes(place: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """``python -m logpolar`` by torchrun, with what ``place`` has to say first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (place / "sitecustomize.py").write_text(NOTING)
    paths = [str(place), *filter(None, [os.environ.get("PYTHONPATH")])]
    options = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, "-m", "logpolar", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
    )


@pytest.fixture(scope="module")
def output(place, tmp_path_factory):
    """Of a run in two processes: its folder ``whole``, the one to go on with ``half``, and what was noted."""
    output = tmp_path_factory.mktemp("two")
    done = in_two_processes(output, "train", place / "tiny.toml", "-o", output / "whole")
    assert done.returncode == 0, done.stderr
    assert f"wrote {output / 'whole' / 'tiny.safetensors'}" in done.stdout
    return output


class TestWorld:
    @pytest.fixture(autouse=True)
    def alone(self, monkeypatch):
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            monkeypatch.delenv(name, raising=False)

    def test_alone(self):
        world = World.from_environment()
        assert world == World(0, 1, 0)
        assert world.is_first

    def test_what_torchrun_says(self, monkeypatch):
        for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
            monkeypatch.setenv(name, value)
        world = World.from_environment()
        assert world == World(rank=5, size=8, local_rank=1)
        assert not world.is_first

    @pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
    def test_half_of_it_is_nothing(self, monkeypatch, name):
        monkeypatch.setenv(name, "3")
        assert World.from_environment() == World()

    def test_device(self, monkeypatch):
        monkeypatch.setattr(torch, "empty", lambda *_, device: None)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert World(1, 4, 3).device("auto") == torch.device("cuda:3")
        assert World(1, 4, 3).device("cuda") == torch.device("cuda:3")
        assert World().device("auto") == torch.device("cuda")
        assert World().device("cuda:1") == torch.device("cuda:1")
        assert World(1, 4, 3).device("cpu") == torch.device("cpu")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert World(1, 4, 3).device("auto") == World().device("auto") == torch.device("cpu")

    def test_device_that_cannot_be_used(self):
        with pytest.raises(LogpolarError, match=r"torch cannot use the device 'abacus' \(.*\); try cpu"):
            World().device("abacus")

    def test_alone_there_is_nothing_to_connect(self, monkeypatch):
        talked = []
        for name in ("init_process_group", "barrier"):
            monkeypatch.setattr(processes.distributed, name, lambda *_, name=name, **__: talked.append(name))
        with World().connected(torch.device("cpu")):
            World().wait()
        assert talked == []


class TestTwoProcesses:
    def test_both_draw_batches_of_their_own(self, output):
        first, second = (json.loads((output / f"{rank}.json").read_text())["drawn"] for rank in (0, 1))
        assert len(first) == len(second) == 6
        assert len({*first, *second}) == 12

    def test_only_the_first_validates_and_writes(self, output):
        first, second = (json.loads((output / f"{rank}.json").read_text()) for rank in (0, 1))
        assert (first["saved"], second["saved"]) == ([4, 6], [])
        assert [row["step"] for row in read_rows(output / "whole" / "validation.csv")] == ["3", "6"]
        assert [row["step"] for row in read_rows(output / "whole" / "log.csv")] == ["1", "2", "3", "4", "5", "6"]
        assert len(list((output / "whole").glob("*.safetensors"))) == 1

    def test_both_shape_the_model(self, output, place, tiny, tmp_path, quick):
        """It is neither that of the first process alone, nor is it forgotten on the card."""
        train(tiny(), tmp_path / "alone")
        two, one = (state_of(folder)["trainer"]["network"] for folder in (output / "whole", tmp_path / "alone"))
        assert two.keys() == one.keys()
        assert max(float((two[name] - one[name]).abs().max()) for name in one) > 1e-3
        assert load_model(output / "whole" / "tiny.safetensors").card.training["hardware"] == "2 x CPU"

    def test_the_command_goes_on_to_the_same_model(self, output, place, tmp_path):
        folder = shutil.copytree(output / "half", tmp_path / "half")
        assert state_of(folder)["step"] == 4
        done = in_two_processes(tmp_path, "train", place / "tiny.toml", "-o", folder)
        assert done.returncode == 0, done.stderr
        assert_same_training(folder, output / "whole")
        drawn = [json.loads((each / "1.json").read_text())["drawn"] for each in (output, tmp_path)]
        assert drawn[1] == drawn[0][4:]
        whole, continued = (load_model(each / "tiny.safetensors") for each in (output / "whole", folder))
        assert all((whole.weights[name] == continued.weights[name]).all() for name in whole.weights)
        assert {each.name for each in folder.iterdir()} >= {"tiny.safetensors", "tiny.onnx", "card.json", "log.csv"}
