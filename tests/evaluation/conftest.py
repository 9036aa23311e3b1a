from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpatches_folders import write_sequence
from logpolar.evaluation.posed_scenes import PosedImage, PosedScene
from logpolar.evaluation.poses import DescribedImage, PreparedScene
from logpolar.geometry.cameras import Camera
from logpolar.keypoints import Keypoints


@pytest.fixture(scope="session")
def sequences(photo, tmp_path_factory):
    path = tmp_path_factory.mktemp("hpatches")
    write_sequence(path / "v_one", photo)
    write_sequence(path / "v_two", photo, corner=(220, 200))
    write_sequence(path / "i_one", photo, suffix=".png", ending="\r\n", name="H_1_{}.txt")
    (path / "notes").mkdir()
    return path


@pytest.fixture(scope="session")
def many_sequences(photo, tmp_path_factory):
    path = tmp_path_factory.mktemp("many")
    for name in ("v_a", "v_b", "v_c", "i_a", "i_b", "v_artisans", "i_dc"):
        write_sequence(path / name, photo, (1, 2))
    return path


@pytest.fixture(scope="session")
def castle_points(posed_world):
    return posed_world.sparse_points(np.random.default_rng(0), 200)


@pytest.fixture(scope="session")
def castle_scene(posed_world) -> PosedScene:
    """Camera 5 sees nothing that others do, by what the pairs say."""
    cameras = [Camera(c.width, c.height, c.intrinsics, c.rotation, c.translation) for c in posed_world.cameras]
    views = [image for image, _ in posed_world.views]
    images = [PosedImage(f"{n}.png", camera, lambda n=n: views[n]) for n, camera in enumerate(cameras)]
    return PosedScene("castle", images, [(i, j) for i in range(5) for j in range(i + 1, 5)])


@pytest.fixture(scope="session")
def prepared(castle_scene, castle_points) -> PreparedScene:
    """Keypoints where the points of the world are, to the last bits of a float32."""
    keypoints = {n: Keypoints.from_points(castle_points.xy[castle_points.seen[:, n], n]) for n in range(5)}
    return PreparedScene(castle_scene, castle_scene.pairs, {5: [(0, 1, 2, 3, 4)]}, {}, keypoints)


@pytest.fixture(scope="session")
def true_images(castle_scene, castle_points, prepared) -> dict[int, DescribedImage]:
    """Each point of the world has a descriptor of its own."""
    own = np.random.default_rng(1).normal(size=(len(castle_points.xyz), 64)).astype(np.float32)
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    return {
        n: DescribedImage(castle_scene.images[n].camera, keypoints, own[castle_points.seen[:, n]])
        for n, keypoints in prepared.keypoints.items()
    }


@pytest.fixture(scope="session")
def wrong_images(true_images) -> dict[int, DescribedImage]:
    random = np.random.default_rng(2)
    return {n: replace(image, descriptors=random.permutation(image.descriptors)) for n, image in true_images.items()}
