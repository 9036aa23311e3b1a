from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest

from logpolar.errors import LogpolarError
from logpolar.evaluation.posed_scenes import read_scene
from logpolar.evaluation.zoomed_scenes import TRUE_ZOOM_SIZE, fit_image, zoom_scene


@pytest.fixture(scope="module")
def scene(castle):
    return read_scene(castle[0], min_shared=1)


def pixel_of(image, points):
    """A Gaussian blob around each point of the scene would be seen here."""
    return image.camera.see(points)[0]


def test_no_zoom_is_the_scene_itself(scene):
    assert zoom_scene(scene) is scene


def test_second_images_are_reduced_with_their_cameras(scene, castle):
    zoomed = zoom_scene(scene, zoom=2)
    assert zoomed.transformed and len(zoomed.pairs) == len(scene.pairs)
    for (first, second), (same, copy) in zip(scene.pairs, zoomed.pairs, strict=True):
        assert first == same
        image = zoomed.images[copy]
        assert image.read().shape == (60, 80) == (image.camera.height, image.camera.width)
        # Pixel centres at integers: two pixels become one between them.
        expected = (pixel_of(scene.images[second], castle[1].xyz) - 0.5) / 2
        np.testing.assert_allclose(pixel_of(image, castle[1].xyz), expected, atol=1e-9)


class TestTrueZoom:
    def test_crop_is_where_its_camera_says(self, scene, castle):
        """Content of the enlarged crop against the photo, looked up at positions that the two cameras give."""
        zoomed = zoom_scene(scene, true_zoom=2, min_shared=1)
        assert zoomed.enlarged == 2
        copy = zoomed.pairs[0][1]
        image = zoomed.images[copy]
        whole = next(each for each in scene.images if image.name.startswith(each.name))
        assert image.read().shape == whole.read().shape
        here, there = pixel_of(image, castle[1].xyz), pixel_of(whole, castle[1].xyz)
        inside = ((here > 4) & (here < (image.camera.width - 5, image.camera.height - 5))).all(axis=1)
        assert inside.sum() > 20
        seen = [
            cv2.remap(cv2.GaussianBlur(each.read(), (0, 0), sigma), xy[inside].astype(np.float32), None, 1).ravel()
            for each, xy, sigma in ((image, here, 4), (whole, there, 2))
        ]
        assert np.abs(np.subtract(*(each.astype(float) for each in seen))).mean() < 1.5
        assert np.ptp(seen[0]) > 40

    def test_pairs_share_points_inside_the_crop(self, scene):
        every = zoom_scene(scene, true_zoom=3, min_shared=1)
        shared = [
            len(set(every.images[i].observed.points) & set(every.images[j].observed.points)) for i, j in every.pairs
        ]
        least = sorted(shared)[5]
        zoomed = zoom_scene(scene, true_zoom=3, min_shared=least)
        assert zoomed.pairs == [pair for pair, count in zip(every.pairs, shared, strict=True) if count >= least]
        assert 0 < len(zoomed.pairs) < len(every.pairs)
        for _, second in zoomed.pairs:
            image = zoomed.images[second]
            assert (image.observed.xy >= -0.5).all()
            assert (image.observed.xy <= (image.camera.width - 0.5, image.camera.height - 0.5)).all()
        with pytest.raises(LogpolarError, match="no two images share 5000 points after a true zoom of 3"):
            zoom_scene(scene, true_zoom=3, min_shared=5000)

    def test_large_photos_keep_full_resolution(self, scene):
        """A photo of 3 * 1024 px: the first image is reduced, the crop of the second has all its pixels."""
        photo = np.zeros((2048, 3 * TRUE_ZOOM_SIZE), np.uint8)
        photo[1000:1003, 1500:1503] = 255
        large = [replace(fit_image(each, None), read=lambda: photo, observed=None) for each in scene.images[:2]]
        large = [replace(each, camera=each.camera.resized(3 * TRUE_ZOOM_SIZE, 2048)) for each in large]
        zoomed = zoom_scene(replace(scene, images=large, pairs=[(0, 1)]), true_zoom=3)
        first, second = (zoomed.images[row].read() for row in zoomed.pairs[0])
        assert zoomed.enlarged == 1
        assert first.shape == second.shape == (683, 1024)
        assert (second > 250).sum() == 9  # the spot as it is in the photo
        assert (first > 100).sum() <= 4  # a third as wide

    def test_without_a_model_the_middle(self, scene):
        bare = replace(scene, images=[replace(image, observed=None) for image in scene.images])
        zoomed = zoom_scene(bare, true_zoom=2)
        whole, part = bare.images[scene.pairs[0][1]].camera, zoomed.images[zoomed.pairs[0][1]].camera
        np.testing.assert_allclose(part.matrix[:2, 2] + 0.5, 2 * (whole.matrix[:2, 2] + 0.5 - np.array([40, 30])))


def test_one_zoom_at_a_time(scene):
    with pytest.raises(ValueError, match="choose one"):
        zoom_scene(scene, zoom=2, true_zoom=2)
