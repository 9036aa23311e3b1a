"""Depth maps on a device: planes are read exactly, edges and what is unknown are not read at all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logpolar.training.depth_maps import DepthMaps

SIZES = torch.tensor([[80, 40], [10, 10], [5, 5]])
"""Width and height of the images: one with a map of a quarter of its size, one with holes and edges, one without."""


@pytest.fixture(scope="module")
def maps() -> DepthMaps:
    x, y = np.meshgrid(np.arange(20), np.arange(10))
    plane = (0.2 + 0.001 * x + 0.002 * y).astype(np.float32)
    holed = np.full((10, 10), 0.5, np.float32)
    holed[5, 5], holed[:, 8:] = 0, 1.0
    return DepthMaps([plane, holed, np.zeros((0, 0), np.float32)], torch.device("cpu"))


def test_a_plane_is_exact_at_any_resolution(maps):
    places = np.array([[10.3, 7.7], [40.0, 20.0]])
    columns, rows = ((places + 0.5) / 4 - 0.5).T
    found = maps.on_surface(torch.tensor([0]), torch.tensor(places).float()[None], SIZES[:1])[0]
    np.testing.assert_allclose(found, 0.2 + 0.001 * columns + 0.002 * rows, rtol=1e-5)


def test_holes_edges_and_what_is_outside_are_unknown(maps):
    places = torch.tensor([[5.2, 5.2], [7.5, 2.0], [-3.0, 2.0], [9.4, 2.0], [2.0, 2.0]])
    found = maps.on_surface(torch.tensor([1]), places[None], SIZES[1:2])[0]
    assert (found > 0).tolist() == [False, False, False, False, True]


def test_the_nearest_pixel_is_that_of_the_map(maps):
    places = torch.tensor([[5.2, 5.3], [7.6, 2.0], [7.4, 2.0]])
    assert maps.nearest(torch.tensor([1]), places[None], SIZES[1:2])[0].tolist() == [0, 1, 0.5]


def test_images_without_a_map_have_no_depth(maps):
    image, places = torch.tensor([2]), torch.tensor([[[2.0, 2.0]]])
    assert maps.on_surface(image, places, SIZES[2:]).tolist() == [[0]]
    assert maps.nearest(image, places, SIZES[2:]).tolist() == [[0]]
