"""Images that views are made of: where they are seen from, and how deep."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

from logpolar.training.matcher_sources import SourceFile, SourceImage, Sources, read_sources

PLANE = np.concatenate([np.eye(3), np.zeros((3, 1))], axis=1)


@pytest.fixture(scope="module")
def sources() -> Sources:
    """A plane, and an image that shows a surface at depth 4 on its left and nothing known on its right."""
    surface = np.full((30, 40), 0.25, np.float32)
    surface[:, 20:] = 0
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80), np.uint8)
    images = [SourceImage(pixels, PLANE), SourceImage(pixels, 2 * PLANE, surface)]
    return Sources(images, torch.device("cpu"), copies=1)


def test_depths_are_known_on_planes_and_surfaces_and_negative_off_the_image(sources):
    places = torch.tensor([[20.0, 30.0], [60.0, 30.0], [90.0, 30.0], [20.0, -1.0]]).expand(2, -1, -1)
    depth = sources.depth_at(torch.tensor([0, 1]), places)
    np.testing.assert_array_equal(depth, [[1, 1, -1, -1], [4, np.nan, -1, -1]])


def test_altered_copies_follow_the_originals(sources):
    assert (len(sources), len(sources.pyramids)) == (2, 4)
    assert sources.pyramids.sizes(torch.arange(4)).tolist() == [[80, 60]] * 4


def test_photos_are_downscaled_with_their_projection(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((60, 80), np.uint8))
    homography = (1.0, 0, 5, 0, 1, 0, 0, 0, 1)
    file = SourceFile(tmp_path / "a.png", homography=homography)
    sources = read_sources([file], 40, torch.device("cpu"))
    assert sources.pyramids.sizes(torch.tensor([0])).tolist() == [[40, 30]]
    seen = sources.projections[0] @ torch.tensor([10.5, 20.5, 1, 1]).double()  # 5 pixels to the right, then halved
    assert (seen[:2] / seen[2]).tolist() == [7.5, 10.0]
