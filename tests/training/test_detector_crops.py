from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

from logpolar.geometry.cameras import Camera
from logpolar.images import to_bytes
from logpolar.training.detector_crops import CropSampler, change_crops, swap
from logpolar.training.detector_options import CropOptions
from logpolar.training.detector_sources import from_cameras, from_homographies, make_data

CPU = torch.device("cpu")
HOMOGRAPHY = np.array([[0.7, 0.15, 12], [-0.1, 0.8, 25], [0, 2e-4, 1]])
OPTIONS = CropOptions(pairs=4, side=64, max_zoom=2)


@pytest.fixture(scope="module")
def planar(gray):
    """A photo and its image under a homography, with an altered copy of each."""
    first = to_bytes(cv2.resize(gray, (256, 256), interpolation=cv2.INTER_AREA))
    second = cv2.warpPerspective(first, HOMOGRAPHY, (256, 256))
    return make_data([from_homographies([(first, second, HOMOGRAPHY, 0)])], CPU, copies=1)


def draw(data, options=OPTIONS, seed=0):
    return CropSampler(data, [1] * len(data.images), options).draw(torch.Generator().manual_seed(seed))


def values_at(images, xy):
    side = images.shape[-1] - 1
    grid = (2 * xy / side - 1)[:, None]
    return torch.nn.functional.grid_sample(images[:, None], grid, align_corners=True)[:, 0, 0]


def test_crops_show_the_same_where_pixels_are_sent(planar):
    crops = draw(planar, CropOptions(pairs=4, side=64, max_zoom=2, altered=0))
    images = crops.render()
    xy = torch.rand(8, 400, 2, generator=torch.Generator().manual_seed(1)) * 63
    sent, known = crops.send(xy)
    here, there = values_at(images, xy), values_at(swap(images), sent)
    assert known.float().mean() > 0.2
    for row in range(8):
        if known[row].sum() > 30:
            assert np.corrcoef(here[row, known[row]], there[row, known[row]])[0, 1] > 0.9


def test_pixels_return_where_they_came_from(planar):
    crops = draw(planar)
    xy = torch.rand(8, 100, 2) * 63
    sent, known = crops.send(xy)
    back, _ = crops.send(swap(sent))
    assert (swap(back) - xy).norm(dim=-1)[known].max() < 0.01


def test_the_rendered_crop_is_the_image_resampled(planar):
    crops = draw(planar)
    pixel = crops.in_image(torch.tensor([[[10.0, 20.0]]]).expand(8, -1, -1))[:, 0]
    assert torch.allclose(pixel, crops.offset + crops.scale[:, None] * torch.tensor([10.0, 20.0]))


def test_altered_copies_are_drawn_for_second_crops_only(planar):
    crops = draw(planar, CropOptions(pairs=8, side=64, altered=1))
    first, second = crops.image.chunk(2)
    assert first.tolist() == [0] * 8
    assert second.tolist() == [3] * 8


def test_the_same_seed_draws_the_same(planar):
    assert torch.equal(draw(planar, seed=4).offset, draw(planar, seed=4).offset)
    assert not torch.equal(draw(planar, seed=4).offset, draw(planar, seed=5).offset)


@pytest.fixture(scope="module")
def solid():
    """Two views of a plane at depth 4, the second with a nearer wall over its right half."""
    matrix = np.array([[100, 0, 49.5], [0, 100, 39.5], [0, 0, 1.0]])
    cameras = [Camera(100, 80, matrix, np.eye(3), np.array([x, 0.0, 0.0])) for x in (0.0, -0.4)]
    depths = [np.full((80, 100), 4, np.float32), np.full((80, 100), 4, np.float32)]
    depths[1][:, 50:] = 2
    depths[0][:10] = 0  # unknown
    images = [np.zeros((80, 100), np.uint8)] * 2
    return make_data([from_cameras(images, depths, cameras, np.array([[0, 1]]), [0])], CPU)


def test_depth_sends_pixels_and_hides_them(solid):
    sampler = CropSampler(solid, [1], CropOptions(pairs=1, side=80, altered=0))
    crops = sampler.draw(torch.Generator().manual_seed(0))
    # Positions of the image (40, 40), (80, 40) and (40, 4) in the first crop; both crops are then placed at will.
    place = torch.tensor([[40.0, 40.0], [80.0, 40.0], [40.0, 4.0]])
    whole = type(crops)(
        solid,
        200,
        torch.tensor([0, 1]),
        torch.ones(2),
        torch.zeros(2, 2),
        crops.transfer,
        crops.has_depth,
        crops.angle,
        torch.ones(2, dtype=torch.bool),
    )
    sent, known = whole.send(place.expand(2, -1, -1))
    assert sent[0, 0].tolist() == pytest.approx([30, 40], abs=0.05)  # 100 * 0.4 / 4 pixels to the left
    assert known[0].tolist() == [True, False, False]  # seen, behind the wall, without depth
    assert sent[1, 0].tolist() == pytest.approx([50, 40], abs=0.05)


def test_changes_of_light_keep_the_range():
    images = torch.rand(4, 16, 16)
    changed = change_crops(images, 0.3, torch.Generator().manual_seed(0))
    assert changed.shape == images.shape
    assert 0 <= changed.min() <= changed.max() <= 1
    assert not torch.allclose(changed, images, atol=0.05)
