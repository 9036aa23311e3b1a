from __future__ import annotations

from dataclasses import replace

import h5py
import numpy as np
import pytest

from dataset_files import (
    NAMES,
    SETTINGS,
    SUMMARY,
    assert_same_correspondences,
    assert_same_keypoints,
    make_image,
    make_pair,
    write,
)
from helpers import assert_same_content, content_of
from logpolar.datasets import writing
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.writing import CorrespondenceWriter
from logpolar.errors import StorageError
from logpolar.keypoints import Keypoints


class TestWriting:
    def test_many_small_additions_make_one_large_one(self, tmp_path):
        """Each comes with the smallest values so far, from which HDF5 counts when it packs a chunk anew."""
        images, pairs = [], []
        for seed in range(15):
            image = make_image(f"{seed}", 5, seed=seed)
            lower = image.keypoints.table - np.float32(20.123 * seed)
            points = Keypoints(lower[:, :2], image.keypoints.size, image.keypoints.angle, image.keypoints.response)
            images.append(replace(image, keypoints=points))
            pairs.append(make_pair(images[seed // 2], images[seed], 5, seed))
            pairs[-1].found.warp[:] -= 10 + 0.777 * seed
            pairs[-1].found.log_scale_ratio[:] -= 2 + 0.01 * seed  # away from 0, of which there is a test below
            pairs[-1].found.angle_residual[:] -= 30 + 0.1 * seed
        write(tmp_path / "large.h5", images, pairs)
        with CorrespondenceWriter(tmp_path / "small.h5", SETTINGS) as writer:
            for image, pair in zip(images, pairs, strict=True):
                writer.add([image], [])
                writer.add([], [pair])
        assert_same_content(tmp_path / "large.h5", tmp_path / "small.h5")
        with CorrespondenceFile(tmp_path / "small.h5") as file:
            for number, (image, pair) in enumerate(zip(images, pairs, strict=True)):
                assert_same_keypoints(file.read_keypoints(number), image.keypoints)
                assert_same_correspondences(file.read_correspondences(number), pair.found)

    def test_the_smallest_numbers_survive_many_additions(self, path):
        """0.001 must not become 0, whatever comes after it."""
        image = make_image("a")
        given = []
        with CorrespondenceWriter(path, SETTINGS) as writer:
            writer.add([image], [])
            for seed in range(10):
                pair = make_pair(image, image, 5, seed)
                pair.found.log_scale_ratio[:2] = 0.001, -0.001
                pair.found.angle_residual[:2] = 0.01, -0.01
                given.append(pair.found)
                writer.add([], [pair])
        with CorrespondenceFile(path) as file:
            for number, found in enumerate(given):
                assert_same_correspondences(file.read_correspondences(number), found)

    def test_more_than_a_chunk(self, path):
        images = [make_image("a", 5000), make_image("b", 3000, seed=1), make_image("c", 200, seed=2)]
        pairs = [make_pair(images[0], images[1], 2500), make_pair(images[1], images[2], 150)]
        write(path, images[:2], pairs[:1])
        write(path, images[2:], pairs[1:])
        with CorrespondenceFile(path) as file:
            for number in (0, 1):
                assert_same_correspondences(file.read_correspondences(number), pairs[number].found)

    def test_is_incomplete_until_it_is_finished(self, path):
        with CorrespondenceWriter(path, SETTINGS) as writer:
            for state in (False, True):
                assert writer.complete is state
                with CorrespondenceFile(path) as file:
                    assert file.complete is state
                    assert file.summary.get("left_out") == (SUMMARY["left_out"] if state else None)
                writer.finish(SUMMARY)
        assert CorrespondenceWriter(path, SETTINGS).complete is True

    def test_is_continued_where_it_stopped(self, path):
        images = [make_image(name, seed=n) for n, name in enumerate(NAMES)]
        write(path, images[:2], [make_pair(images[0], images[1])])
        with CorrespondenceWriter(path, SETTINGS) as writer:
            assert writer.images == {NAMES[0]: 0, NAMES[1]: 1}
            assert writer.pairs == {(NAMES[0], NAMES[1])}
            assert writer.complete is False
            writer.add(images[2:], [make_pair(images[2], images[1], 4, 9)])
            assert writer.images == {name: number for number, name in enumerate(NAMES)}
            assert writer.pairs == {(NAMES[0], NAMES[1]), (NAMES[2], NAMES[1])}
        with CorrespondenceFile(path) as file:
            assert file.pair_images.tolist() == [[0, 1], [2, 1]]
            assert_same_correspondences(file.read_correspondences(1), make_pair(images[2], images[1], 4, 9).found)

    def test_a_new_file_has_nothing_to_continue(self, path):
        with CorrespondenceWriter(path, SETTINGS) as writer:
            assert (writer.images, writer.pairs, writer.complete) == ({}, set(), False)

    def test_overwriting_forgets_what_was_there(self, scene, path):
        with CorrespondenceWriter(path, {"source": "else"}, overwrite=True) as writer:
            assert (writer.images, writer.pairs, writer.complete) == ({}, set(), False)

    def test_two_at_a_time_are_refused(self, path):
        with CorrespondenceWriter(path, SETTINGS), pytest.raises(StorageError, match="another process is writing"):
            CorrespondenceWriter(path, SETTINGS)

    def test_nothing_in_the_file_needs_python_to_read_it(self, scene, path):
        """Numbers and UTF-8 text, no pickled objects."""
        kinds: dict[str, np.dtype] = {}

        def visit(name, item):
            kinds.update({f"{name}@{key}": item.attrs.get_id(key).dtype for key in item.attrs})
            if isinstance(item, h5py.Dataset):
                kinds[name] = item.dtype

        with h5py.File(path) as file:
            visit("", file)
            file.visititems(visit)
        assert len(kinds) > 20
        for name, kind in kinds.items():
            text = h5py.check_string_dtype(kind)
            assert kind.kind in "iufb" or (text is not None and text.encoding == "utf-8"), name

    def test_positions_take_few_bytes(self, path):
        """What rounding and packing are for: 3 of the 8 bytes that float32 takes, within 1000 px."""
        write(path, [make_image("a", 4096)])
        with h5py.File(path) as file:
            assert file["keypoints/xy"].id.get_storage_size() < 4.5 * 4096


class Killed(BaseException):
    """Stands for the process being killed: nothing after it runs, no clean-up either."""


@pytest.mark.parametrize("step", ["_append_images", "_append_pairs"])
def test_killed_in_the_middle_of_an_addition_the_file_is_as_before(path, monkeypatch, step):
    images = [make_image(name, seed=n) for n, name in enumerate(NAMES)]
    pairs = [make_pair(images[0], images[1]), make_pair(images[2], images[0], 5, 1)]
    writer = CorrespondenceWriter(path, SETTINGS).__enter__()
    writer.add(images[:2], pairs[:1])
    before = content_of(path)
    original = getattr(writing, step)

    def die(*arguments):
        original(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(writing, step, die)
        with pytest.raises(Killed):
            writer.add(images[2:], pairs[1:])
    writer._lock._held.close()  # what the system does for a dead process

    after = content_of(path)
    assert before.keys() == after.keys()
    for name in before:
        np.testing.assert_array_equal(after[name], before[name])
    with CorrespondenceWriter(path, SETTINGS) as again:
        assert list(again.images) == NAMES[:2]
        again.add(images[2:], pairs[1:])
    with CorrespondenceFile(path) as file:
        assert [entry.name for entry in file.images] == NAMES
        assert file.counts()["correspondences"] == 12
        for number in (0, 1):
            assert_same_correspondences(file.read_correspondences(number), pairs[number].found)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_an_addition_that_is_refused_does_not_spoil_the_next(path):
    images = [make_image(name, seed=n) for n, name in enumerate(NAMES)]
    with CorrespondenceWriter(path, SETTINGS) as writer:
        writer.add(images[:1], [])
        with pytest.raises(KeyError):
            writer.add(images[1:], [make_pair(images[0], replace(images[1], name="nowhere"))])
        writer.add(images[1:], [make_pair(images[0], images[2])])
    with CorrespondenceFile(path) as file:
        assert [entry.name for entry in file.images] == NAMES
        assert file.pair_images.tolist() == [[0, 2]]
        assert len(file.column("correspondences", "log_scale_ratio")) == 7


def test_a_start_that_fails_leaves_nothing(path, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    writer = CorrespondenceWriter(path, SETTINGS)
    with monkeypatch.context() as patch:
        patch.setattr(writing, "_create_tables", full)
        with pytest.raises(StorageError, match="cannot be written"):
            writer.__enter__()
    assert list(path.parent.iterdir()) == []
    write(path, [make_image("a")])
