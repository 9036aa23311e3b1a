from __future__ import annotations

import shutil
from importlib import resources

import cv2
import numpy as np
import pytest

from dataset_files import make_image, make_pair, write
from logpolar.errors import ImageError
from logpolar.evaluation.variants import calibration_images, measure_variant
from logpolar.models import load_model

VARIANT = "logpolar-96-small-int8"


@pytest.fixture
def scene(tmp_path):
    """A correspondence file of three images, one of them to test on."""
    images = [make_image(f"{seed}.png", seed=seed, split="test" if seed == 2 else "train") for seed in range(3)]
    write(tmp_path / "scene.h5", images, [make_pair(*images[:2])])
    return tmp_path / "scene.h5"


class TestCalibrationImages:
    def images(self, *sources, max_size=None):
        return list(calibration_images([str(each) for each in sources], max_size, np.random.default_rng(0)))

    def test_only_the_train_split_of_a_scene(self, scene):
        found = self.images(scene)
        assert sorted(gray.shape for gray, _ in found) == [(30, 40), (31, 40)]
        assert all(len(keypoints) == 20 for _, keypoints in found)

    def test_photos_beside_scenes(self, scene, photo, tmp_path):
        (tmp_path / "photos").mkdir()
        cv2.imwrite(str(tmp_path / "photos" / "a.png"), photo)
        found = self.images(tmp_path / "photos", scene, max_size=200)
        assert len(found) == 3
        assert found[-1][0].shape == (200, 200)
        assert len(found[-1][1]) > 50

    def test_a_photo_that_is_not_there(self, tmp_path):
        with pytest.raises(ImageError, match="no such file"):
            self.images(tmp_path / "none.png")


def test_scores_go_onto_the_card(scene, tmp_path):
    path = tmp_path / "mine.safetensors"
    shutil.copy(str(resources.files("logpolar.models") / "weights" / f"{VARIANT}.safetensors"), path)
    before = load_model(path)
    scores = measure_variant(path, [scene], None, 0, "my scenes")
    assert list(scores) == ["scene", "mean"]
    assert scores["mean"].correspondences == 7
    after = load_model(path)
    assert after.card.figures["my scenes"]["scene"] == scores["scene"].to_dict()
    assert before.card.figures.items() <= after.card.figures.items()
    np.testing.assert_array_equal(after.check, before.check)
    assert all(np.array_equal(values, after.weights[name]) for name, values in before.weights.items())
