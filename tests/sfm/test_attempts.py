"""Where attempts of the mapper start from, and which one is kept."""

from __future__ import annotations

from types import SimpleNamespace

import cv2  # noqa: F401 - before pycolmap, whose zlib breaks OpenCV's PNG writer otherwise
import pycolmap
import pytest

from logpolar.sfm import attempts
from logpolar.sfm.attempts import map_best
from logpolar.sfm.mapper import MapperOptions, NoModelError


def cameras_in(database):
    with pycolmap.Database.open(str(database)) as file:
        return [list(camera.params) for camera in file.read_all_cameras()]


@pytest.fixture
def database(tmp_path):
    """Two cameras, of which one knows its focal length."""
    path = tmp_path / "d.db"
    with pycolmap.Database.open(str(path)) as file:
        for known in (False, True):
            camera = pycolmap.Camera(model=pycolmap.CameraModelId.SIMPLE_RADIAL, width=1000, height=800)
            camera.params = [1200, 500, 400, 0]
            camera.has_prior_focal_length = known
            file.write_camera(camera)
    return path


@pytest.mark.parametrize("fixed", [False, True])
def test_attempts_differ_in_unknown_focal_lengths(database, tmp_path, monkeypatch, fixed):
    seen, before = [], cameras_in(database)

    def run(path, photos, place, options, on_image):
        seen.append([parameters[0] for parameters in cameras_in(path)])
        assert cameras_in(database) == before  # a kill leaves the project's own as it was
        raise NoModelError("none")

    monkeypatch.setattr(attempts, "run_mapper", run)
    with pytest.raises(NoModelError):
        map_best(database, tmp_path, tmp_path, MapperOptions(fixed_intrinsics=fixed))
    guessed, wide = [1200.0, 1200.0], [750.0, 1200.0]
    assert seen == ([guessed] * 4 if fixed else [guessed, wide, guessed, wide])
    assert cameras_in(database) == before


def test_a_tiny_model_that_explains_itself_is_not_enough(database, tmp_path, monkeypatch):
    """Of ten linked photos it has none; the attempt after it explains more."""
    found = iter([(9, 10), (30, 100), (20, 100), (10, 100)])
    names = {}

    def run(path, photos, place, options, on_image):
        names[options.seed] = {0: pycolmap.Reconstruction()}
        return names[options.seed]

    monkeypatch.setattr(attempts, "run_mapper", run)
    monkeypatch.setattr(attempts, "linked_photos", lambda database: 10)
    monkeypatch.setattr(attempts, "explained_matches", lambda models, database, astray: next(found))
    output = tmp_path / "models"
    output.mkdir()
    assert map_best(database, tmp_path, output, MapperOptions()) is names[1]
    assert list(output.iterdir()) == []


@pytest.mark.parametrize(("linked", "fixed", "seeds"), [(30, False, [0, 1]), (31, False, [0]), (30, True, [0])])
def test_few_photos_of_unknown_lenses_start_from_both_focal_lengths(
    database, tmp_path, monkeypatch, linked, fixed, seeds
):
    """The first explains most of its matches; the second explains more, and is kept."""
    made, found = [], iter([(78, 100), (93, 100)])
    images = {number: SimpleNamespace(name=f"{number}.jpg") for number in range(linked)}

    def run(path, photos, place, options, on_image):
        made.append(options.seed)
        return {options.seed: SimpleNamespace(images=images, reg_image_ids=lambda: images)}

    monkeypatch.setattr(attempts, "run_mapper", run)
    monkeypatch.setattr(attempts, "runaways", lambda model: set())
    monkeypatch.setattr(attempts, "linked_photos", lambda database: linked)
    monkeypatch.setattr(attempts, "explained_matches", lambda models, database, astray: next(found))
    models = map_best(database, tmp_path, tmp_path, MapperOptions(fixed_intrinsics=fixed))
    assert made == seeds
    assert list(models) == seeds[-1:]
