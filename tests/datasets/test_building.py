from __future__ import annotations

import sys

import numpy as np
import pytest

from logpolar.datasets.building import in_batches, open_detector, read_report, split_images, work_through
from logpolar.datasets.options import KeypointRules, SceneOptions, SplitRules, stored_settings
from logpolar.datasets.writing import CorrespondenceWriter, ImageRecord
from logpolar.errors import ModelError, StorageError
from logpolar.images import encode_gray
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import SiftDetector
from logpolar.models.detectors import NetworkDetector

NAMES = [f"deep/{number}.jpg" for number in range(40)] + ["ø.jpg"]


class TestSplit:
    @pytest.mark.parametrize("count", [0, 1, 2, 7, 41])
    @pytest.mark.parametrize("share", [0, 0.1, 0.3, 0.7, 1])
    def test_share_is_exact(self, count, share):
        parts = split_images(NAMES[:count], SplitRules(validation=share))
        assert list(parts) == NAMES[:count]
        validating = sum(part == "validation" for part in parts.values())
        assert validating == round(share * count)
        assert sum(part == "train" for part in parts.values()) == count - validating

    def test_is_the_same_in_every_run(self):
        """Hashes of text differ from one Python process to the next; these must not."""
        parts = split_images(["a.jpg", "b.jpg", "c.jpg", "d.jpg", "e.jpg"], SplitRules(validation=0.4, seed=3))
        assert [name for name, part in parts.items() if part == "validation"] == ["c.jpg", "d.jpg"]

    def test_seed_decides(self):
        one, same, other = (split_images(NAMES, SplitRules(seed=seed)) for seed in (1, 1, 2))
        assert one == same != other

    def test_order_of_the_names_does_not_matter(self):
        assert split_images(NAMES[::-1], SplitRules()) == split_images(NAMES, SplitRules())

    def test_one_more_image_moves_at_most_one_other(self):
        for count in range(1, len(NAMES)):
            before, after = (split_images(NAMES[:number], SplitRules()) for number in (count, count + 1))
            assert sum(after[name] != part for name, part in before.items()) <= 1

    def test_a_larger_share_takes_more_of_the_same(self):
        small, large = (
            {name for name, part in split_images(NAMES, SplitRules(validation=share)).items() if part == "validation"}
            for share in (0.2, 0.5)
        )
        assert small < large

    def test_all_of_it_is_test_data_if_told(self):
        assert split_images(NAMES, SplitRules(validation=0.5, test=True)) == dict.fromkeys(NAMES, "test")

    def test_a_name_that_is_not_utf8_has_a_part_too(self):
        """As files are called that were made under another encoding."""
        assert len(split_images(["latin\udce9.png", "b.png"], SplitRules())) == 2


class TestBatches:
    def test_hold_so_many_and_the_last_what_is_left(self):
        stored = []
        in_batches(range(7), 3, stored.append)
        assert stored == [[0, 1, 2], [3, 4, 5], [6]]

    @pytest.mark.parametrize("count", [0, 6])
    def test_are_never_empty(self, count):
        stored = []
        in_batches(range(count), 3, stored.append)
        assert stored == [[0, 1, 2], [3, 4, 5]][: count // 3]

    def test_are_stored_as_soon_as_they_are_full(self):
        stored, seen = [], []

        def items():
            for item in range(4):
                seen.append(len(stored))
                yield item

        in_batches(items(), 2, stored.append)
        assert seen == [0, 0, 1, 1]

    @pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
    def test_what_is_there_is_stored_when_the_items_stop_coming(self, error):
        def items():
            yield from range(5)
            raise error("stop")

        stored = []
        with pytest.raises(error):
            in_batches(items(), 3, stored.append)
        assert stored == [[0, 1, 2], [3, 4]]

    def test_a_batch_that_cannot_be_stored_is_not_tried_again(self):
        tried = []

        def store(batch):
            tried.append(batch)
            raise StorageError("disk full")

        with pytest.raises(StorageError, match="disk full"):
            in_batches(range(7), 3, store)
        assert tried == [[0, 1, 2]]


def double(number: int) -> int:
    return 2 * number


class TestWork:
    def test_results_come_with_their_tasks(self):
        assert list(work_through(double, [1, 2], "number", 5, 1, progress=False)) == [(1, 2), (2, 4)]

    def test_the_bar_is_for_terminals_and_for_those_who_ask(self, capsys, monkeypatch):
        list(work_through(double, [1, 2, 3], "image", 5, 1, progress=True))
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        list(work_through(double, [1, 2, 3], "image", 5, 1, progress=False))
        assert capsys.readouterr() == ("", "")
        list(work_through(double, [1, 2, 3], "image", 5, 1, progress=True))
        bar = capsys.readouterr().err
        assert "image" in bar
        assert "2/5" in bar
        assert "5/5" in bar


def test_report_is_what_the_finished_file_says(tmp_path):
    image = ImageRecord(
        "a", "train", (4, 3), Keypoints.from_points([[1, 1]]), encode_gray(np.zeros((3, 4), np.uint8), 100)
    )
    with CorrespondenceWriter(tmp_path / "f.h5", {}) as writer:
        writer.add([image], [])
        writer.finish({"left_out": {"b": "b: not an image"}})
    report = read_report(tmp_path / "f.h5", was_complete=False)
    assert report.left_out == {"b": "b: not an image"}
    assert (report.counts["images"], report.counts["keypoints"], report.counts["pairs"]) == (1, 1, 0)


def test_sift_keeps_the_rules(gray):
    assert open_detector(KeypointRules(30, 0.01)) == SiftDetector(30, 0.01)
    assert len(open_detector(KeypointRules(max_keypoints=30))(gray)) == 30
    faint, clear = (len(open_detector(KeypointRules(contrast=value))(gray[:200, :200])) for value in (0.01, 0.05))
    assert clear < faint


def test_a_network_detector_keeps_the_rules(gray):
    found = open_detector(KeypointRules(detector="logpolar", max_keypoints=30))(gray)
    assert np.array_equal(found.table, NetworkDetector("logpolar", 30)(gray).table)
    with pytest.raises(ModelError, match="no-such-detector"):
        open_detector(KeypointRules(detector="no-such-detector"))


def test_settings_of_files_of_version_0_1_do_not_change():
    assert "detector" not in stored_settings(SceneOptions())["keypoints"]
    named = SceneOptions(keypoints=KeypointRules(detector="logpolar"))
    assert stored_settings(named)["keypoints"]["detector"] == "logpolar"
