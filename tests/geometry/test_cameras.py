from __future__ import annotations

import cv2
import numpy as np
import pytest

from logpolar.geometry.cameras import Camera, Transfer, direction_degrees, rotation_degrees

RANDOM_SEEDS = range(4)


def make_camera(seed: int, width: int = 640, height: int = 480) -> Camera:
    """A camera near the origin, looking at + z, its pixels not square, its principal point off the middle."""
    random = np.random.default_rng(seed)
    fx, fy = random.uniform(400, 900, 2)
    cx, cy = random.uniform(0.3, 0.7, 2) * (width, height)
    rotation = cv2.Rodrigues(random.uniform(-0.4, 0.4, 3))[0]
    return Camera(
        width, height, np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]]), rotation, random.uniform(-0.5, 0.5, 3)
    )


def make_points(seed: int, count: int = 20) -> np.ndarray:
    return np.random.default_rng(100 + seed).uniform([-1, -1, 3], [1, 1, 9], (count, 3))


def project_by_loops(camera: Camera, point) -> tuple[float, float, float]:
    """Pixel and depth of one point, sum by sum."""
    seen = []
    for row in range(3):
        seen.append(sum(camera.rotation[row][k] * point[k] for k in range(3)) + camera.translation[row])
    x, y, z = seen
    fx, fy, cx, cy = camera.matrix[0][0], camera.matrix[1][1], camera.matrix[0][2], camera.matrix[1][2]
    return fx * x / z + cx, fy * y / z + cy, z


def pixels_of(camera: Camera, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    table = np.array([project_by_loops(camera, point) for point in points.tolist()])
    return table[:, :2], table[:, 2]


class TestCamera:
    @pytest.mark.parametrize("seed", RANDOM_SEEDS)
    def test_sees_points_where_slow_sums_put_them(self, seed):
        camera, points = make_camera(seed), make_points(seed)
        xy, depth = camera.see(points)
        expected_xy, expected_depth = pixels_of(camera, points)
        np.testing.assert_allclose(xy, expected_xy, rtol=1e-12)
        np.testing.assert_allclose(depth, expected_depth, rtol=1e-12)

    def test_by_hand(self):
        """One metre to the right and two down at four metres, the camera moved back by one."""
        camera = Camera(9, 7, np.array([[100, 0, 4], [0, 200, 3], [0, 0, 1.0]]), np.eye(3), np.array([0, 0, 1.0]))
        xy, depth = camera.see(np.array([[1.0, 2.0, 3.0]]))
        assert xy.tolist() == [[29.0, 103.0]]
        assert depth.tolist() == [4.0]

    def test_points_behind_have_negative_depth(self):
        assert (make_camera(0).see(-10 * make_points(0))[1] < 0).all()

    def test_no_points(self):
        xy, depth = make_camera(0).see(np.zeros((0, 3)))
        assert xy.shape == (0, 2)
        assert depth.shape == (0,)

    @pytest.mark.parametrize("seed", RANDOM_SEEDS)
    def test_centre_is_the_point_that_the_camera_has_at_its_origin(self, seed):
        camera = make_camera(seed)
        np.testing.assert_allclose(camera.rotation @ camera.centre + camera.translation, 0, atol=1e-12)

    def test_centre_by_hand(self):
        quarter = np.array([[0, 0, -1], [0, 1, 0], [1, 0, 0.0]])  # looks along the world's x axis
        camera = Camera(9, 7, np.eye(3), quarter, np.array([1.0, 2.0, 3.0]))
        assert camera.centre.tolist() == [-3.0, -2.0, 1.0]


class TestResized:
    @pytest.mark.parametrize(("width", "height"), [(320, 240), (1280, 960), (199, 149), (640, 480)])
    def test_points_move_as_the_area_of_the_image_does(self, width, height):
        camera, points = make_camera(1), make_points(1)
        small = camera.resized(width, height)
        before, depth_before = camera.see(points)
        after, depth_after = small.see(points)
        factor = np.array([width / 640, height / 480])
        np.testing.assert_allclose(after, (before + 0.5) * factor - 0.5, rtol=1e-10, atol=1e-10)
        np.testing.assert_array_equal(depth_after, depth_before)
        assert (small.width, small.height) == (width, height)

    def test_corners_of_the_image_stay_corners(self):
        """The image reaches from -0.5 to width - 0.5: the rays through its corners do not change."""
        camera = make_camera(2)
        small = camera.resized(64, 96)
        for x, y, small_x, small_y in ((-0.5, -0.5, -0.5, -0.5), (639.5, 479.5, 63.5, 95.5)):
            ray = np.linalg.solve(camera.matrix, [x, y, 1])
            np.testing.assert_allclose(small.matrix @ ray, [small_x, small_y, 1], atol=1e-12)

    def test_there_and_back(self):
        camera = make_camera(3)
        np.testing.assert_allclose(camera.resized(100, 50).resized(640, 480).matrix, camera.matrix, rtol=1e-12)

    def test_pose_stays(self):
        camera = make_camera(3)
        small = camera.resized(100, 50)
        assert small.rotation is camera.rotation
        assert small.translation is camera.translation


class TestTransfer:
    @pytest.mark.parametrize("seed", RANDOM_SEEDS)
    def test_pixels_of_known_depth_land_where_their_points_are_seen(self, seed):
        first, second = make_camera(seed), make_camera(seed + 50)
        points = make_points(seed)
        here, depth = pixels_of(first, points)
        there, there_depth = pixels_of(second, points)
        x, y, deep = Transfer.between(first, second)(here[:, 0], here[:, 1], depth)
        np.testing.assert_allclose(np.stack([x, y], axis=1), there, rtol=1e-9)
        np.testing.assert_allclose(deep, there_depth, rtol=1e-9)

    def test_formula(self):
        """x' ~ turn (x, y, 1) + shift / depth."""
        transfer = Transfer.between(make_camera(0), make_camera(50))
        x, y, depth = 100.0, 200.0, 5.0
        a, b, c = transfer.infinite @ np.array([x, y, 1]) + transfer.shift / depth
        got = [float(value) for value in transfer(np.array(x), np.array(y), np.array(depth))]
        assert got == pytest.approx([a / c, b / c, c * depth], rel=1e-12)

    def test_there_and_back(self):
        first, second = make_camera(0), make_camera(50)
        x, y, depth = (np.random.default_rng(0).uniform(low, high, 30) for low, high in ((0, 640), (0, 480), (3, 9)))
        back = Transfer.between(second, first)(*Transfer.between(first, second)(x, y, depth))
        for one, other in zip(back, (x, y, depth), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)

    def test_to_itself_is_nothing(self):
        camera = make_camera(0)
        x, y, depth = Transfer.between(camera, camera)(np.array([3.0]), np.array([7.0]), np.array([2.0]))
        assert [float(value[0]) for value in (x, y, depth)] == pytest.approx([3, 7, 2], rel=1e-9)

    def test_rows_and_columns_broadcast(self):
        transfer = Transfer.between(make_camera(0), make_camera(50))
        x, y = np.arange(6.0)[None] * 90, np.arange(4.0)[:, None] * 110
        depth = np.random.default_rng(0).uniform(3, 9, (4, 6))
        grid = transfer(x, y, depth)
        for row in range(4):
            for column in range(6):
                one = transfer(x[0, column : column + 1], y[row], depth[row, column : column + 1])
                assert [float(values[row, column]) for values in grid] == pytest.approx([float(v[0]) for v in one])

    def test_single_precision_in_single_precision_out(self):
        first, second, points = make_camera(0), make_camera(50), make_points(0)
        here, depth = pixels_of(first, points)
        there, _ = pixels_of(second, points)
        columns = (np.float32(values) for values in (here[:, 0], here[:, 1], depth))
        x, y, deep = Transfer.between(first, second)(*columns)
        assert x.dtype == y.dtype == deep.dtype == np.float32
        np.testing.assert_allclose(np.stack([x, y], axis=1), there, atol=0.01)

    def test_far_from_the_origin_of_the_world(self):
        """Coordinates of a national grid: millions of metres, which must cancel before they are rounded to float32."""
        far = np.array([4.4e6, 5.3e6, 300.0])

        def moved(camera: Camera) -> Camera:
            return Camera(640, 480, camera.matrix, camera.rotation, camera.translation - camera.rotation @ far)

        first, second, points = make_camera(0), make_camera(50), make_points(0)
        here, depth = pixels_of(first, points)
        there, _ = pixels_of(second, points)
        columns = (np.float32(values) for values in (here[:, 0], here[:, 1], depth))
        x, y, _ = Transfer.between(moved(first), moved(second))(*columns)
        np.testing.assert_allclose(np.stack([x, y], axis=1), there, atol=0.01)

    def test_unknown_depth_is_no_error(self):
        """Depth 0 is the centre of the first camera; if that is the second's too, it is seen nowhere."""
        camera = Camera(9, 7, np.eye(3), np.eye(3), np.zeros(3))
        with np.errstate(all="raise"):
            x, y, depth = Transfer.between(camera, camera)(np.array([3.0]), np.array([7.0]), np.array([0.0]))
        assert np.isnan([x[0], y[0]]).all()
        assert depth[0] == 0

    def test_behind_the_second_camera(self):
        first = make_camera(0)
        turned = Camera(640, 480, first.matrix, np.diag([-1.0, 1, -1]) @ first.rotation, first.translation)
        assert Transfer.between(first, turned)(np.array([320.0]), np.array([240.0]), np.array([5.0]))[2][0] < 0


class TestPlanes:
    @pytest.fixture
    def plane(self):
        """Two cameras before a tilted plane n . X = d, 12 of its points, and its inverse depth in the first camera."""
        first, second = make_camera(0), make_camera(50)
        normal, distance = np.array([0.3, -0.2, 1.0]), 5.0
        sides = np.random.default_rng(0).uniform(-1, 1, (12, 2))
        points = np.column_stack([sides, (distance - sides @ normal[:2]) / normal[2]])
        # n . X = d with X = rotation^T (depth * matrix^-1 pixel - translation): 1 / depth is linear in the pixel.
        towards = normal @ first.rotation.T @ np.linalg.inv(first.matrix)
        linear = towards / (distance + normal @ first.rotation.T @ first.translation)
        return first, second, points, linear

    def test_inverse_depth_of_the_fixture_is_linear_in_the_pixel(self, plane):
        first, _, points, linear = plane
        xy, depth = pixels_of(first, points)
        np.testing.assert_allclose(xy @ linear[:2] + linear[2], 1 / depth, rtol=1e-10)

    def test_exact_for_all_points_of_the_plane(self, plane):
        """Around whichever pixel a plane is given, its homography carries every other point of it."""
        first, second, points, linear = plane
        xy, depth = pixels_of(first, points)
        there, there_depth = pixels_of(second, points)
        slope = np.tile(linear[:2], (len(points), 1))
        homographies = Transfer.between(first, second).of_planes(xy, 1 / depth, slope)
        assert homographies.shape == (12, 3, 3)
        for homography in homographies:
            for point, inverse, expected, deep in zip(xy, 1 / depth, there, there_depth, strict=True):
                a, b, c = homography @ np.array([*point, 1])
                np.testing.assert_allclose([a / c, b / c], expected, rtol=1e-8)
                assert c / inverse == pytest.approx(deep, rel=1e-8)

    def test_each_pixel_has_its_own_plane(self):
        first, second = make_camera(1), make_camera(51)
        random = np.random.default_rng(0)
        xy, inverse, slope = (
            random.uniform(50, 400, (5, 2)),
            random.uniform(0.1, 0.3, 5),
            random.normal(0, 1e-4, (5, 2)),
        )
        transfer = Transfer.between(first, second)
        homographies = transfer.of_planes(xy, inverse, slope)
        for k in range(5):
            for step in ((0, 0), (3, 0), (0, -4), (2, 5)):
                x, y = xy[k] + step
                depth = 1 / (inverse[k] + slope[k][0] * step[0] + slope[k][1] * step[1])
                a, b, c = homographies[k] @ np.array([x, y, 1])
                expected = [float(value) for value in transfer(np.array(x), np.array(y), np.array(depth))]
                assert [a / c, b / c, c * depth] == pytest.approx(expected, rel=1e-9)

    def test_no_planes(self):
        transfer = Transfer.between(make_camera(0), make_camera(1))
        assert transfer.of_planes(np.zeros((0, 2)), np.zeros(0), np.zeros((0, 2))).shape == (0, 3, 3)


class TestAngles:
    @pytest.mark.parametrize("degrees", [0, 1e-6, 30, 179.9, 180])
    def test_rotations(self, degrees):
        turn = cv2.Rodrigues(np.radians(degrees) * np.array([0.6, 0, 0.8]))[0]
        start = cv2.Rodrigues(np.array([0.3, -0.2, 0.5]))[0]
        np.testing.assert_allclose(rotation_degrees(turn @ start, start), degrees, rtol=1e-6, atol=1e-12)

    def test_directions(self):
        first = np.array([[1, 0, 0], [1, 0, 0], [0, 3, 0], [0, 0, 1], [0, 0, 0]], np.float64)
        second = np.array([[2, 0, 0], [1, 1e-9, 0], [0, -1, 0], [5, 0, 0], [1, 2, 3]])
        np.testing.assert_allclose(direction_degrees(first, second), [0, np.degrees(1e-9), 180, 90, 0], rtol=1e-9)
