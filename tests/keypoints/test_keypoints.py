from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from logpolar.errors import KeypointError
from logpolar.keypoints import DEFAULT_ANGLE, DEFAULT_SIZE, Keypoints, normalise_degrees


def some_keypoints(count: int = 20, seed: int = 0) -> Keypoints:
    random = np.random.default_rng(seed)
    return Keypoints.from_points(
        random.uniform(-5, 2000, (count, 2)),
        random.uniform(0.5, 80, count),
        random.uniform(0, 360, count),
        random.random(count),
    )


def assert_same(a: Keypoints, b: Keypoints, *, response: bool = False) -> None:
    np.testing.assert_allclose(a.xy, b.xy, atol=1e-3)
    np.testing.assert_allclose(a.size, b.size, rtol=1e-5)
    assert np.abs((a.angle - b.angle + 180) % 360 - 180).max(initial=0) < 1e-3
    if response:
        np.testing.assert_allclose(a.response, b.response)


class TestDefaults:
    def test_bare_positions_get_the_documented_size_and_angle(self):
        keypoints = Keypoints.from_points([[3, 4], [5, 6]])
        assert keypoints.size.tolist() == [DEFAULT_SIZE] * 2
        assert keypoints.angle.tolist() == [DEFAULT_ANGLE] * 2
        assert keypoints.response.tolist() == [1, 1]

    def test_one_number_stands_for_all(self):
        assert Keypoints.from_points(np.zeros((3, 2)), size=7).size.tolist() == [7, 7, 7]

    def test_arrays_are_float32_whatever_came_in(self):
        keypoints = Keypoints.from_points(np.zeros((2, 2), np.int64), size=np.array([1, 2]))
        assert {keypoints.xy.dtype, keypoints.size.dtype, keypoints.angle.dtype} == {np.dtype(np.float32)}

    def test_wrong_lengths_are_refused(self):
        with pytest.raises(KeypointError, match="3 keypoints"):
            Keypoints.from_points(np.zeros((3, 2)), size=[1, 2])

    @pytest.mark.parametrize("shape", [(2, 3), (2, 5), (4,), (1, 2, 2)])
    def test_other_shapes_are_refused(self, shape):
        with pytest.raises(KeypointError, match=r"\(N, 2\)"):
            Keypoints.from_points(np.zeros(shape))

    def test_double_precision_is_converted(self):
        keypoints = Keypoints(np.zeros((2, 2)), np.ones(2), np.zeros(2), np.array([1, 2]))
        assert {values.dtype for values in vars(keypoints).values()} == {np.dtype(np.float32)}

    def test_empty(self):
        assert len(Keypoints.empty()) == 0
        assert len(Keypoints.from_points([])) == 0


class TestCheck:
    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("size", 0, "size"),
            ("size", -1, "size"),
            ("size", np.nan, "size"),
            ("angle", np.inf, "finite"),
            ("xy", np.nan, "finite"),
        ],
    )
    def test_names_the_first_bad_keypoint(self, field, value, message):
        keypoints = some_keypoints(5)
        getattr(keypoints, field)[3] = value
        with pytest.raises(KeypointError, match=rf"1 of 5 keypoints .*{message}.* number 3"):
            keypoints.check()

    def test_positions_outside_the_image_are_fine(self):
        Keypoints.from_points([[-1e6, 1e6]]).check()
        assert len(Keypoints.from_points([[-1e6, 1e6]])) == 1


def test_strongest_keeps_the_order_of_equal_responses():
    keypoints = Keypoints.from_points([[0, 0], [1, 0], [2, 0], [3, 0]], response=[1, 2, 2, 0])
    assert keypoints.strongest(3).xy[:, 0].tolist() == [1, 2, 0]


def test_one_after_the_other():
    first, second = some_keypoints(3, seed=1), some_keypoints(4, seed=2)
    both = first + second
    assert_same(both[:3], first, response=True)
    assert_same(both[3:], second, response=True)


def test_table_has_a_row_a_keypoint():
    keypoints = Keypoints.from_points([[1, 2], [3, 4]], size=[5, 6], angle=[7, 8])
    assert keypoints.table.tolist() == [[1, 2, 5, 7], [3, 4, 6, 8]]


def test_resize_follows_pixel_centres():
    # Halving an image of 4 pixels: the old pixels 0 and 1 (centre 0.5) become the new pixel 0.
    keypoints = Keypoints.from_points([[0.5, 2.5]], size=8).resized(0.5, 0.5)
    np.testing.assert_allclose(keypoints.xy, [[0, 1]])
    assert keypoints.size[0] == 4


@given(st.floats(-1e4, 1e4), st.floats(0.05, 20))
def test_resize_and_back(position, factor):
    keypoints = Keypoints.from_points([[position, -position]], size=3)
    back = keypoints.resized(factor, factor).resized(1 / factor, 1 / factor)
    np.testing.assert_allclose(back.xy, keypoints.xy, atol=0.02)
    np.testing.assert_allclose(back.size, 3, rtol=1e-5)


@given(st.floats(-1e5, 1e5, width=32))
def test_degrees_are_always_below_360(angle):
    turned = normalise_degrees(np.array([angle], np.float32))[0]
    assert 0 <= turned < 360


class TestOpenCV:
    def test_round_trip(self):
        keypoints = some_keypoints()
        assert_same(Keypoints.from_opencv(keypoints.to_opencv()), keypoints, response=True)

    def test_missing_angle_and_size(self):
        keypoints = Keypoints.from_opencv([cv2.KeyPoint(1, 2, 0, -1)])
        assert (keypoints.size[0], keypoints.angle[0]) == (DEFAULT_SIZE, DEFAULT_ANGLE)

    def test_empty(self):
        assert len(Keypoints.from_opencv([])) == 0
        assert Keypoints.empty().to_opencv() == []


class TestColmap:
    def test_round_trip(self):
        keypoints = some_keypoints()
        assert_same(Keypoints.from_colmap(keypoints.to_colmap()), keypoints)

    def test_half_pixel_sigma_and_radians(self):
        row = Keypoints.from_points([[10, 20]], size=6, angle=90).to_colmap()[0]
        np.testing.assert_allclose(row, [10.5, 20.5, 3, np.pi / 2], rtol=1e-6)

    def test_affine_rows_of_a_similarity_are_the_four_column_rows(self):
        keypoints = some_keypoints()
        x, y, sigma, radians = keypoints.to_colmap().T
        affine = np.stack(
            [x, y, sigma * np.cos(radians), -sigma * np.sin(radians), sigma * np.sin(radians), sigma * np.cos(radians)],
            axis=1,
        )
        assert_same(Keypoints.from_colmap(affine), keypoints)

    def test_positions_only(self):
        assert Keypoints.from_colmap([[0.5, 0.5]]).xy.tolist() == [[0, 0]]

    def test_other_shapes_are_refused(self):
        with pytest.raises(KeypointError, match="columns"):
            Keypoints.from_colmap(np.zeros((2, 3)))


@pytest.fixture(scope="module")
def kornia_feature():
    """kornia's newest versions, with the conventions that are tested here, want Python 3.11."""
    return pytest.importorskip("kornia.feature")


class TestLafs:
    def test_round_trip(self):
        keypoints = some_keypoints()
        assert_same(Keypoints.from_lafs(keypoints.to_lafs()), keypoints)

    def test_kornia_builds_the_same_frames_from_the_opposite_angle(self, kornia_feature):
        keypoints = some_keypoints()
        expected = kornia_feature.laf_from_center_scale_ori(
            torch.from_numpy(keypoints.xy)[None],
            torch.from_numpy(6 * keypoints.size)[None, :, None, None],
            torch.from_numpy(-keypoints.angle)[None, :, None],
        )[0]
        np.testing.assert_allclose(keypoints.to_lafs(), expected.numpy(), atol=2e-3)

    def test_kornia_reads_back_our_angle_with_the_opposite_sign(self, kornia_feature):
        keypoints = some_keypoints()
        orientation = kornia_feature.get_laf_orientation(torch.from_numpy(keypoints.to_lafs())[None])[0, :, 0]
        difference = (orientation.numpy() + keypoints.angle + 180) % 360 - 180
        assert np.abs(difference).max() < 1e-2

    def test_scale_is_what_the_maker_says_it_is(self):
        keypoints = some_keypoints()
        np.testing.assert_allclose(Keypoints.from_lafs(keypoints.to_lafs(1.0), 1.0).size, keypoints.size, rtol=1e-5)


class TestInBands:
    def test_neighbours_follow_each_other(self):
        keypoints = some_keypoints(500)
        order = keypoints.in_bands()
        assert sorted(order.tolist()) == list(range(500))
        x, y = keypoints.xy[order].T
        band = np.floor(y / 64)
        assert (np.diff(band) >= 0).all()
        assert (np.diff(x)[np.diff(band) == 0] >= 0).all()

    def test_impossible_ones_are_left_to_check(self):
        keypoints = Keypoints.from_points([[np.nan, np.inf], [-np.inf, np.nan], [3, 4]])
        assert sorted(keypoints.in_bands().tolist()) == [0, 1, 2]

    def test_of_nothing(self):
        assert Keypoints.empty().in_bands().shape == (0,)
