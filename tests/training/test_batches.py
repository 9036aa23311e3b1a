from __future__ import annotations

from dataclasses import fields, replace

import cv2
import numpy as np
import pytest
import torch

from logpolar.datasets.correspondences import Correspondences
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.homographies import build_photos, make_view_pair, view_pairs
from logpolar.datasets.options import PhotoOptions, SplitRules, ViewOptions
from logpolar.images import to_bytes, to_gray
from logpolar.sampling import Cartesian, LogPolar, sample_patches
from logpolar.training.batches import BatchOptions, PairSampler

PATTERN = LogPolar(rows=16, columns=20)
STILL = BatchOptions(pairs=2, per_pair=12, angle_jitter=0, scale_jitter=0)


def shortened(pair, count: int):
    """The same pair with only its first correspondences."""
    found = pair.correspondences
    part = Correspondences(*(getattr(found, field.name)[:count] for field in fields(found)))
    return replace(pair, correspondences=part)


@pytest.fixture(scope="module")
def pairs(gray):
    """Three pairs of views; the last has just as many correspondences as a batch takes of it, the others have more."""
    pixels = to_bytes(gray)
    options = ViewOptions(max_zoom=1.5)
    made = [
        make_view_pair(pixels[top : top + 240, 100:400], pixels, options, np.random.default_rng(top))
        for top in (0, 120, 240)
    ]
    assert all(len(pair.correspondences) > 2 * STILL.per_pair for pair in made)
    return [*made[:2], shortened(made[2], STILL.per_pair)]


def draw(pairs, options=STILL, seed=0, pattern=PATTERN):
    sampler = PairSampler(pairs, pattern, options, "cpu")
    return [patches.numpy() for patches in sampler.draw(torch.Generator().manual_seed(seed))]


def nearest_reference(patches: np.ndarray, references: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number of the most similar reference of each patch, and the largest difference of any pixel."""
    difference = np.abs(patches[:, None] - references[None]).max(axis=(2, 3))
    return difference.argmin(axis=1), difference.min(axis=1)


def test_batches_from_a_correspondence_file(tmp_path, photo):
    """The pairs that a file gives are drawn from just as those that were never stored."""
    for number, top in enumerate((0, 200)):
        cv2.imwrite(str(tmp_path / f"{number}.png"), photo[top : top + 300])
    photos = {path.name: path for path in sorted(tmp_path.glob("*.png"))}
    options = PhotoOptions(views=1, view=ViewOptions(max_zoom=1.5), split=SplitRules(validation=0))
    build_photos(photos, tmp_path / "photos.h5", options)
    with CorrespondenceFile(tmp_path / "photos.h5") as file:
        stored = [file.read(number) for number in file.pairs("train")]
    fresh = list(view_pairs(list(photos.values()), 1, 0, options.view))
    for one, other in zip(draw(stored), draw(fresh), strict=True):
        assert one.shape == (24, 16, 20)
        np.testing.assert_allclose(one, other, atol=0.03)  # the file rounds positions to 1/100 px


class TestDraw:
    @pytest.mark.parametrize("pattern", [PATTERN, Cartesian(rows=16, columns=20)])
    def test_patches_are_those_of_correspondences(self, pairs, pattern):
        """Both patches of a row come from one correspondence; no patch is drawn twice or made of padding."""
        owner = np.concatenate([np.full(len(pair.correspondences), k) for k, pair in enumerate(pairs)])
        views = [[(p.first, p.correspondences.first), (p.second, p.correspondences.second)] for p in pairs]
        references = [
            np.concatenate([sample_patches(to_gray(view[side][0]), view[side][1], pattern) for view in views])
            for side in (0, 1)
        ]
        for seed in range(4):
            first, second = draw(pairs, seed=seed, pattern=pattern)
            (chosen, error), (partner, other_error) = (
                nearest_reference(patches, reference)
                for patches, reference in zip((first, second), references, strict=True)
            )
            assert max(error.max(), other_error.max()) < 2e-3  # images are kept in float16
            np.testing.assert_array_equal(chosen, partner)
            assert len(set(chosen.tolist())) == STILL.pairs * STILL.per_pair
            groups = owner[chosen].reshape(STILL.pairs, STILL.per_pair)
            assert (groups == groups[:, :1]).all()
            assert len(set(groups[:, 0].tolist())) == STILL.pairs

    def test_partners_look_alike(self, pairs):
        first, second = (p.reshape(len(p), -1) for p in draw(pairs))
        own = np.corrcoef(first, second)[: len(first), len(first) :]
        assert own.diagonal().mean() > 0.6
        assert own.diagonal().mean() > own[~np.eye(len(own), dtype=bool)].mean() + 0.3

    def test_every_correspondence_gets_its_turn(self, pairs):
        sampler = PairSampler(pairs[:1], PATTERN, replace(STILL, pairs=1), "cpu")
        generator = torch.Generator().manual_seed(0)
        seen = {patch.numpy().tobytes() for _ in range(60) for patch in sampler.draw(generator)[0]}
        assert len(seen) == len(pairs[0].correspondences)

    @pytest.mark.parametrize(("count", "per_pair"), [(1, 5), (3, 12), (2, 1)])
    def test_shape_is_fixed(self, pairs, count, per_pair):
        sampler = PairSampler(pairs, PATTERN, BatchOptions(count, per_pair), "cpu")
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            for patches in sampler.draw(generator):
                assert patches.shape == (count * per_pair, 16, 20)
                assert patches.dtype == torch.float32
                assert 0 <= patches.min() < patches.max() <= 1.001

    def test_seed_decides(self, pairs):
        options = replace(STILL, angle_jitter=10, scale_jitter=0.4)
        one, same, other = (draw(pairs, options, seed) for seed in (1, 1, 2))
        np.testing.assert_array_equal(one[0], same[0])
        np.testing.assert_array_equal(one[1], same[1])
        assert not np.array_equal(one[1], other[1])

    def test_drawing_changes_nothing_in_the_sampler(self, pairs):
        sampler = PairSampler(pairs, PATTERN, replace(STILL, angle_jitter=10, scale_jitter=0.4), "cpu")
        one, again = (sampler.draw(torch.Generator().manual_seed(0))[0] for _ in range(2))
        assert torch.equal(one, again)


class RecordingPattern(LogPolar):
    """A pattern that remembers what it was asked for."""

    def locate(self, xy, size, angle):
        asked.append((xy.numpy().copy(), size.numpy().copy(), angle.numpy().copy()))
        return super().locate(xy, size, angle)


asked: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []


class TestJitter:
    @pytest.fixture
    def keypoints(self, pairs):
        """What is asked for with and without jitter: (first, second) of each, many draws together."""

        def record(options):
            asked.clear()
            sampler = PairSampler(pairs, RecordingPattern(rows=4, columns=4), options, "cpu")
            generator = torch.Generator().manual_seed(0)
            for _ in range(60):
                sampler.draw(generator)
            return [[np.concatenate(c) for c in zip(*asked[side::2], strict=True)] for side in (0, 1)]

        return record(STILL), record(replace(STILL, angle_jitter=7, scale_jitter=0.3))

    def test_only_the_first_patch(self, keypoints):
        for still, jittered in zip(keypoints[0][1], keypoints[1][1], strict=True):
            np.testing.assert_array_equal(still, jittered)

    def test_places_stay(self, keypoints):
        np.testing.assert_array_equal(keypoints[0][0][0], keypoints[1][0][0])

    def test_spread_of_sizes_and_angles(self, keypoints):
        (_, size, angle), (_, jittered_size, jittered_angle) = keypoints[0][0], keypoints[1][0]
        assert len(size) == 60 * 24
        log_ratio, turn = np.log(jittered_size / size), jittered_angle - angle
        assert log_ratio.std() == pytest.approx(0.3, rel=0.1)
        assert turn.std() == pytest.approx(7, rel=0.1)
        assert abs(log_ratio.mean()) < 0.03
        assert abs(turn.mean()) < 0.7
        assert abs(np.corrcoef(log_ratio, turn)[0, 1]) < 0.1


class TestTooLittle:
    def test_length_counts_usable_pairs(self, pairs):
        assert len(PairSampler(pairs, PATTERN, STILL, "cpu")) == 3
        assert len(PairSampler([*pairs, shortened(pairs[0], 11)], PATTERN, STILL, "cpu")) == 3

    def test_too_few_pairs(self, pairs):
        with pytest.raises(ValueError, match="3 image pairs"):
            PairSampler(pairs, PATTERN, replace(STILL, pairs=4), "cpu")

    def test_too_few_correspondences(self, pairs):
        with pytest.raises(ValueError, match="1 image pairs have 13 or more"):
            PairSampler(pairs[1:], PATTERN, replace(STILL, per_pair=13), "cpu")

    def test_no_pairs(self):
        with pytest.raises(ValueError, match="0 image pairs"):
            PairSampler([], PATTERN, STILL, "cpu")
