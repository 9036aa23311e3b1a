from __future__ import annotations

import cv2
import numpy as np
import pytest

from hpatches_folders import SIZE, homography, pairs_of, write_sequence
from logpolar.errors import ImageError, LogpolarError
from logpolar.evaluation.hpatches_sequences import SKIPPED, Sequences
from logpolar.evaluation.options import HPatchesOptions


class TestPairs:
    def test_paper(self, sequences):
        pairs, _ = pairs_of(sequences)
        assert [(named.sequence, named.split, named.number) for named in pairs] == [
            ("i_one", "illumination", 2),
            ("v_one", "viewpoint", 2),
            ("v_two", "viewpoint", 2),
        ]
        for named in pairs:
            np.testing.assert_allclose(named.homography, homography(2), rtol=1e-12)
            assert named.pair.first.shape == SIZE[::-1]
            assert len(named.pair.correspondences) > 30

    def test_full(self, sequences):
        pairs, _ = pairs_of(sequences, mode="full")
        assert [(named.sequence, named.number) for named in pairs] == [
            (name, number) for name in ("i_one", "v_one", "v_two") for number in range(2, 7)
        ]
        assert len({id(named.pair.first) for named in pairs}) == 3

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"rotation": 90.0},
            {"rotation": 33.0},
            {"zoom": 0.5},
            {"zoom": 2.0, "rotation": -140.0},
            {"max_size": 160},
            {"max_size": 160, "zoom": 2.0},
        ],
        ids=str,
    )
    def test_keypoints_lie_where_the_homography_sends_them(self, sequences, options):
        """Not only within 1.5 px, as they must: without bias, and turned and scaled as the pixels are."""
        pairs, _ = pairs_of(sequences, **options)
        found, named = [each.pair.correspondences for each in pairs], pairs[1]
        first, second = named.pair.correspondences.first, named.pair.correspondences.second
        sent = cv2.perspectiveTransform(first.xy[:, None].astype(np.float64), named.homography)[:, 0]
        assert sum(map(len, found)) > 60
        assert np.abs(np.median(second.xy - sent, axis=0)).max() < 0.12
        everything = np.concatenate([each.log_scale_ratio for each in found])
        assert abs(np.median(everything)) < 0.1
        assert abs(np.median(np.concatenate([each.angle_residual for each in found]))) < 2

    def test_altered_size(self, sequences):
        named = pairs_of(sequences, zoom=0.5, rotation=90.0)[0][0]
        assert named.pair.first.shape == (200, 240)
        assert named.pair.second.shape == (120, 100)
        assert pairs_of(sequences, zoom=4.0, max_size=120)[0][0].pair.second.shape == (400, 480)

    def test_angle_filter(self, sequences):
        strict, free = (pairs_of(sequences, max_angle=angle)[0] for angle in (5.0, 180.0))
        assert max(np.abs(named.pair.correspondences.angle_residual).max() for named in strict) <= 5
        assert max(np.abs(named.pair.correspondences.angle_residual).max() for named in free) > 25

    def test_most_keypoints(self, sequences):
        assert all(len(named.pair.second_keypoints) == 50 for named in pairs_of(sequences, keypoints=50)[0])

    def test_repeatable(self, sequences):
        one, other = (pairs_of(sequences, mode="full", max_size=160)[0] for _ in range(2))
        for left, right in zip(one, other, strict=True):
            np.testing.assert_array_equal(left.pair.correspondences.indices, right.pair.correspondences.indices)

    @pytest.mark.parametrize(
        "wrong",
        [{"mode": "half"}, {"zoom": 5.0}, {"zoom": float("nan")}, {"rotation": 181.0}, {"keypoints": 0}],
        ids=str,
    )
    def test_impossible_options(self, wrong):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            HPatchesOptions(**wrong)


class TestPaperMode:
    def names(self, sequences, **options):
        return [named.sequence for named in pairs_of(sequences, **options)[0]]

    def test_skipped(self, many_sequences):
        assert len(SKIPPED) == 12
        assert self.names(many_sequences) == ["i_a", "i_b", "v_a", "v_b", "v_c"]

    def test_limit(self, many_sequences):
        """The sequence that brings a split above the limit is the last; the other split goes on."""
        count = len(pairs_of(many_sequences)[0][0].pair.correspondences)
        assert self.names(many_sequences, pool_limit=count - 1) == ["i_a", "v_a"]
        assert self.names(many_sequences, pool_limit=count) == ["i_a", "i_b", "v_a", "v_b"]
        assert self.names(many_sequences, pool_limit=0) == ["i_a", "v_a"]

    def test_nothing_but_skipped(self, photo, tmp_path):
        write_sequence(tmp_path / "v_there", photo, (1, 2))
        with pytest.raises(LogpolarError, match="leaves out"):
            Sequences(tmp_path, HPatchesOptions())

    def test_full_needs_all_images(self, many_sequences):
        with pytest.raises(LogpolarError, match=r"i_a: no image 3 \(3.ppm, 3.png, 3.jpg\)"):
            Sequences(many_sequences, HPatchesOptions(mode="full"))


class TestBrokenFolders:
    @pytest.fixture
    def sequence(self, photo, tmp_path):
        write_sequence(tmp_path / "v_one", photo, (1, 2))
        return tmp_path / "v_one"

    def assert_refused(self, sequence, match):
        with pytest.raises(LogpolarError, match=match) as caught:
            Sequences(sequence.parent, HPatchesOptions())  # at once, before any pair is asked for
        assert "\n" not in str(caught.value)

    def test_no_sequences(self, tmp_path):
        (tmp_path / "other").mkdir()
        self.assert_refused(tmp_path / "any", "no HPatches sequences")

    def test_no_folder(self, tmp_path):
        self.assert_refused(tmp_path / "missing" / "any", "no such file")

    def test_one_image(self, sequence):
        (sequence / "2.ppm").unlink()
        self.assert_refused(sequence, "v_one: no image 2")

    def test_no_homography(self, sequence):
        (sequence / "H_1_2").unlink()
        self.assert_refused(sequence, "v_one: no homography H_1_2")

    @pytest.mark.parametrize(
        ("text", "match"),
        [
            (b"", "3 x 3"),
            (b"1 0 0\n0 1 0\n", "3 x 3"),
            (b"1 0 0\n0 1\n0 0 1\n", "3 x 3"),
            (b"1 0 0\n0 one 0\n0 0 1\n", "3 x 3"),
            (b"\xff\xfe\x00", "3 x 3"),
            (b"1 0 0\n0 nan 0\n0 0 1\n", "not finite"),
            (b"1 2 3\n4 5 6\n7 8 9\n", "singular"),
            (b"0 0 0\n0 0 0\n0 0 0\n", "singular"),
        ],
    )
    def test_malformed_homography(self, sequence, text, match):
        (sequence / "H_1_2").write_bytes(text)
        self.assert_refused(sequence, f"H_1_2: .*{match}")

    def test_unreadable_image(self, sequence):
        (sequence / "2.ppm").write_bytes(b"P6 nothing")
        with pytest.raises(ImageError, match=r"2\.ppm: not an image"):
            list(Sequences(sequence.parent, HPatchesOptions()).pairs())
