"""Alignment of cameras to the truth, where the truth was moved by a known similarity and disturbed by known amounts."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest

from logpolar.evaluation.alignment import Poses, Similarity, align, pose_errors


def turn(x: float, y: float, z: float) -> np.ndarray:
    """The rotation by an axis whose length is the angle in degrees."""
    return cv2.Rodrigues(np.radians([x, y, z]))[0]


@pytest.fixture
def truth() -> Poses:
    random = np.random.default_rng(3)
    rotations = [turn(*random.uniform(-40, 40, 3)) for _ in range(12)]
    return Poses.of(list(zip(rotations, random.uniform(-5, 5, (12, 3)), strict=True)))


MOVE = Similarity(turn(20, -150, 70), 0.037, np.array([4.0, -11.0, 2.5]))


class TestSimilarity:
    def test_points_are_seen_alike(self, truth):
        """In camera axes a point of the moved world is the same but for the unit of length."""
        point = np.array([1.0, 2.0, 30.0])
        moved_point = MOVE.scale * MOVE.rotation @ point + MOVE.shift
        moved = MOVE.of(truth)
        before = np.einsum("nij,nj->ni", truth.rotations, point - truth.centres)
        after = np.einsum("nij,nj->ni", moved.rotations, moved_point - moved.centres)
        np.testing.assert_allclose(after, MOVE.scale * before, atol=1e-12)

    def test_extent_by_hand(self):
        centres = np.array([[0, 0, 0], [2, 0, 0], [-2, 0, 0], [4, 0, 0], [-100, 0, 0]], float)
        assert Poses(np.tile(np.eye(3), (5, 1, 1)), centres).extent == 2


class TestAlignment:
    def assert_aligned(self, found: Poses, truth: Poses, degrees, fractions, tolerance: float = 1e-6) -> None:
        errors = pose_errors(align(found, truth, truth.extent).of(found), truth, truth.extent)
        np.testing.assert_allclose(errors.degrees, degrees, atol=tolerance)
        np.testing.assert_allclose(errors.fractions, fractions, atol=tolerance)

    def test_a_moved_model_has_no_error(self, truth):
        self.assert_aligned(MOVE.of(truth), truth, 0, 0)
        found = align(MOVE.of(truth), truth, truth.extent)
        assert found.scale == pytest.approx(1 / MOVE.scale)
        np.testing.assert_allclose(found.rotation, MOVE.rotation.T, atol=1e-9)

    def test_wrong_cameras_are_told_exactly(self, truth):
        """Five of twelve are wrong by known amounts: the others decide."""
        degrees, fractions = np.zeros(12), np.zeros(12)
        degrees[[1, 4]], fractions[[4, 7, 9, 10]] = (30, 90), (0.5, 3, 0.25, 8)
        rotations, centres = truth.rotations.copy(), truth.centres.copy()
        for number in np.flatnonzero(degrees):
            rotations[number] = turn(0, degrees[number], 0) @ rotations[number]
        for number in np.flatnonzero(fractions):
            direction = np.roll([0.6, 0.0, -0.8], number)
            centres[number] += fractions[number] * truth.extent * direction
        self.assert_aligned(MOVE.of(Poses(rotations, centres)), truth, degrees, fractions)

    def test_small_errors_are_shared_out(self, truth):
        """Cameras turned to and fro by 1 degree: the mean rotation is the true one."""
        signs = np.where(np.arange(12) % 2, 1.0, -1.0)
        rotations = np.array([r @ turn(0, 0, sign) for r, sign in zip(truth.rotations, signs, strict=True)])
        self.assert_aligned(MOVE.of(replace(truth, rotations=rotations)), truth, 1.0, 0)

    def test_cameras_on_a_line(self, truth):
        """Centres alone would leave the turn around the line open."""
        line = replace(truth, centres=np.outer(np.arange(12.0), [1.0, 2.0, -1.0]))
        self.assert_aligned(MOVE.of(line), line, 0, 0)

    def test_two_cameras(self, truth):
        two = Poses(truth.rotations[:2], truth.centres[:2])
        self.assert_aligned(MOVE.of(two), two, 0, 0)

    def test_too_few_or_all_in_one_place(self, truth):
        one = Poses(truth.rotations[:1], truth.centres[:1])
        assert align(one, one, 1.0) is None
        assert align(replace(truth, centres=np.zeros((12, 3))), truth, 1.0) is None
        assert align(Poses.of([]), Poses.of([]), 1.0) is None

    def test_what_agrees(self, truth):
        errors = pose_errors(truth, replace(truth, centres=truth.centres + np.array([0.05, 0, 0])), 1.0)
        assert errors.agree.all()
        assert not pose_errors(truth, replace(truth, centres=truth.centres + np.array([0.11, 0, 0])), 1.0).agree.any()
        turned = np.array([turn(5.1, 0, 0) @ rotation for rotation in truth.rotations])
        assert not pose_errors(truth, replace(truth, rotations=turned), 1.0).agree.any()
