"""Options and cards of matchers, and what they see of keypoints."""

from __future__ import annotations

import numpy as np
import pytest

from logpolar.keypoints import Keypoints
from logpolar.models.matcher_cards import MatcherCard, MatcherOptions, keypoint_table

CARD = MatcherCard("m", "a matcher", MatcherOptions(width=32, heads=2), "logpolar-96", "abc", {"seed": 1}, {}, "MIT")


class TestOptions:
    @pytest.mark.parametrize(
        "changes", [{"width": 33}, {"heads": 0}, {"layers": 0}, {"width": 8, "heads": 4}, {"width": 64.0}]
    )
    def test_refuses_what_no_network_has(self, changes):
        with pytest.raises(ValueError, match=next(iter(changes))):
            MatcherOptions(**changes)

    def test_multiply_adds_are_those_of_the_matrices(self):
        options = MatcherOptions(width=12, heads=2, layers=1, expansion=2)
        pointwise = 2 * (12 * 36 + 12 * 12) + 12 * 24 + 24 * 12 + 12 * 12  # two attentions, the last step, the head
        pointwise += 2 * 12 * 128  # values of what is looked up by descriptors, and back
        attention = 2 * 12 * (3 * 3 + 5 * 5 + 3 * 5 + 5 * 3) + 2 * 128 * (3 * 5 + 5 * 3)
        assert options.multiply_adds(3, 5) == pointwise * 8 + attention


class TestCard:
    def test_survives_json(self):
        assert MatcherCard.from_json(CARD.to_json()) == CARD

    @pytest.mark.parametrize("text", ["[]", "{}", CARD.to_json().replace('"width": 32', '"width": "32"')])
    def test_refuses_other_json(self, text):
        with pytest.raises(ValueError, match=r"card|width"):
            MatcherCard.from_json(text)


class TestKeypointTable:
    def test_has_the_centre_at_0_and_the_longer_sides_at_1(self):
        keypoints = Keypoints.from_points([[49.5, 24.5], [-0.5, 24.5], [99.5, -0.5]], [1, 2, 4], [0, 90, 180])
        table = keypoint_table(keypoints, (100, 50))
        np.testing.assert_allclose(table[:, :2], [[0, 0], [-1, 0], [1, -0.5]], atol=1e-6)
        np.testing.assert_allclose(table[:, 2], np.log(np.array([1, 2, 4]) / 100) + 5, atol=1e-6)
        np.testing.assert_allclose(table[:, 3], [0, np.pi / 2, np.pi], atol=1e-6)
        assert (table[:, 4:] == 1).all()

    def test_equal_sizes_and_angles_are_unknown(self):
        table = keypoint_table(Keypoints.from_points([[1, 2], [3, 4]], 6.0, 30.0), (100, 50))
        assert (table[:, 2:] == 0).all()
        upright = keypoint_table(Keypoints.from_points([[1, 2], [3, 4]], [2, 3], 0.0), (100, 50))
        assert upright[:, 4:].tolist() == [[1, 0], [1, 0]]

    def test_of_no_keypoints_is_empty(self):
        assert keypoint_table(Keypoints.empty(), (10, 10)).shape == (0, 6)
