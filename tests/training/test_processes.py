from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from logpolar import load_model
from logpolar.errors import LogpolarError
from logpolar.training import processes
from logpolar.training.processes import World
from logpolar.training.run import train
from training_runs import assert_same_training, read_rows, state_of

TRAIN_TWICE = """
import atexit, json, os, pathlib, runpy, shutil, sys
from logpolar.models import export
from logpolar.training import run
from logpolar.training.batches import BatchSampler

config, place, port = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
export.export_graph = run.network_file = lambda _: b"no graph"
draw, save = BatchSampler.draw, run.save_checkpoint
notes = {folder: {"drawn": [], "saved": []} for folder in ("whole", "half")}
atexit.register(lambda: (place / f"{os.environ['RANK']}.json").write_text(json.dumps(notes)))

def noting_draw(self, generator):
    batch = draw(self, generator)
    notes[folder]["drawn"].append(float(batch.first.double().sum()))
    return batch

def noting_save(path, state):
    save(path, state)
    notes[folder]["saved"].append(state["step"])
    if (folder, state["step"]) == ("whole", 4):
        (place / "half").mkdir()
        shutil.copy(path, place / "half")

BatchSampler.draw, run.save_checkpoint = noting_draw, noting_save
for folder in notes:
    sys.argv = ["logpolar", "train", config, "-o", str(place / folder)]
    try:
        runpy.run_module("logpolar", run_name="__main__", alter_sys=True)
    except SystemExit as done:
        assert not done.code, done.code
    # The processes meet anew: torchrun's store still has where they met before.
    os.environ.update(MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE="False")
"""
"""``python -m logpolar train`` to the end, then from a copy of the fourth step's checkpoint; notes what it draws and
writes. Most of the time is that of starting processes, so that both runs are done by the same."""


def free_ports(count: int) -> list[str]:
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [str(each.getsockname()[1]) for each in sockets]


@pytest.fixture(scope="module")
def output(place, tmp_path_factory):
    """Of runs in two processes: the folders ``whole`` and ``half``, which began at step 4, and what was noted."""
    output = tmp_path_factory.mktemp("two")
    (output / "twice.py").write_text(TRAIN_TWICE)
    first, second = free_ports(2)
    options = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", first]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options]
        + [str(each) for each in (output / "twice.py", place / "tiny.toml", output, second)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    for folder in ("whole", "half"):
        assert f"wrote {output / folder / 'tiny.safetensors'}" in done.stdout
    return output


def noted(output: Path, folder: str, kind: str) -> list[list[float]]:
    """By the first and by the second process."""
    return [json.loads((output / f"{rank}.json").read_text())[folder][kind] for rank in (0, 1)]


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
        with pytest.raises(LogpolarError, match=r"the device 'meta' \(its tensors have no values\)"):
            World().device("meta")
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
        first, second = noted(output, "whole", "drawn")
        assert len(first) == len(second) == 6
        assert len({*first, *second}) == 12

    def test_only_the_first_validates_and_writes(self, output):
        assert noted(output, "whole", "saved") == [[3, 3, 4, 6, 6], []]  # before and after validation
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

    def test_the_command_goes_on_to_the_same_model(self, output):
        assert noted(output, "half", "saved") == [[6, 6], []]
        assert noted(output, "half", "drawn") == [drawn[4:] for drawn in noted(output, "whole", "drawn")]
        folder = output / "half"
        assert_same_training(folder, output / "whole")
        whole, continued = (load_model(each / "tiny.safetensors") for each in (output / "whole", folder))
        assert all((whole.weights[name] == continued.weights[name]).all() for name in whole.weights)
        assert {each.name for each in folder.iterdir()} >= {"tiny.safetensors", "tiny.onnx", "card.json", "log.csv"}
