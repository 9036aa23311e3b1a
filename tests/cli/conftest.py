from __future__ import annotations

import shutil
from pathlib import Path

import cv2
import pytest

from dataset_commands import PHOTOS, SCENE, run
from logpolar.evaluation import protocol
from synthetic_world import standard_world, write_workspace


@pytest.fixture(scope="session")
def places(tmp_path_factory, photo):
    """A folder with two workspaces of the same scene and three photos; not to be changed."""
    place = tmp_path_factory.mktemp("inputs")
    write_workspace(standard_world(cameras=4, width=96, height=72), place / "one")
    shutil.copytree(place / "one", place / "two")
    (place / "photos" / "deep").mkdir(parents=True)
    for number, name in enumerate(("a.png", "b.jpg", "deep/c.png")):
        cv2.imwrite(str(place / "photos" / name), photo[60 * number : 60 * number + 130, 100:260])
    return place


@pytest.fixture
def workspace(places, tmp_path):
    """A copy of one that may be spoilt."""
    return Path(shutil.copytree(places / "one", tmp_path / "inputs" / "scene"))


@pytest.fixture(scope="session")
def scene_file(places, tmp_path_factory):
    """An undisturbed run; not to be changed."""
    output = tmp_path_factory.mktemp("undisturbed") / "scene.h5"
    assert run("colmap", places / "one", "-o", output, *SCENE).exit_code == 0
    return output


@pytest.fixture(scope="session")
def photo_file(places, tmp_path_factory):
    """An undisturbed run; not to be changed."""
    output = tmp_path_factory.mktemp("undisturbed") / "photos.h5"
    assert run("homographies", places / "photos", "-o", output, *PHOTOS).exit_code == 0
    return output


@pytest.fixture
def without_figures(monkeypatch):
    """Evaluations leave out their figures, which take longer than the rest; for tests that do not look at them."""
    monkeypatch.setattr(protocol, "draw_figures", lambda *arguments: ([], ""))
