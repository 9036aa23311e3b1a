"""What is done to patches: by the numbers that the options state."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logpolar.training.augmentation import change_patches
from logpolar.training.options import AugmentationOptions


def change(patches, per_image: int, seed: int = 0, **options) -> np.ndarray:
    return change_patches(
        patches, per_image, AugmentationOptions(**options), torch.Generator().manual_seed(seed)
    ).numpy()


def test_nothing_by_default():
    patches = torch.rand(6, 4, 5, generator=torch.Generator().manual_seed(0))
    assert np.array_equal(change(patches, 3), patches.numpy())


@pytest.mark.parametrize("options", [{"gamma": 0.3}, {"noise": 0.1}, {"occlusion": 0.5}])
def test_seed_decides(options):
    patches = torch.rand(40, 6, 8, generator=torch.Generator().manual_seed(1))
    before = patches.clone()
    one, same, other = (change(patches, 4, seed, **options) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, patches.numpy())
    assert torch.equal(patches, before)


class TestGamma:
    def test_one_for_each_image(self):
        patches = 0.05 + 0.9 * torch.rand(500 * 3, 2, 2, generator=torch.Generator().manual_seed(0))
        changed = change(patches, 3, gamma=0.4)
        gamma = (np.log(changed) / np.log(patches.numpy())).reshape(500, -1)
        np.testing.assert_allclose(gamma, np.broadcast_to(gamma[:, :1], gamma.shape), rtol=1e-3)
        log_gamma = np.log(gamma[:, 0])
        assert log_gamma.std() == pytest.approx(0.4, rel=0.1)
        assert abs(log_gamma.mean()) < 0.06

    def test_black_and_white(self):
        patches = torch.tensor([0.0, 1.0]).repeat(8, 2, 1)
        changed = change(patches, 1, gamma=2.0)
        assert np.isfinite(changed).all()
        np.testing.assert_allclose(changed[:, :, 1], 1)
        assert (changed[:, :, 0] < 0.9).all()


class TestNoise:
    def test_spread(self):
        """Even strengths from 0 to the largest, one for each image; no two patches have the same noise."""
        patches = torch.full((300 * 2, 20, 20), 0.5)
        noise = change(patches, 2, noise=0.2) - 0.5
        strength = noise.std(axis=(1, 2)).reshape(300, 2)
        np.testing.assert_allclose(strength[:, 0], strength[:, 1], rtol=0.3, atol=1e-4)
        assert strength.max() < 0.22
        assert strength.min() < 0.01
        assert strength.mean() == pytest.approx(0.1, rel=0.12)
        assert abs(noise.mean()) < 1e-3
        correlation = np.corrcoef(noise[:40].reshape(40, -1))
        assert np.abs(correlation - np.eye(40)).max() < 0.3


class TestOcclusion:
    ROWS, COLUMNS, PER_IMAGE = 3, 16, 4

    def hidden(self, images: int, share: float) -> tuple[np.ndarray, np.ndarray]:
        """How many columns of each patch were replaced, and by which patch (-1: none); patches carry their number."""
        count = images * self.PER_IMAGE
        number = torch.arange(count, dtype=torch.float32)
        patches = number[:, None, None].expand(-1, self.ROWS, self.COLUMNS)
        changed = change(patches, self.PER_IMAGE, occlusion=share)
        assert (changed == changed[:, :1]).all()
        replaced = changed[:, 0] != np.arange(count)[:, None]
        assert (np.diff(replaced.astype(int), axis=1) >= 0).all()  # from some column on to the right end
        return replaced.sum(axis=1), np.where(replaced.any(axis=1), changed[:, 0, -1], -1).astype(int)

    def test_share_of_patches(self):
        """The part that is hidden may be narrower than a column: that is so for an eighth of the patches here."""
        for share in (0.3, 1.0):
            columns, _ = self.hidden(1000, share)
            assert (columns > 0).mean() == pytest.approx(share * 7 / 8, abs=0.025)

    def test_at_most_the_outer_half(self):
        columns, _ = self.hidden(500, 1.0)
        assert columns.max() <= self.COLUMNS // 2
        counts = np.bincount(columns, minlength=8)[:8]
        assert counts.min() > 0.75 * len(columns) / 8

    def test_what_stands_there_is_of_another_image_and_place(self):
        columns, other = self.hidden(6, 1.0)
        covered = np.flatnonzero(columns)
        image, place = covered // self.PER_IMAGE, covered % self.PER_IMAGE
        assert len(covered) > 12
        assert (other[covered] // self.PER_IMAGE != image).all()
        assert (other[covered] % self.PER_IMAGE != place).all()
