from __future__ import annotations

import cv2
import numpy as np
import pytest

from logpolar.errors import StorageError
from logpolar.evaluation.poses.scenes import PosedScene, read_scene
from logpolar.evaluation.sfm.options import StructureTest
from logpolar.evaluation.sfm.photos import choose_photos, write_photos


@pytest.fixture(scope="module")
def scene(castle):
    return read_scene(castle[0], min_shared=1)


def test_every_second_photo_is_smaller(scene, posed_world, tmp_path):
    photos = choose_photos(scene, StructureTest(shrink=2))
    write_photos(photos, tmp_path, 2)
    assert photos.names == [f"view{number}.png.png" for number in range(6)]
    for number, name in enumerate(photos.names):
        written = cv2.imread(str(tmp_path / name), cv2.IMREAD_UNCHANGED)
        truth = posed_world.views[number][0]
        if number % 2:
            assert written.shape == (60, 80)
            mean = truth.reshape(60, 2, 80, 2).mean(axis=(1, 3))
            assert np.abs(written - mean).max() <= 0.51
        else:
            np.testing.assert_array_equal(written, truth)
        np.testing.assert_allclose(photos.cameras[name].centre, scene.images[number].camera.centre)


def test_drawn_by_the_seed(scene):
    chosen = [tuple(choose_photos(scene, StructureTest(images=3, seed=seed)).names) for seed in (0, 0, 1, 2, 3)]
    assert chosen[0] == chosen[1]
    assert len(set(chosen)) > 1
    assert all(list(names) == sorted(names) and len(set(names)) == 3 for names in chosen)
    assert len(choose_photos(scene, StructureTest(images=99)).names) == 6


def test_identity_tells_photos_apart(scene):
    found = [choose_photos(scene, test).identity(test.shrink) for test in (StructureTest(), StructureTest(shrink=3))]
    found += [choose_photos(scene, StructureTest(images=4)).identity(1)]
    assert len({each["photos"] for each in found}) == 3


def test_one_image(scene):
    with pytest.raises(StorageError, match="two images or more"):
        choose_photos(PosedScene("small", scene.images[:1], []), StructureTest())
    with pytest.raises(StorageError, match="two images or more"):
        choose_photos(scene, StructureTest(images=1))
