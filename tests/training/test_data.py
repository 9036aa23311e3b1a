"""Correspondence files as tensors, against what the files themselves say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dataset_files import SETTINGS, SUMMARY, make_image, make_pair
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.writing import CorrespondenceWriter
from logpolar.errors import LogpolarError
from logpolar.images import to_gray
from logpolar.keypoints import Keypoints
from logpolar.sampling import Cartesian, sample_patches
from logpolar.training.data import TrainingData, load_training_data

PHOTOS = {"source": "homographies"}


def write_file(path, images, pairs, settings=SETTINGS, finish: bool = True):
    with CorrespondenceWriter(path, settings) as writer:
        writer.add(images, pairs)
        if finish:
            writer.finish(SUMMARY)
    return path


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """Four images, the third for validation; pairs of 9, 3, 12, 6 and 8 correspondences, the last validates."""
    images = [make_image(f"{k}.png", 20, "validation" if k == 2 else "train", k) for k in range(5)]
    order = [(4, 1, 9), (1, 0, 3), (0, 4, 12), (1, 4, 6), (2, 0, 8)]
    pairs = [make_pair(images[a], images[b], count, seed) for seed, (a, b, count) in enumerate(order)]
    return write_file(tmp_path_factory.mktemp("scene") / "scene.h5", images, pairs)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Views of three photos, not in the order of the photos; the separator is in two of their names."""
    names = ["b.png#0", "z#1.png#0", "b.png#1", "z#2.png#0", "z#1.png#1"]
    images = [
        make_image(f"{name}{side}", 15, "train", 2 * k + s)
        for k, name in enumerate(names)
        for s, side in enumerate("ab")
    ]
    pairs = [make_pair(images[2 * k], images[2 * k + 1], 6 + k, k) for k in range(5)]
    return write_file(tmp_path_factory.mktemp("photos") / "photos.h5", images, pairs, PHOTOS)


def pairs_of(data: TrainingData, source: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """First keypoints, second keypoints and residuals of each pair of a source, in its order."""
    rows = data.sources[source].rows.tolist()
    return [tuple(values[a:b].numpy() for values in (data.first, data.second, data.residual)) for a, b in rows]


def assert_pair_is(data: TrainingData, source: int, number: int, path, pair: int) -> None:
    """Keypoints, residuals and images of a pair are those that the file has."""
    with CorrespondenceFile(path) as file:
        read = file.read(pair)
    found = read.correspondences
    first, second, residual = pairs_of(data, source)[number]
    np.testing.assert_array_equal(first, found.first.table)
    np.testing.assert_array_equal(second, found.second.table)
    np.testing.assert_array_equal(residual, found.angle_residual)
    pattern, keypoints = Cartesian(1, 24, 24, antialias=False), Keypoints.from_points([[12, 12], [25.5, 20.2]], 24)
    for image, view in zip(data.sources[source].images[number].tolist(), (read.first, read.second), strict=True):
        table = torch.from_numpy(keypoints.table)
        patches = data.pyramids.sample(torch.full((2,), image), table[:, :2], table[:, 2], table[:, 3], pattern)
        np.testing.assert_allclose(patches.numpy(), sample_patches(to_gray(view), keypoints, pattern), atol=2e-3)


class TestFile:
    def test_rows(self, scene):
        with CorrespondenceFile(scene) as file:
            assert file.correspondence_rows.tolist() == [[0, 9], [9, 12], [12, 24], [24, 30], [30, 38]]
            for pair, (start, end) in enumerate(file.correspondence_rows.tolist()):
                expected = file.column("correspondences", "keypoints")[start:end]
                np.testing.assert_array_equal(file.read_correspondences(pair).indices, expected)

    def test_a_scene_is_one_group(self, scene):
        with CorrespondenceFile(scene) as file:
            assert len(file.groups()) == 5
            assert len(set(file.groups())) == 1

    def test_a_photo_is_a_group(self, photos):
        with CorrespondenceFile(photos) as file:
            groups = file.groups()
        assert len(groups) == 5
        assert len(set(groups)) == 3
        assert groups[0] == groups[2]
        assert groups[1] == groups[4]
        assert groups[3] not in groups[:3]

    @pytest.mark.parametrize("settings", [SETTINGS, PHOTOS])
    def test_no_pairs_no_groups(self, tmp_path, settings):
        path = write_file(tmp_path / "none.h5", [make_image("a.png#0a")], [], settings)
        with CorrespondenceFile(path) as file:
            assert file.groups() == []
            assert file.correspondence_rows.shape == (0, 2)


class TestLoading:
    def test_what_a_scene_gives(self, scene):
        """The pair of 3 and the one that validates are left out, the one of just 6 is not."""
        data = load_training_data([[scene]], 6, "cpu")
        table = data.sources[0]
        assert len(table) == data.pairs == 3
        assert data.correspondences == len(data.first) == len(data.second) == len(data.residual) == 27
        assert data.groups == 1
        assert table.group.tolist() == [0, 0, 0]
        for number, pair in enumerate((0, 2, 3)):
            assert_pair_is(data, 0, number, scene, pair)

    def test_images_that_are_not_used_are_not_kept(self, scene):
        assert len(load_training_data([[scene]], 6, "cpu").pyramids) == 3
        assert len(load_training_data([[scene]], 12, "cpu").pyramids) == 2

    def test_pairs_of_a_photo_are_next_to_each_other(self, photos):
        data = load_training_data([[photos]], 6, "cpu")
        with CorrespondenceFile(photos) as file:
            groups = file.groups()
            expected = sorted(range(5), key=lambda pair: groups.index(groups[pair]))
            assert expected != list(range(5))
        assert data.sources[0].group.tolist() == [0, 0, 1, 1, 2]
        assert data.groups == 3
        for number, pair in enumerate(expected):
            assert_pair_is(data, 0, number, photos, pair)

    def test_groups_without_gaps_when_a_photo_drops_out(self, photos):
        """10 correspondences or more: only the last pair; 8 or more: one pair of each photo."""
        assert load_training_data([[photos]], 10, "cpu").sources[0].group.tolist() == [0]
        assert load_training_data([[photos]], 8, "cpu").sources[0].group.tolist() == [0, 1, 2]

    def test_files_of_the_same_images_are_one_group(self, tmp_path):
        """A scene at its own size and with reduced second images: what both show is no wrong answer."""
        images = [make_image(name, 20) for name in ("a.png", "b.png")]
        paths = [
            write_file(tmp_path / f"{name}.h5", images, [make_pair(*images, 7)], {**SETTINGS, **of})
            for name, of in (
                ("one", {"images_hash": "x"}),
                ("other", {"images_hash": "y"}),
                ("zoomed", {"images_hash": "x"}),
            )
        ]
        table = load_training_data([paths], 6, "cpu").sources[0]
        assert table.group.tolist() == [0, 0, 1]
        assert table.images.tolist() == [[0, 1], [4, 5], [2, 3]]
        assert table.rows.tolist() == [[0, 7], [14, 21], [7, 14]]

    def test_several_files_and_sources(self, scene, photos):
        """Each file has images and rows of its own, and groups, unless it shows what another does."""
        data = load_training_data([[photos, scene], [scene]], 6, "cpu")
        assert [len(source) for source in data.sources] == [8, 3]
        assert data.sources[0].group.tolist() == [0, 0, 1, 1, 2, 3, 3, 3]
        assert data.sources[1].group.tolist() == [3, 3, 3]
        assert (data.pairs, data.groups, data.correspondences) == (11, 4, 40 + 27 + 27)
        assert len(data.pyramids) == 10 + 3 + 3
        for number, pair in enumerate((0, 2, 3)):
            assert_pair_is(data, 0, 5 + number, scene, pair)
            assert_pair_is(data, 1, number, scene, pair)
        used = [set(source.images.flatten().tolist()) for source in data.sources]
        assert not used[0] & used[1]

    def test_pixels_are_kept_as_asked(self, scene):
        half, whole = (load_training_data([[scene]], 6, "cpu", dtype) for dtype in (torch.float16, torch.float32))
        place = torch.tensor([0]), torch.tensor([[10.0, 10.0]]), torch.tensor([30.0]), torch.tensor([0.0])
        patches = [data.pyramids.sample(*place, Cartesian(1, 16, 16)) for data in (half, whole)]
        assert 0 < (patches[0] - patches[1]).abs().max() < 1e-3
        default = load_training_data([[scene]], 6, "cpu").pyramids.sample(*place, Cartesian(1, 16, 16))
        assert torch.equal(default, patches[0])


class TestTooLittle:
    def test_a_file_that_gives_nothing_is_passed_over(self, scene, photos):
        data = load_training_data([[photos, scene, photos]], 12, "cpu")
        assert (data.pairs, data.correspondences, data.groups) == (1, 12, 1)
        assert_pair_is(data, 0, 0, scene, 2)

    def test_a_source_that_gives_nothing(self, scene, photos):
        with pytest.raises(LogpolarError, match=r"photos\.h5.*no image pair to train on has 12 or more"):
            load_training_data([[scene], [photos]], 12, "cpu")

    def test_a_file_that_is_not_complete(self, tmp_path):
        images = [make_image("a.png", 20), make_image("b.png", 20, seed=1)]
        path = write_file(tmp_path / "half.h5", images, [make_pair(*images, 9)], finish=False)
        with pytest.raises(LogpolarError, match=r"half\.h5: incomplete"):
            load_training_data([[path]], 6, "cpu")
