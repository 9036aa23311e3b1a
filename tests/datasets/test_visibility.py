from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from logpolar.datasets.options import PairRules
from logpolar.datasets.visibility import Pair, select_pairs, shared_points
from logpolar.geometry.cameras import Camera
from logpolar.sfm.workspace import Scene, View, read_workspace
from synthetic_world import World, look_at, standard_world, write_workspace

WIDTH, HEIGHT = 100, 80
ALL = PairRules(min_shared=1, min_overlap=0, max_per_image=0)


def make_camera(azimuth: float = 0, distance: float = 10, focal: float = 100) -> Camera:
    """A camera on a circle around the origin, which it looks at."""
    radians = np.radians(azimuth)
    position = distance * np.array([np.sin(radians), 0, -np.cos(radians)])
    own = look_at(position, [0, 0, 0], focal, WIDTH, HEIGHT)
    return Camera(WIDTH, HEIGHT, own.intrinsics, own.rotation, own.translation)


def make_view(points, xy=None, camera: Camera | None = None) -> View:
    points = np.array(sorted(points), np.intp)
    if xy is None:
        # Both ends of the image among them, so that the box around them is the whole.
        xy = np.random.default_rng(len(points)).uniform(0, [WIDTH, HEIGHT], (len(points), 2))
        xy[:2] = np.array([[0, 0], [WIDTH, HEIGHT]])[: len(points)]
    return View("name", Path("image"), Path("depth"), camera or make_camera(), points, np.array(xy, np.float64))


def make_scene(views: list[View], count: int = 1000) -> Scene:
    """All points within a small ball around the origin."""
    return Scene(Path("scene"), views, np.random.default_rng(0).uniform(-0.01, 0.01, (count, 3)))


def select(scene: Scene, rules: PairRules = ALL, parts=None, seed: int = 0) -> tuple[list[Pair], Counter[str]]:
    parts = parts or ["train"] * len(scene.views)
    return select_pairs(scene, shared_points(scene), parts, rules, np.random.default_rng(seed))


def unordered(pairs: list[Pair]) -> list[tuple[int, int]]:
    return sorted(tuple(sorted(pair.views)) for pair in pairs)


class TestSharedPoints:
    def test_by_sets(self):
        random = np.random.default_rng(0)
        sets = [set(random.choice(200, size, replace=False).tolist()) for size in (150, 3, 80, 1, 60)] + [set()]
        scene = make_scene([make_view(points) for points in sets], 200)
        shared = shared_points(scene)
        for i, one in enumerate(sets):
            for j, other in enumerate(sets):
                assert shared[i, j] == (0 if i == j else len(one & other))

    def test_no_points(self):
        scene = Scene(Path("scene"), [make_view([]), make_view([])], np.zeros((0, 3)))
        assert shared_points(scene).tolist() == [[0, 0], [0, 0]]


class TestVisibilityTest:
    @pytest.mark.parametrize(("least", "count"), [(29, 1), (30, 1), (31, 0)])
    def test_least_number_of_shared_points(self, least, count):
        scene = make_scene([make_view(range(50)), make_view(range(20, 90))])
        pairs, rejects = select(scene, PairRules(least, 0, 0))
        assert len(pairs) == count
        assert rejects["few shared points"] == 1 - count

    def test_images_that_share_nothing_are_never_paired(self):
        assert select(make_scene([make_view(range(50)), make_view(range(50, 90))]), PairRules(0, 0, 0))[0] == []

    @pytest.mark.parametrize(("least", "count"), [(0.29, 1), (0.31, 0)])
    def test_overlap_by_hand(self, least, count):
        """A box of 60 x 40 px in an image of 100 x 80, and of all in the other: the smaller share, 0.3, counts."""
        small, whole = [[20, 10], [80, 30], [30, 50]], [[0, 0], [100, 80], [50, 50]]
        for order in ((small, whole), (whole, small)):
            scene = make_scene([make_view(range(3), xy) for xy in order])
            pairs, rejects = select(scene, PairRules(1, least, 0))
            assert len(pairs) == count
            assert rejects["small overlap"] == 1 - count

    def test_only_shared_points_make_the_box(self):
        """Points 0 to 2 are shared; the first image shows others farther out."""
        first = make_view(range(5), [[40, 40], [60, 40], [60, 60], [0, 0], [100, 80]])
        second = make_view(range(3), [[0, 0], [100, 80], [50, 50]])
        scene = make_scene([first, second])
        assert len(select(scene, PairRules(1, 0.049, 0))[0]) == 1
        assert len(select(scene, PairRules(1, 0.051, 0))[0]) == 0

    def test_rows_of_different_views_are_put_together_by_point(self):
        """Shared are 3 and 4, the last of one and the first of the other."""
        first = make_view([0, 3, 4], [[0, 0], [10, 10], [60, 50]])
        second = make_view([3, 4, 5], [[20, 20], [70, 60], [0, 0]])
        scene = make_scene([first, second])
        assert len(select(scene, PairRules(1, 0.249, 0))[0]) == 1
        assert len(select(scene, PairRules(1, 0.251, 0))[0]) == 0

    def test_no_pair_across_the_split(self):
        scene = make_scene([make_view(range(50)) for _ in range(5)])
        parts = ["train", "validation", "train", "validation", "train"]
        pairs, rejects = select(scene, parts=parts)
        assert unordered(pairs) == [(0, 2), (0, 4), (1, 3), (2, 4)]
        assert rejects["across the split"] == 6

    def test_every_pair_of_images_is_accounted_for(self, colmap_scene):
        parts = ["train", "train", "validation", "train", "validation", "train"]
        pairs, rejects = select(colmap_scene, PairRules(60, 0.4, 1), parts)
        assert len(pairs) + rejects.total() == 15
        assert all(rejects[cause] > 0 for cause in ("small overlap", "across the split", "over the limit per image"))

    def test_on_the_synthetic_world_by_loops(self, colmap_scene):
        rules = PairRules(60, 0.4, 0)
        expected = []
        for (i, first), (j, second) in combinations(enumerate(colmap_scene.views), 2):
            places = [dict(zip(v.points.tolist(), v.xy.tolist(), strict=True)) for v in (first, second)]
            common = places[0].keys() & places[1].keys()
            shares = []
            for place in places:
                x, y = ([place[point][k] for point in common] for k in (0, 1))
                shares.append((max(x) - min(x)) * (max(y) - min(y)) / (320 * 240))
            if len(common) >= 60 and min(shares) >= 0.4:
                expected.append((i, j))
        assert 3 < len(expected) < 15
        assert unordered(select(colmap_scene, rules)[0]) == expected


@pytest.fixture(scope="module")
def colmap_scene(tmp_path_factory) -> Scene:
    """The standard world without pictures, which this needs not."""
    folder = tmp_path_factory.mktemp("world")
    world = World(standard_world().quads, standard_world().cameras)
    world.__dict__["views"] = [(np.zeros((240, 320), np.uint8), world.depth_map(camera)) for camera in world.cameras]
    write_workspace(world, folder)
    return read_workspace(folder)


class TestOrder:
    @pytest.mark.parametrize(
        ("first", "second"), [((10, 100), (20, 100)), ((10, 100), (10, 60)), ((20, 300), (10, 100))]
    )
    def test_the_first_shows_things_larger(self, first, second):
        """Nearer, or with a longer focal length, or what both make of it."""
        larger, smaller = (make_view(range(50), camera=make_camera(0, *shape)) for shape in (first, second))
        assert [pair.views for pair in select(make_scene([larger, smaller]))[0]] == [(0, 1)]
        assert [pair.views for pair in select(make_scene([smaller, larger]))[0]] == [(1, 0)]

    def test_on_the_synthetic_world(self, colmap_scene):
        """Later cameras are farther away, two of each distance."""
        pairs = select(colmap_scene)[0]
        assert len(pairs) == 15
        assert all(pair.first // 2 <= pair.second // 2 for pair in pairs)

    def test_sorted(self, colmap_scene):
        views = [pair.views for pair in select(colmap_scene)[0]]
        assert views == sorted(views)

    @pytest.mark.parametrize("angle", [0, 7.5, 40, 90, 175])
    def test_angle_between_the_rays(self, angle):
        scene = make_scene([make_view(range(50), camera=make_camera(azimuth)) for azimuth in (20, 20 + angle)])
        assert select(scene)[0][0].angle == pytest.approx(angle, abs=0.3)


def star(azimuths) -> Scene:
    """View 0 shares points with each other view; these, at angles from view 0, share none among each other."""
    blocks = [range(20 * k, 20 * k + 20) for k in range(len(azimuths))]
    others = [make_view(block, camera=make_camera(a)) for block, a in zip(blocks, azimuths, strict=True)]
    return make_scene([make_view(range(20 * len(azimuths))), *others])


class TestLimit:
    @pytest.mark.parametrize("most", [1, 2, 5])
    def test_no_image_has_more_pairs(self, most):
        scene = make_scene([make_view(range(50), camera=make_camera(7 * k)) for k in range(12)])
        pairs, rejects = select(scene, PairRules(1, 0, most))
        count = Counter(view for pair in pairs for view in pair.views)
        assert max(count.values()) == most
        assert rejects["over the limit per image"] == 66 - len(pairs)

    def test_what_is_left_out_would_be_too_much(self):
        """No pair is refused whose images both have room."""
        scene = make_scene([make_view(range(50), camera=make_camera(7 * k)) for k in range(12)])
        pairs = unordered(select(scene, PairRules(1, 0, 4))[0])
        count = Counter(view for pair in pairs for view in pair)
        for pair in set(combinations(range(12), 2)) - set(pairs):
            assert max(count[view] for view in pair) == 4

    @pytest.mark.parametrize("seed", range(5))
    def test_all_viewing_angles_get_their_share(self, seed):
        """Thirty neighbours within 10 degrees, one each at 15, 25, 35 and 55: with room for 8 those four are in."""
        azimuths = [*np.linspace(1, 9, 30), 15, 25, 35, 55]
        scene = star(azimuths)
        pairs, rejects = select(scene, PairRules(1, 0, 8), seed=seed)
        assert rejects["over the limit per image"] == 34 - 8
        assert len(pairs) == 8
        others = {max(pair.views) for pair in pairs}
        assert {31, 32, 33, 34} <= others

    @pytest.mark.parametrize("seed", range(5))
    def test_classes_take_turns(self, seed):
        """Ten neighbours each at about 5, 15 and 25 degrees: with room for six, two of each."""
        azimuths = [base + step for base in (5, 15, 25) for step in np.linspace(-2, 2, 10)]
        pairs, _ = select(star(azimuths), PairRules(1, 0, 6), seed=seed)
        assert Counter(int(pair.angle // 10) for pair in pairs) == {0: 2, 1: 2, 2: 2}

    def test_chance_decides_within_a_class(self):
        scene = star(np.linspace(1, 9, 30))
        one, same, other = (select(scene, PairRules(1, 0, 8), seed=seed)[0] for seed in (0, 0, 1))
        assert one == same
        assert one != other

    def test_no_limit(self):
        scene = make_scene([make_view(range(50), camera=make_camera(k)) for k in range(12)])
        pairs, rejects = select(scene, PairRules(1, 0, 0))
        assert len(pairs) == 66
        assert rejects["over the limit per image"] == 0

    def test_enough_room(self):
        scene = make_scene([make_view(range(50), camera=make_camera(k)) for k in range(12)])
        assert select(scene, PairRules(1, 0, 11)) == select(scene, PairRules(1, 0, 0))
