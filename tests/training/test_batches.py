"""Batches: what is in them, where it comes from, and what must not count as a wrong answer."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch

from logpolar.datasets.homographies import build_photos
from logpolar.datasets.options import PhotoOptions, SplitRules, ViewOptions
from logpolar.keypoints import Keypoints
from logpolar.sampling import Cartesian, LogPolar, sample_patches
from logpolar.sampling.torch_lookup import TorchPyramids
from logpolar.training.batches import BatchSampler, apportion, excluded_negatives, fix_shapes
from logpolar.training.data import PairTable, TrainingData, load_training_data
from logpolar.training.options import AugmentationOptions, BatchOptions

STILL = AugmentationOptions(angle_jitter=0, scale_jitter=0)
PATTERN = LogPolar(24, 8, 8)


class Recorder:
    """In the place of pyramids: remembers which images and keypoints were asked for; patches are empty."""

    def __init__(self) -> None:
        self.asked: list[tuple[torch.Tensor, ...]] = []

    def sample(self, image, xy, size, angle, pattern):
        self.asked.append(tuple(values.clone() for values in (image, xy, size, angle)))
        return torch.zeros(len(image), 2, 2)


def make_tables(groups_of_sources: list[list[int]], counts: np.ndarray) -> tuple[PairTable, ...]:
    """Sources with so many pairs in each of their groups; pair k has images 2k, 2k + 1 and ``counts[k]`` rows."""
    ends = np.cumsum([0, *counts])
    rows = np.stack([ends[:-1], ends[1:]], axis=1)
    tables, pair, group = [], 0, 0
    for sizes in groups_of_sources:
        numbers = np.arange(pair, pair + sum(sizes))
        owner = np.repeat(np.arange(group, group + len(sizes)), sizes)
        tables.append(PairTable(np.stack([2 * numbers, 2 * numbers + 1], axis=1), rows[numbers], owner))
        pair, group = pair + sum(sizes), group + len(sizes)
    return tuple(tables)


def make_keypoints(count: int, seed: int, side: float) -> torch.Tensor:
    values = np.random.default_rng(seed).uniform((0, 0, 2, 0), (side, side, 6, 360), (count, 4))
    return torch.from_numpy(values.astype(np.float32))


class Recorded:
    """Data without images; batches are known by the places that were asked for."""

    def __init__(self, groups_of_sources, least: int = 6, most: int = 12) -> None:
        pairs = sum(map(sum, groups_of_sources))
        counts = np.random.default_rng(0).integers(least, most + 1, pairs)
        self.tables = make_tables(groups_of_sources, counts)
        total = int(counts.sum())
        residual = torch.from_numpy(np.random.default_rng(3).uniform(-25, 25, total).astype(np.float32))
        self.recorder = Recorder()
        log_zoom = torch.from_numpy(np.random.default_rng(4).normal(0, 0.5, total).astype(np.float32))
        self.data = TrainingData(
            self.recorder, make_keypoints(total, 1, 90), make_keypoints(total, 2, 90), residual, log_zoom, self.tables
        )
        self.pair_of_row = np.repeat(np.arange(pairs), counts)
        self.group_of_pair = np.concatenate([table.group for table in self.tables])
        self.source_of_pair = np.repeat(np.arange(len(self.tables)), [len(table) for table in self.tables])

    def sampler(self, options, augmentation=STILL, shares=None) -> BatchSampler:
        return BatchSampler(self.data, shares or [1.0] * len(self.tables), PATTERN, options, augmentation)

    def rows(self, sampler, draws: int, seed: int = 0) -> np.ndarray:
        """(draws, pairs, per_pair): which correspondences were drawn; both halves of a batch must agree."""
        generator, options = torch.Generator().manual_seed(seed), sampler.options
        self.recorder.asked.clear()
        for _ in range(draws):
            sampler.draw(generator)
        found = []
        for image, xy, _, _ in self.recorder.asked:
            halves = [
                (places[:, None] == given[None, :, :2]).all(dim=2).int().argmax(dim=1)
                for places, given in zip(xy.chunk(2), (self.data.first, self.data.second), strict=True)
            ]
            assert torch.equal(self.data.first[halves[0], :2], xy.chunk(2)[0])
            assert torch.equal(halves[0], halves[1])
            pair = self.pair_of_row[halves[0].numpy()]
            np.testing.assert_array_equal(image.numpy(), np.concatenate([2 * pair, 2 * pair + 1]))
            found.append(halves[0].numpy().reshape(options.pairs, options.per_pair))
        return np.array(found)

    def pairs(self, sampler, draws: int, seed: int = 0) -> np.ndarray:
        """(draws, pairs): which image pairs were drawn."""
        pair = self.pair_of_row[self.rows(sampler, draws, seed)]
        assert (pair == pair[:, :, :1]).all()
        return pair[:, :, 0]


class TestChoice:
    def test_no_correspondence_twice(self):
        world = Recorded([[3, 1, 2, 4], [2, 2, 2]])
        rows = world.rows(world.sampler(BatchOptions(5, 6)), 30)
        assert rows.shape == (30, 5, 6)
        assert all(len(np.unique(batch)) == 30 for batch in rows)

    def test_one_pair_of_each_group(self):
        world = Recorded([[3, 1, 2, 4, 2]])
        pairs = world.pairs(world.sampler(BatchOptions(5, 4)), 30)
        assert (np.sort(world.group_of_pair[pairs], axis=1) == np.arange(5)).all()

    @pytest.mark.parametrize(("sizes", "count"), [([7], 4), ([5, 3, 8], 8), ([4, 4], 8), ([3], 2)])
    def test_several_pairs_of_a_group_where_there_are_few_groups(self, sizes, count):
        """As evenly as may be, and never a pair twice."""
        world = Recorded([sizes])
        pairs = world.pairs(world.sampler(BatchOptions(count, 4)), 60)
        for batch in pairs:
            assert len(set(batch.tolist())) == count
            each = np.bincount(world.group_of_pair[batch], minlength=len(sizes))
            assert each.max() - each.min() <= 1

    def test_fewer_pairs_than_asked_for(self):
        world = Recorded([[2, 1]])
        pairs = world.pairs(world.sampler(BatchOptions(5, 4)), 20)
        assert all(set(batch.tolist()) == {0, 1, 2} for batch in pairs)

    @pytest.mark.parametrize("count", [1, 3])
    def test_every_pair_gets_its_turn(self, count):
        """All pairs of a group are as likely as each other, whether one or several of it are drawn."""
        world = Recorded([[8]])
        counts = np.bincount(world.pairs(world.sampler(BatchOptions(count, 2)), 600).flatten(), minlength=8)
        expected = 600 * count / 8
        assert np.abs(counts - expected).max() < 4.5 * expected**0.5

    def test_every_group_gets_its_turn(self):
        """However many pairs it has."""
        world = Recorded([[1, 9, 2, 4]])
        pairs = world.pairs(world.sampler(BatchOptions(2, 2)), 500)
        counts = np.bincount(world.group_of_pair[pairs.flatten()])
        assert np.abs(counts - 250).max() < 50
        assert len(set(pairs.flatten().tolist())) == 16

    def test_every_correspondence_gets_its_turn(self):
        """All of a pair are as likely as each other, of pairs with many as of pairs with just enough."""
        world = Recorded([[1, 1, 1, 1]], least=6, most=20)
        rows = world.rows(world.sampler(BatchOptions(4, 6)), 400)
        counts, sizes = np.bincount(rows.flatten(), minlength=len(world.data.first)), np.bincount(world.pair_of_row)
        assert sizes.max() > 1.5 * sizes.min()
        expected = 400 * 6 / sizes[world.pair_of_row]
        assert np.abs(counts - expected).max() < 4.5 * expected.max() ** 0.5
        assert counts.min() > 0

    def test_sources_give_their_shares(self):
        world = Recorded([[1] * 6, [9], [2] * 4])
        pairs = world.pairs(world.sampler(BatchOptions(8, 4), shares=[2, 0.5, 1.5]), 20)
        for batch in pairs:
            assert np.bincount(world.source_of_pair[batch]).tolist() == [4, 1, 3]

    def test_a_source_without_a_share(self):
        world = Recorded([[3] * 4, [2] * 4])
        pairs = world.pairs(world.sampler(BatchOptions(4, 4), shares=[0, 1]), 10)
        assert (world.source_of_pair[pairs] == 1).all()

    def test_seed_decides(self):
        world = Recorded([[3, 5, 4, 6]])
        sampler = world.sampler(BatchOptions(3, 4), AugmentationOptions())
        one, same, other = (world.rows(sampler, 3, seed) for seed in (1, 1, 2))
        assert np.array_equal(one, same)
        assert not np.array_equal(one, other)
        assert not np.array_equal(one[0], one[1])

    def test_nothing_else_of_chance(self):
        """What was drawn elsewhere changes nothing, and drawing changes nothing elsewhere."""
        world = Recorded([[3, 5, 4, 6]])
        sampler = world.sampler(BatchOptions(3, 4), AugmentationOptions())
        before = torch.get_rng_state()
        one = world.rows(sampler, 1)
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(5)
        assert np.array_equal(world.rows(sampler, 1), one)


@pytest.mark.parametrize(
    ("total", "shares", "expected"),
    [
        (10, [1], [10]),
        (10, [1, 1, 2], [3, 2, 5]),
        (16, [0.5, 0.3, 0.2], [8, 5, 3]),
        (3, [0.1, 0.1, 0.1], [1, 1, 1]),
        (1, [1, 3], [0, 1]),
    ],
)
def test_apportion(total, shares, expected):
    assert apportion(total, shares) == expected


def test_apportion_is_fair():
    random = np.random.default_rng(0)
    for _ in range(100):
        shares, total = random.uniform(0, 5, random.integers(1, 7)).tolist(), int(random.integers(1, 40))
        counts = apportion(total, shares)
        assert sum(counts) == total
        assert all(abs(n - total * share / sum(shares)) < 1 for n, share in zip(counts, shares, strict=True))


@pytest.fixture(scope="module")
def images(gray) -> list[np.ndarray]:
    return [np.ascontiguousarray(gray[20 * k : 20 * k + 70 + k, 15 * k : 15 * k + 90 - k]) for k in range(12)]


@pytest.fixture(scope="module")
def data(images) -> TrainingData:
    tables = make_tables([[2, 1], [3]], np.array([7, 9, 6, 8, 6, 10]))
    pyramids = TorchPyramids([torch.from_numpy(image) for image in images])
    none = torch.zeros(46)
    return TrainingData(pyramids, make_keypoints(46, 1, 65), make_keypoints(46, 2, 65), none, none, tables)


class TestPatches:
    """Patches of real images against the numpy look-up."""

    @pytest.mark.parametrize("pattern", [PATTERN, Cartesian(6, 8, 12, outside="mean")])
    def test_both_are_of_one_correspondence(self, data, images, pattern):
        references = ([], [])
        for table in data.sources:
            for numbers, (start, end) in zip(table.images.tolist(), table.rows.tolist(), strict=True):
                for reference, number, keypoints in zip(references, numbers, (data.first, data.second), strict=True):
                    x, y, size, angle = keypoints[start:end].numpy().T
                    points = Keypoints.from_points(np.stack([x, y], axis=1), size, angle)
                    reference.append(sample_patches(images[number], points, pattern))
        sampler = BatchSampler(data, [2, 1], pattern, BatchOptions(3, 6), STILL)
        generator = torch.Generator().manual_seed(0)
        for _ in range(5):
            batch, chosen = sampler.draw(generator), []
            for patches, reference in zip((batch.first, batch.second), references, strict=True):
                assert patches.shape == (18, pattern.rows, pattern.columns)
                difference = np.abs(patches.numpy()[:, None] - np.concatenate(reference)[None]).max(axis=(2, 3))
                assert difference.min(axis=1).max() < 1e-3
                chosen.append(difference.argmin(axis=1))
            assert np.array_equal(chosen[0], chosen[1])
            assert len(set(chosen[0].tolist())) == 18


class TestJitter:
    DRAWS = 60

    def asked(self, augmentation: AugmentationOptions) -> list[np.ndarray]:
        """x, y, size, angle of first and second keypoints of many draws; the first of them is what was stored."""
        world = Recorded([[2, 3, 2]])
        world.rows(world.sampler(BatchOptions(3, 6), augmentation), self.DRAWS)
        tables = [torch.cat([xy, size[:, None], angle[:, None]], dim=1) for _, xy, size, angle in world.recorder.asked]
        return [torch.cat([table.chunk(2)[side] for table in tables]).numpy() for side in (0, 1)]

    def test_spread(self):
        first, second = self.asked(STILL)
        jittered, same = self.asked(replace(STILL, angle_jitter=7, scale_jitter=0.3))
        np.testing.assert_array_equal(same, second)
        np.testing.assert_array_equal(jittered[:, :2], first[:, :2])
        log_ratio, turn = np.log(jittered[:, 2] / first[:, 2]), jittered[:, 3] - first[:, 3]
        assert len(turn) == self.DRAWS * 18
        assert log_ratio.std() == pytest.approx(0.3, rel=0.1)
        assert turn.std() == pytest.approx(7, rel=0.1)
        assert abs(log_ratio.mean()) < 0.04
        assert abs(turn.mean()) < 0.8
        assert abs(np.corrcoef(log_ratio, turn)[0, 1]) < 0.1

    def test_stored_keypoints_stay(self):
        world = Recorded([[2, 3, 2]])
        before = world.data.first.clone(), world.data.second.clone()
        world.rows(world.sampler(BatchOptions(3, 6), AugmentationOptions(aligned=True)), 3)
        assert torch.equal(world.data.first, before[0])
        assert torch.equal(world.data.second, before[1])

    def test_aligned_takes_the_residual_off_the_second(self):
        world = Recorded([[2, 3, 2]])
        rows = world.rows(world.sampler(BatchOptions(3, 6), replace(STILL, aligned=True)), 1).flatten()
        _, _, size, angle = world.recorder.asked[0]
        data = world.data
        np.testing.assert_allclose(angle[:18], data.first[rows, 3])
        np.testing.assert_allclose(angle[18:], data.second[rows, 3] - data.residual[rows], atol=1e-4)
        np.testing.assert_array_equal(size[18:], data.second[rows, 2])


class TestNoWrongAnswers:
    @staticmethod
    def by_loops(first, second, group, options) -> np.ndarray:
        pairs, per_pair, _ = first.shape
        excluded = np.zeros((pairs, per_pair, pairs, per_pair), bool)
        for p, i, q, j in np.ndindex(*excluded.shape):
            if p != q:
                excluded[p, i, q, j] = group[p] == group[q]
                continue
            for keypoints in (first, second):
                a, b = keypoints[p, i].numpy(), keypoints[p, j].numpy()
                limit = max(options.near, options.near_sizes * max(a[2], b[2]))
                excluded[p, i, q, j] |= np.hypot(*(a[:2] - b[:2])) < limit
        return excluded.reshape(pairs * per_pair, -1)

    @pytest.mark.parametrize(("near", "near_sizes"), [(7, 0.5), (7, 0), (0, 3), (12, 4)])
    def test_by_loops(self, near, near_sizes):
        options = BatchOptions(near=near, near_sizes=near_sizes)
        first, second = (make_keypoints(4 * 10, seed, 50).reshape(4, 10, 4) for seed in (1, 2))
        group = torch.tensor([3, 5, 3, 0])
        found = excluded_negatives(first, second, group, options).numpy()
        np.testing.assert_array_equal(found, self.by_loops(first, second, group, options))
        within = found.reshape(4, 10, 4, 10)[0, :, 0]
        assert 10 < within.sum() < 100

    def test_just_at_the_limit_is_not_near(self):
        keypoints = torch.tensor([[[0.0, 0, 20, 0], [10, 0, 4, 0], [17, 0, 2, 0], [23.9, 0, 2, 0]]])
        far = 1000 * torch.arange(4.0)[None, :, None].expand(1, 4, 4)
        for first, second in ((keypoints, far), (far, keypoints)):
            found = excluded_negatives(first, second, torch.tensor([0]), BatchOptions(near=7, near_sizes=0.5))
            assert found.int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]

    def test_of_a_batch(self):
        """From the keypoints as they are in the image: jitter, and turning the second, change nothing."""
        world, options = Recorded([[3, 4]], most=8), BatchOptions(4, 6, near=15)
        for augmentation in (STILL, AugmentationOptions(aligned=True, scale_jitter=2)):
            sampler = world.sampler(options, augmentation)
            rows = world.rows(sampler, 1)[0]
            batch = sampler.draw(torch.Generator().manual_seed(0))
            group = world.group_of_pair[world.pair_of_row[rows[:, 0]]]
            expected = self.by_loops(world.data.first[rows], world.data.second[rows], group, options)
            np.testing.assert_array_equal(batch.excluded.numpy(), expected)


def test_from_photos_to_batches(tmp_path, photo):
    """Partners look alike, whatever else is in the batch."""
    for number, top in enumerate((0, 200)):
        cv2.imwrite(str(tmp_path / f"{number}.png"), photo[top : top + 300])
    photos = {path.name: path for path in sorted(tmp_path.glob("*.png"))}
    options = PhotoOptions(views=1, view=ViewOptions(max_zoom=1.5), split=SplitRules(validation=0))
    build_photos(photos, tmp_path / "photos.h5", options)
    data = load_training_data([[tmp_path / "photos.h5"]], 12, "cpu")
    batch = BatchSampler(data, [1], LogPolar(rows=16, columns=16), BatchOptions(2, 12), STILL).draw(torch.Generator())
    first, second = (patches.numpy().reshape(24, -1) for patches in (batch.first, batch.second))
    alike = np.corrcoef(first, second)[:24, 24:]
    assert alike.diagonal().mean() > 0.6
    assert alike.diagonal().mean() > alike[~np.eye(24, dtype=bool)].mean() + 0.3


class TestFixedShapes:
    """A fraction of the image pairs has one size and one angle per image."""

    OPTIONS = AugmentationOptions(angle_jitter=0, scale_jitter=0, fixed=1.0, fixed_size=6.0, fixed_mismatch=4.0)

    def drawn(self, options: AugmentationOptions, rotation: float = 0.0, log_zoom: float = 0.0, pairs: int = 400):
        first, second = make_keypoints(pairs * 5, 1, 90), make_keypoints(pairs * 5, 2, 90)
        first, second = first.reshape(pairs, 5, 4), second.reshape(pairs, 5, 4)
        given = torch.full((pairs, 5), rotation), torch.full((pairs, 5), log_zoom)
        generator = torch.Generator().manual_seed(0)
        return first, second, *fix_shapes(first, second, *given, options, generator)

    def test_one_size_and_angle_per_image(self):
        first, second, *fixed = self.drawn(self.OPTIONS)
        for before, after in zip((first, second), fixed, strict=True):
            assert torch.equal(after[..., :2], before[..., :2])
            assert torch.equal(after[..., 2:], after[:, :1, 2:].expand(-1, 5, -1))
        assert 5 < fixed[0][..., 2].log().mean().exp() < 7

    @pytest.mark.parametrize("log_zoom", [0.0, -1.1])
    def test_mismatch_is_within_the_factor(self, log_zoom):
        *_, first, second = self.drawn(self.OPTIONS, log_zoom=log_zoom)
        mismatch = (second[:, 0, 2] / first[:, 0, 2]).log() - log_zoom
        assert mismatch.abs().max() <= np.log(4) + 1e-4
        assert mismatch.abs().max() > 1.3
        assert abs(mismatch.mean()) < 0.15

    @pytest.mark.parametrize(("rotation", "expected"), [(20.0, 0.0), (-25.0, 0.0), (90.0, 90.0), (170.0, 170.0)])
    def test_only_large_rotations_are_undone(self, rotation, expected):
        *_, first, second = self.drawn(self.OPTIONS, rotation=rotation)
        torch.testing.assert_close(second[:, 0, 3] - first[:, 0, 3], torch.full((400,), expected), atol=1e-3, rtol=0)
        upright = (first[:, 0, 3] == 0).float().mean()
        assert 0.4 < upright < 0.6

    def test_fraction(self):
        first, second, *fixed = self.drawn(replace(self.OPTIONS, fixed=0.25))
        changed = (fixed[0] != first).any(dim=2).any(dim=1)
        assert torch.equal(changed, (fixed[1] != second).any(dim=2).any(dim=1))
        assert 0.15 < changed.float().mean() < 0.35

    def test_batches_draw_them(self):
        recorded = Recorded([[3, 3]])
        recorded.sampler(BatchOptions(4, 5), self.OPTIONS).draw(torch.Generator().manual_seed(0))
        _, _, size, _ = recorded.recorder.asked[0]
        assert all(len(each.unique()) == 1 for each in size.reshape(8, 5))


class TestAlteredCopies:
    def images(self, altered: float, copies: int) -> np.ndarray:
        """(draws, pairs, 2): numbers of the images sampled."""
        recorded = Recorded([[2, 2, 2]])
        recorded.recorder.__class__ = LongRecorder
        data = replace(recorded.data, copies=copies)
        options = AugmentationOptions(angle_jitter=0, scale_jitter=0, altered=altered)
        sampler = BatchSampler(data, [1.0], PATTERN, BatchOptions(3, 2), options)
        generator = torch.Generator().manual_seed(0)
        for _ in range(200):
            sampler.draw(generator)
        asked = [image.reshape(2, 3, 2)[:, :, 0].T.numpy() for image, *_ in recorded.recorder.asked]
        return np.stack(asked)

    def test_second_images_only(self):
        images = self.images(1.0, 2)
        assert images[..., 0].max() < 12
        assert images[..., 1].min() >= 12
        assert set(np.unique(images[..., 1] // 12)) == {1, 2}
        np.testing.assert_array_equal(images[..., 1] % 12, images[..., 0] + 1)

    def test_none_unless_wanted(self):
        assert self.images(0.0, 2).max() < 12

    def test_data_without_copies(self):
        with pytest.raises(ValueError, match="no altered copies"):
            self.images(0.5, 0)

    def test_fraction(self):
        assert 0.2 < (self.images(0.3, 2)[..., 1] >= 12).mean() < 0.4


class LongRecorder(Recorder):
    def __len__(self) -> int:
        return 36  # 12 images and two copies of each
