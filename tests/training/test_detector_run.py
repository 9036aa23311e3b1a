from __future__ import annotations

import _thread
import json

import cv2
import numpy as np
import pytest
import torch

from logpolar.datasets.homographies import build_photos
from logpolar.datasets.options import PairRules, PhotoOptions, SceneOptions
from logpolar.datasets.scenes import build_scene
from logpolar.errors import LogpolarError, StorageError
from logpolar.models.detectors import NetworkDetector, check_image
from logpolar.models.files import load_detector
from logpolar.storage.atomic_io import Lock
from logpolar.training import detector_run
from logpolar.training.detector_config import read_detector_config
from logpolar.training.detector_data import load_source
from logpolar.training.detector_loop import DetectorTrainer
from logpolar.training.detector_options import DetectorSource
from logpolar.training.detector_run import train_detector
from logpolar.training.stopping import Stopped
from synthetic_world import write_workspace

TEXT = """
name = "small"
[[data]]
kind = "aligned"
files = ["pairs.txt"]
[network]
channels = [4, 4, 4]
blocks = [0, 0, 0]
window = 4
[crops]
pairs = 1
side = 64
altered = 0.0
[objectives]
keypoints = 12
[optimisation]
steps = 2
[run]
device = "cpu"
checkpoint_every = 1
validation_pairs = 1
tensorboard = false
"""


@pytest.fixture(scope="module")
def folder(photo, tmp_path_factory):
    folder = tmp_path_factory.mktemp("aligned")
    for number in range(4):
        view = cv2.resize(photo[number * 40 :, number * 30 :], (120, 100), interpolation=cv2.INTER_AREA)
        cv2.imwrite(str(folder / f"{number}a.png"), view)
        cv2.imwrite(str(folder / f"{number}b.png"), 255 - view)
    (folder / "pairs.txt").write_text("".join(f"{number}a.png {number}b.png\n" for number in range(4)))
    (folder / "config.toml").write_text(TEXT)
    return folder


def test_a_run_makes_a_detector_and_resumes(folder, tmp_path, monkeypatch, gray):
    monkeypatch.setattr(detector_run, "_COUNTS", (20,))
    monkeypatch.setattr(detector_run, "_SIDE", 128)
    config = read_detector_config(folder / "config.toml")
    report = train_detector(config, tmp_path)
    assert set(report.scores) == {f"aligned, zoom {zoom}, 20 keypoints" for zoom in (1, 3)} == set(report.sift)
    card = load_detector(report.model).card
    assert card.training["steps"] == 2
    assert "SIFT" in card.figures["aligned, zoom 1, 20 keypoints"]
    assert json.loads((tmp_path / "card.json").read_text())["name"] == "small"
    assert np.isfinite(NetworkDetector(report.model)(gray[:64, :64]).table).all()
    before = report.model.read_bytes()
    assert train_detector(config, tmp_path).model.read_bytes() == before  # all steps were done
    other = read_detector_config(folder / "config.toml", ["objectives.cost=0.3"])
    with pytest.raises(LogpolarError, match="another config"):
        train_detector(other, tmp_path)


def test_scenes_and_photos(posed_world, photo, tmp_path):
    write_workspace(posed_world, tmp_path / "scene")
    scenes = load_source(DetectorSource("scenes", (str(tmp_path / "scene"),)), "train")
    assert scenes.pairs.has_depth
    assert len(scenes) > 0
    assert all(depth is not None and (depth > 0).any() for depth in scenes.inverse_depths)
    for name in "abc":
        cv2.imwrite(str(tmp_path / f"{name}.png"), cv2.resize(photo, (200, 200)))
    named = DetectorSource("photos", (str(tmp_path / "*.png"),))
    photos = load_source(named, "train", votes=True)
    assert not photos.pairs.has_depth
    assert len(photos.images) == 2 * len(photos) == len(photos.votes)
    assert all(len(votes) for votes in photos.votes)
    assert not any(len(votes) for votes in load_source(named, "train").votes)


def test_files_of_scenes_show_the_same_surfaces_as_their_workspaces(posed_world, tmp_path):
    write_workspace(posed_world, tmp_path / "scene")
    build_scene(tmp_path / "scene", tmp_path / "scene.h5", SceneOptions(pairs=PairRules(min_overlap=0.1)))
    folder = load_source(DetectorSource("scenes", (str(tmp_path / "scene"),)), "train")
    stored = load_source(DetectorSource("scenes", (str(tmp_path / "scene.h5"),)), "train")
    assert stored.pairs.has_depth
    assert 0 < len(stored) == len(folder)
    ratios = []
    for image, depth in zip(stored.images, stored.inverse_depths, strict=True):
        unlike = [np.abs(image.astype(np.float32) - each).mean() for each in folder.images]
        assert min(unlike) < 3  # JPEG
        other = folder.inverse_depths[int(np.argmin(unlike))].astype(np.float32)
        mine = cv2.resize(depth.astype(np.float32), other.shape[::-1], interpolation=cv2.INTER_NEAREST)
        known = (mine > 0) & (other > 0)
        ratios.append(mine[known] / other[known])
    ratio = np.concatenate(ratios)  # the two units of depth are arbitrary
    assert len(ratio) > 1000
    assert np.quantile(np.abs(ratio / np.median(ratio) - 1), 0.9) < 0.03


def test_files_without_cameras_are_refused(photo, tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), cv2.resize(photo, (200, 200)))
    build_photos({"a.png": tmp_path / "a.png"}, tmp_path / "photos.h5", PhotoOptions())
    with pytest.raises(LogpolarError, match="has no cameras"):
        load_source(DetectorSource("scenes", (str(tmp_path / "photos.h5"),)), "train")


def test_a_run_starts_from_a_detector(folder, tmp_path, monkeypatch):
    """With a learning rate of 0 nothing is lost; a variant and another network are refused."""
    monkeypatch.setattr(detector_run, "_COUNTS", (20,))
    monkeypatch.setattr(detector_run, "_SIDE", 128)
    (folder / "shipped.toml").write_text('init = "logpolar"\n' + TEXT.replace("[4, 4, 4]", "[16, 48, 64]"))
    changes = ["network.blocks=[1, 2, 2]", "network.window=16", "optimisation.learning_rate=0.0"]
    config = read_detector_config(folder / "shipped.toml", changes)
    report = train_detector(config, tmp_path)
    start, made = load_detector("logpolar"), load_detector(report.model)
    assert made.card.training["init"] == {"name": "logpolar", "hash": start.digest}
    scores = [NetworkDetector(model).network_scores(check_image()) for model in (start, made)]
    assert np.corrcoef(scores[0].ravel(), scores[1].ravel())[0, 1] > 0.95
    with pytest.raises(LogpolarError, match="is another one"):
        train_detector(read_detector_config(folder / "shipped.toml"), tmp_path / "other")
    (folder / "int8.toml").write_text('init = "logpolar-int8"\n' + TEXT)
    with pytest.raises(LogpolarError, match="is a variant"):
        train_detector(read_detector_config(folder / "int8.toml"), tmp_path / "int8")


def test_sources_without_pairs_are_refused(tmp_path, posed_world):
    write_workspace(posed_world, tmp_path / "scene")
    (tmp_path / "scene" / "sparse" / "points3D.txt").write_text("")
    with pytest.raises(LogpolarError):
        load_source(DetectorSource("scenes", (str(tmp_path / "scene"),)), "train")


def test_ctrl_c_keeps_the_steps_that_are_done(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(detector_run, "_COUNTS", (20,))
    monkeypatch.setattr(detector_run, "_SIDE", 128)
    config = read_detector_config(folder / "config.toml", ["run.checkpoint_every=100"])
    original = DetectorTrainer.advance

    def press(self):
        _thread.interrupt_main()
        return original(self)

    (tmp_path / "small.safetensors").write_bytes(b"the only copy")
    with monkeypatch.context() as context:
        context.setattr(DetectorTrainer, "advance", press)
        with pytest.raises(Stopped, match="stopped after step 1; rerun"):
            train_detector(config, tmp_path, overwrite=True)
    assert (tmp_path / "small.safetensors").read_bytes() == b"the only copy"
    with pytest.raises(StorageError, match="another process is writing"), Lock(tmp_path / "checkpoint.pt"):
        train_detector(config, tmp_path)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert state["step"] == 1
    train_detector(config, tmp_path)
    assert [line.split(",")[0] for line in (tmp_path / "log.csv").read_text().splitlines()] == ["step", "1", "2"]
    torch.save({**state, "trainer": {}}, tmp_path / "checkpoint.pt")
    with pytest.raises(LogpolarError, match="this checkpoint is damaged"):
        train_detector(config, tmp_path)
