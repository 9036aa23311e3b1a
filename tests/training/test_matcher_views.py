"""Views for matchers: their keypoints are seen where the projection says, and are described as any others."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

from logpolar.keypoints import Keypoints
from logpolar.models import load_model
from logpolar.models.describers import open_describer
from logpolar.models.detectors import NetworkDetector
from logpolar.models.files import load_detector
from logpolar.training.matcher_options import ViewsOptions
from logpolar.training.matcher_sources import SourceImage, Sources
from logpolar.training.matcher_views import ViewMaker, Views, random_warps

PLANE = np.concatenate([np.eye(3), np.zeros((3, 1))], axis=1)
OPTIONS = ViewsOptions(keypoints=60, size=128, altered=0.0, max_tilt=0.3)


@pytest.fixture(scope="module")
def textures() -> list[np.ndarray]:
    found = []
    for seed in range(2):
        noise = np.random.default_rng(seed).random((160, 200)).astype(np.float32)
        found.append((np.clip(cv2.GaussianBlur(noise, (0, 0), 2) * 4 - 1.5, 0, 1) * 255).astype(np.uint8))
    return found


@pytest.fixture(scope="module")
def maker(textures) -> ViewMaker:
    sources = Sources([SourceImage(texture, PLANE) for texture in textures], torch.device("cpu"))
    return ViewMaker(sources, OPTIONS, load_detector("logpolar"), load_model("logpolar-96-small"))


def make(maker: ViewMaker, image: list[int], plain: bool) -> Views:
    return maker.make(torch.tensor(image), torch.tensor([plain] * len(image)), torch.Generator().manual_seed(3))


def originals(views: Views) -> torch.Tensor:
    """Where the keypoints are in the photo, and 1."""
    seen = torch.cat([views.xy, torch.ones_like(views.xy[..., :1])], dim=-1) * views.depth[..., None]
    return seen.double() @ torch.linalg.inv(views.projection[:, :, :3]).transpose(1, 2)


class TestViews:
    def test_keypoints_lie_where_the_projection_says(self, maker):
        views = make(maker, [0, 1, 0], plain=False)
        inside = views.used & (views.depth > 0)
        assert inside.sum() > 50
        points = originals(views)[inside]
        torch.testing.assert_close(points[:, 2], torch.ones(len(points)).double(), rtol=0, atol=1e-5)
        assert (points[:, :2] > -1).all()
        assert (points[:, :2] < torch.tensor([200, 160])).all()

    def test_keypoints_of_two_views_meet_in_the_photo_and_look_alike(self, maker):
        views = make(maker, [0, 0], plain=False)
        known = views.used & (views.depth > 0)
        first, second = (originals(views)[row][known[row]][:, :2] for row in (0, 1))
        nearest = torch.cdist(first, second).min(dim=1)
        met = nearest.values < 1
        assert met.sum() > 8
        likeness = views.descriptors[0][known[0]].float() @ views.descriptors[1][known[1]].float().T
        assert (likeness.argmax(dim=1)[met] == nearest.indices[met]).double().mean() > 0.9

    def test_behind_an_image_there_is_another_whose_keypoints_nobody_else_sees(self, maker):
        views = make(maker, [0] * 8, plain=False)
        assert 0.02 < (views.depth[views.used] < 0).double().mean() < 0.9

    def test_the_whole_image_has_the_detectors_keypoints_and_the_models_descriptors(self, maker, textures):
        (views,) = [make(maker, [0], plain=True)]
        square = torch.linalg.inv(views.projection[0, :, :3])
        x, y = np.meshgrid(np.arange(128), np.arange(128))
        places = (np.stack([x, y, np.ones_like(x)], axis=-1) @ square.numpy().T)[..., :2].astype(np.float32)
        blurred = cv2.GaussianBlur(textures[0].astype(np.float32) / 255, (0, 0), 0.6)
        image = cv2.remap(blurred, places[..., 0], places[..., 1], cv2.INTER_LINEAR)
        detected = NetworkDetector("logpolar", 60)(image).xy
        down, across = np.rint(detected[:, ::-1]).astype(int).T
        within = (places[down, across, 1] > 8) & (places[down, across, 1] < 152)
        found = views.xy[0][views.used[0]].numpy()
        gaps = np.linalg.norm(detected[within][:, None] - found[None], axis=2)
        assert np.mean(gaps.min(axis=1) < 1.5) > 0.6  # the pyramid smooths a little differently
        near = gaps.argmin(axis=1)[gaps.min(axis=1) < 1.5]
        size = load_detector("logpolar").card.size
        expected = open_describer("logpolar-96-small").describe(image, Keypoints.from_points(found[near], size, 0.0))
        likeness = (expected * views.descriptors[0][views.used[0]][near].float().numpy()).sum(axis=1)
        assert np.median(likeness) > 0.8

    def test_views_are_stored_by_number(self, maker):
        views, made = Views.none(5, OPTIONS, torch.device("cpu")), make(maker, [0, 1], plain=False)
        views.store(torch.tensor([4, 1]), made)
        assert len(views) == 5
        assert views.used.any(dim=1).tolist() == [False, True, False, False, True]
        assert torch.equal(views.xy[4], made.xy[0])
        assert torch.equal(views.projection[1], made.projection[1])


class TestWarps:
    SIZES = torch.tensor([[400, 300], [300, 500], [4000, 3000]])

    def warps(self, plain: bool, **changes) -> torch.Tensor:
        options = ViewsOptions(**{"size": 128, "max_tilt": 0.0, "max_turn": 0.0, **changes})
        return random_warps(self.SIZES, torch.tensor([plain] * 3), options, torch.Generator().manual_seed(0))

    def test_a_plain_view_shows_the_whole_image(self):
        for warp, (width, height) in zip(self.warps(True), self.SIZES.tolist(), strict=True):
            ends = warp @ torch.tensor([[-0.5, -0.5, 1], [127.5, 127.5, 1]]).double().T
            longer = max(width, height)
            middle = torch.tensor([[(width - 1) / 2], [(height - 1) / 2]]).double()
            square = torch.tensor([[-0.5, 0.5], [-0.5, 0.5]]).double() * longer
            torch.testing.assert_close(ends[:2] / ends[2:] - middle, square)

    def test_others_are_larger_or_smaller_than_fits_by_no_more_than_max_zoom(self):
        scale = torch.linalg.det(self.warps(False, max_zoom=1.5)[:, :2, :2]).sqrt()
        fits = self.SIZES.amin(dim=1) / 128
        assert (scale <= 1.5 * fits + 1e-9).all()
        assert (scale >= (fits / 1.5).clamp(min=0.6) - 1e-9).all()

    def test_they_turn_and_tilt_no_farther_than_allowed(self):
        turned = self.warps(False, max_turn=20.0)
        angle = torch.atan2(turned[:, 1, 0], turned[:, 0, 0]).rad2deg()
        assert 1 < angle.abs().max() <= 20
        tilted = self.warps(False, max_tilt=0.3)
        corners = torch.tensor([[-0.5, -0.5, 1], [127.5, -0.5, 1], [127.5, 127.5, 1], [-0.5, 127.5, 1]]).double()
        sent = tilted @ corners.T
        sent = (sent[:, :2] / sent[:, 2:]).transpose(1, 2)
        straight = self.warps(False)
        expected = (straight @ corners.T)[:, :2].transpose(1, 2)
        half = torch.linalg.det(straight[:, :2, :2]).sqrt()[:, None, None] * 64
        gaps = (sent - expected).abs() / half
        assert 0.1 < gaps.max() < 0.3 + 1e-6
