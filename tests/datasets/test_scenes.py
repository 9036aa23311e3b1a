"""Correspondences of a scene against the exact truth of a synthetic world."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from logpolar.datasets.depth import Planes
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.options import (
    CorrespondenceRules,
    DepthRules,
    SceneOptions,
)
from logpolar.datasets.scenes import build_scene, link_views
from logpolar.datasets.views import PreparedView
from logpolar.geometry.cameras import Camera
from logpolar.keypoints import Keypoints
from scene_truth import (
    NAMES,
    OPTIONS,
    ROUNDING,
    SIZE,
    UNSPACED,
    judge,
    predict,
    together,
    transfer,
    wrap,
)
from synthetic_world import Pinhole, World, write_depth, write_sparse, write_workspace


class TestTruth:
    def test_enough_to_judge_by(self, judged):
        assert len(judged) >= 8
        assert all(len(pair.found) > 100 for pair in judged)
        assert together(judged, lambda pair: pair.flat).mean() > 0.8

    def test_every_correspondence_is_at_the_exact_place(self, judged):
        assert together(judged, lambda pair: pair.distance).max() <= 1.5 + ROUNDING

    def test_no_correspondence_is_occluded(self, judged):
        assert together(judged, lambda pair: pair.visible).all()

    def test_scale_ratios_are_within_two_percent(self, judged):
        assert together(judged, lambda pair: pair.scale_error).max() < 0.02

    def test_angle_residuals_are_within_two_percent(self, judged):
        """Of half a turn; nearly all are far better."""
        error = together(judged, lambda pair: pair.angle_error)
        assert error.max() < 3.6
        assert (error < 0.5).mean() > 0.99

    def test_warps_are_within_two_percent(self, judged):
        assert together(judged, lambda pair: pair.warp_error).max() < 0.02

    def test_depth(self, judged):
        assert together(judged, lambda pair: pair.depth_error).max() < 0.002

    def test_exact_depth_maps_make_exact_warps(self, judged_trusting):
        """Nothing is confirmed, so nothing is averaged over pixels of other maps: only the file's rounding is left."""
        flat = together(judged_trusting, lambda pair: pair.flat)
        for error, largest in (
            (together(judged_trusting, lambda pair: pair.warp_error), 0.003),
            (together(judged_trusting, lambda pair: pair.scale_error), 0.01),
            (together(judged_trusting, lambda pair: pair.depth_error), 0.0002),
            (together(judged_trusting, lambda pair: pair.angle_error), 0.1),
        ):
            assert error[flat].max() < largest

    def test_angles_are_angles(self, built):
        with CorrespondenceFile(built) as file:
            angle = file.column("keypoints", "angle")
        assert (angle >= 0).all()
        assert (angle < 360).all()

    def test_spacing_in_both_images(self, judged):
        for pair in judged:
            for xy in (pair.found.first.xy, pair.found.second.xy):
                gap = np.linalg.norm(xy[:, None].astype(float) - xy, axis=2)
                assert gap[~np.eye(len(gap), dtype=bool)].min() >= 7 - ROUNDING

    @pytest.mark.parametrize("name", ["built", "unspaced"])
    def test_no_keypoint_is_in_two_correspondences(self, name, request):
        with CorrespondenceFile(request.getfixturevalue(name)) as file:
            for number in range(len(file)):
                indices = file.read_correspondences(number).indices
                assert all(len(set(column)) == len(indices) for column in indices.T.tolist())

    def test_orientations_agree(self, judged):
        residual = np.abs(together(judged, lambda pair: pair.found.angle_residual))
        assert residual.max() <= 25 + 0.01
        assert residual.max() > 20  # the rule does decide
        assert np.median(residual) < 10

    def test_scales_may_disagree(self, judged):
        ratio = np.abs(together(judged, lambda pair: pair.found.log_scale_ratio))
        assert 0.01 < (ratio > np.log(1.5)).mean() < 0.3
        assert np.median(ratio) < 0.15

    def test_the_first_image_shows_things_larger(self, judged):
        """Cameras of the same distance, two by two, may go either way."""
        assert all(pair.images[0] // 2 <= pair.images[1] // 2 for pair in judged)
        for pair in judged:
            if pair.images[0] // 2 < pair.images[1] // 2:
                assert np.median(pair.found.zoom) < 1


def search_exactly(world: World, file: CorrespondenceFile, number: int) -> set[tuple[int, int]]:
    """All pairs that the rules allow but for spacing and count, by the exact warp, among all keypoints."""
    rules = CorrespondenceRules()
    images = file.pair_images[number].tolist()
    first, second = (file.read_keypoints(image) for image in images)
    place, jacobian, visible = transfer(world, *(world.cameras[image] for image in images), first, (SIZE, SIZE))
    angle, size = predict(jacobian, first)
    close = (np.abs(place[:, None, axis] - second.xy[:, axis]) <= rules.max_distance for axis in (0, 1))
    here, there = np.nonzero(visible[:, None] & next(close) & next(close))
    distance = np.linalg.norm(place[here] - second.xy[there], axis=1)
    residual = np.abs(wrap(second.angle[there] - angle[here]))
    ratio = np.abs(np.log(second.size[there] / size[here]))
    allowed = (distance <= rules.max_distance) & (residual <= rules.max_angle) & (ratio <= np.log(rules.max_mismatch))
    # Keypoints of several angles at one place: the best aligned is the nearest.
    ranked = sorted(zip(np.round(distance, 3)[allowed], residual[allowed], here[allowed], there[allowed], strict=True))
    nearest_here, nearest_there = {}, {}
    for _, _, i, j in ranked:
        nearest_here.setdefault(int(i), int(j))
        nearest_there.setdefault(int(j), int(i))
    return {(i, j) for i, j in nearest_here.items() if nearest_there[j] == i}


class TestRecall:
    def compare(self, world, path) -> tuple[list[float], float]:
        """Share of what an exact search finds that was found: of each pair; share of all found that it finds, too."""
        recalls, right, total = [], 0, 0
        with CorrespondenceFile(path) as file:
            for number in range(len(file)):
                exact = search_exactly(world, file, number)
                found = set(map(tuple, file.read_correspondences(number).indices.tolist()))
                recalls.append(len(found & exact) / len(exact))
                right, total = right + len(found & exact), total + len(found)
        return recalls, right / total

    def test_most_of_what_an_exact_search_finds(self, world, unspaced):
        """Missing are those at folds; the last two cameras see much, too, that no third sees and confirms."""
        recalls, precision = self.compare(world, unspaced)
        assert min(recalls) > 0.5
        assert np.median(recalls) > 0.85
        assert precision > 0.99

    def test_without_confirmation_nearly_all(self, world, workspace, tmp_path):
        build_scene(workspace, tmp_path / "all.h5", replace(UNSPACED, depth=DepthRules(min_views=0)))
        recalls, precision = self.compare(world, tmp_path / "all.h5")
        assert min(recalls) > 0.84
        assert np.median(recalls) > 0.88
        assert precision > 0.99

    def test_spacing_costs_no_more_than_it_must(self, built, unspaced):
        """Whatever was left out is less than 7 px from something that was kept, in one of the images."""
        with CorrespondenceFile(built) as file, CorrespondenceFile(unspaced) as all_of_it:
            for number in range(len(file)):
                kept, others = (each.read_correspondences(number) for each in (file, all_of_it))
                gaps = [
                    np.linalg.norm(other.xy[:, None].astype(float) - near.xy, axis=2).min(axis=1)
                    for other, near in ((others.first, kept.first), (others.second, kept.second))
                ]
                assert np.minimum(*gaps).max() < 7 + ROUNDING


def with_cameras(world: World, workspace: Path, place: Path, cameras: list[Pinhole]) -> Path:
    """A copy of the workspace whose sparse model has other cameras; points and what sees them stay."""
    folder = Path(shutil.copytree(workspace, place / "scene"))
    shutil.rmtree(folder / "sparse")
    points = world.sparse_points(np.random.default_rng(0))
    write_sparse(World(world.quads, cameras), folder / "sparse", NAMES, points)
    return folder


def turn(camera: Pinhole, degrees) -> Pinhole:
    """The camera turned about its own axes."""
    rotation = cv2.Rodrigues(np.radians(np.asarray(degrees, float)))[0]
    return replace(camera, rotation=rotation @ camera.rotation, translation=rotation @ camera.translation)


def counts_by_image(path: Path, image: int) -> tuple[int, int]:
    """Correspondences in pairs with and without an image."""
    with CorrespondenceFile(path) as file:
        count = [0, 0]
        for number, images in enumerate(file.pair_images.tolist()):
            count[image not in images] += len(file.read_correspondences(number))
        return count[0], count[1]


class TestBadGeometry:
    def test_coarse_and_noisy_depth(self, world, tmp_path):
        """Half the resolution and 1 % of noise in each pixel: fewer correspondences, but right ones."""
        write_workspace(world, tmp_path / "scene", depth_scale=0.5, depth_noise=0.01)
        build_scene(tmp_path / "scene", tmp_path / "scene.h5", OPTIONS)
        pairs = judge(world, tmp_path / "scene.h5")
        right = together(pairs, lambda pair: (pair.distance <= 1.5 + ROUNDING) & pair.nearly_visible)
        assert len(right) > 400
        assert right.mean() > 0.99
        assert together(pairs, lambda pair: pair.distance).max() < 3
        assert np.median(together(pairs, lambda pair: pair.depth_error)) < 0.003  # averaged over views and pixels

    def test_large_keypoints_have_large_windows(self, world, tmp_path):
        """Over which noise is averaged: 12 px and 4 px wide, the slope is three times as good."""
        write_workspace(world, tmp_path / "scene", depth_noise=0.005)
        build_scene(tmp_path / "scene", tmp_path / "scene.h5", OPTIONS)
        pairs = judge(world, tmp_path / "scene.h5")
        size = together(pairs, lambda pair: np.where(pair.flat, pair.found.first.size, np.nan))
        error = together(pairs, lambda pair: pair.warp_error)
        assert (size > 8).sum() > 30
        assert np.median(error[size > 8]) < 0.5 * np.median(error[size < 4])

    def test_coarse_depth(self, world, tmp_path):
        write_workspace(world, tmp_path / "scene", depth_scale=0.5)
        build_scene(tmp_path / "scene", tmp_path / "scene.h5", OPTIONS)
        pairs = judge(world, tmp_path / "scene.h5")
        distance = together(pairs, lambda pair: pair.distance)
        assert len(distance) > 1500
        assert (distance <= 1.5 + ROUNDING).mean() > 0.998
        assert distance.max() < 2
        assert together(pairs, lambda pair: pair.nearly_visible).mean() > 0.998
        flat = together(pairs, lambda pair: pair.flat)
        assert np.median(together(pairs, lambda pair: pair.warp_error)[flat]) < 0.005

    def test_wrong_depth_of_a_surface_in_all_maps_of_one_image(self, world, workspace, judged, tmp_path):
        """A third of an image, 10 % too near: nothing there has a correspondence, the rest is as good as before."""
        folder = Path(shutil.copytree(workspace, tmp_path / "scene"))
        depth = world.views[2][1].copy()
        depth[:, :107] *= 0.9
        write_depth(folder / "stereo" / "depth_maps" / "view2.png.photometric.bin", depth)
        build_scene(folder, tmp_path / "scene.h5", OPTIONS)
        for before, after in zip(judged, judge(world, tmp_path / "scene.h5"), strict=True):
            assert after.distance.max() < 1.8
            if 2 in after.images:
                side = after.images.index(2)
                was, now = ((pair.found.first, pair.found.second)[side].xy[:, 0] for pair in (before, after))
                assert (was < 104).sum() > 20
                assert (now < 104).sum() <= 2
                assert (now > 110).sum() > 0.7 * (was > 110).sum()

    @pytest.mark.parametrize("kind", ["turned", "shifted"])
    def test_one_wrong_pose(self, world, workspace, built, tmp_path, kind):
        """Turned by 3 degrees, or moved by 20 cm at a distance of 5 m: some 15 px. What is left is there by chance."""
        right = world.cameras[2]
        shifted = replace(right, translation=right.translation + np.array([0.2, 0, 0]))
        cameras = list(world.cameras)
        cameras[2] = turn(right, [0, 3, 0]) if kind == "turned" else shifted
        build_scene(with_cameras(world, workspace, tmp_path, cameras), tmp_path / "scene.h5", OPTIONS)
        (wrong, others), (before, others_before) = (counts_by_image(p, 2) for p in (tmp_path / "scene.h5", built))
        assert before > 700
        assert wrong < 0.1 * before
        assert others > 0.9 * others_before

    def test_all_poses_wrong(self, world, workspace, judged, tmp_path):
        random = np.random.default_rng(0)
        cameras = [turn(camera, random.normal(0, 3, 3)) for camera in world.cameras]
        build_scene(with_cameras(world, workspace, tmp_path, cameras), tmp_path / "scene.h5", OPTIONS)
        with CorrespondenceFile(tmp_path / "scene.h5") as file:
            assert file.counts()["correspondences"] < 0.03 * len(together(judged, lambda pair: pair.distance))


def facing(shift: float = 0.0, back: bool = False) -> Camera:
    """A camera of 100 x 80 px and focal length 100 px that looks along + z from ``shift`` to the right, or - z."""
    matrix = np.array([[100, 0, 49.5], [0, 100, 39.5], [0, 0, 1.0]])
    rotation = np.diag([-1.0, 1, -1]) if back else np.eye(3)
    return Camera(100, 80, matrix, rotation, -rotation @ np.array([shift, 0, 0]))


def prepared(camera: Camera, xy, inverse_depth, slope=None, size: float = 4) -> PreparedView:
    xy = np.array(xy, np.float32)
    inverse = np.array(inverse_depth, np.float32)
    slopes = np.zeros((len(xy), 2), np.float32) if slope is None else np.array(slope, np.float32)
    return PreparedView(camera, Keypoints.from_points(xy, size), Planes(inverse, slopes))


def link(first: PreparedView, second: PreparedView, options: SceneOptions = OPTIONS):
    """Indices of what corresponds, and the causes that occurred."""
    found, rejects = link_views(first, second, options, np.random.default_rng(0))
    return found.indices.tolist(), {cause: count for cause, count in rejects.items() if count}


class TestLinkedByHand:
    """A keypoint at 2 m, inverse depth 0.5: a step of 1 m to the right moves it 50 px to the left."""

    def test_the_same_surface(self):
        found, rejects = link(prepared(facing(), [[60, 40]], [0.5]), prepared(facing(0.5), [[35, 40]], [0.5]))
        assert found == [[0, 0]]
        assert rejects == {}

    @pytest.mark.parametrize(("inverse", "found"), [(0.5145, True), (0.4855, True), (0.5155, False), (0.4845, False)])
    def test_another_surface(self, inverse, found):
        """3 % nearer or farther; from nearly the same place, so that nothing drifts."""
        first, second = prepared(facing(), [[60, 40]], [0.5]), prepared(facing(0.001), [[60, 40]], [inverse])
        assert link(first, second) == (([[0, 0]], {}) if found else ([], {"occluded": 1}))

    @pytest.mark.parametrize(("shift", "found"), [(0.7, True), (0.8, False)])
    def test_cycle(self, shift, found):
        """2 % of depth are 1 px a metre: there by 0.5, back by 0.52."""
        options = replace(OPTIONS, depth=DepthRules(max_cycle=0.75))
        place = 60 - 50 * shift
        first, second = prepared(facing(), [[60, 40]], [0.5]), prepared(facing(shift), [[place, 40]], [0.51])
        cause = ([], {"cycle does not close": 1})
        assert link(first, second, options) == (([[0, 0]], {}) if found else cause)
        assert link(first, second)[0] == [[0, 0]]

    @pytest.mark.parametrize("shift", [0.001, 0.8])
    def test_surfaces_are_compared_at_the_same_place(self, shift):
        """The second keypoint is 1.4 px beside, on a slope that makes its own depth 5 % less there."""
        for slope, found in ((-0.02, True), (0.0, False)):
            second = prepared(facing(shift), [[60 - 50 * shift - 1.4, 40]], [0.528], [[slope, 0]])
            assert (link(prepared(facing(), [[60, 40]], [0.5]), second)[0] == [[0, 0]]) == found

    def test_slope_of_the_first_surface(self):
        """Inverse depth 0.5 + 0.004 (x - 60): from 1 m to the right, x - 100 (0.5 + 0.004 (x - 60)): 0.6 as wide."""
        first, second = prepared(facing(), [[60, 40]], [0.5], [[0.004, 0]]), prepared(facing(1), [[10, 40]], [0.5])
        found, _ = link_views(first, second, OPTIONS, np.random.default_rng(0))
        np.testing.assert_allclose(found.warp, [[[0.6, 0], [0, 1]]], atol=1e-5)
        assert found.log_scale_ratio[0] == pytest.approx(-np.log(0.6) / 2, abs=1e-5)

    @pytest.mark.parametrize(("size", "found"), [(31, True), (33, False)])
    def test_scales_beyond_all_bounds(self, size, found):
        first, second = prepared(facing(), [[60, 40]], [0.5]), prepared(facing(), [[60, 40]], [0.5], size=size)
        assert link(first, second) == (([[0, 0]], {}) if found else ([], {"scale differs": 1}))

    def test_unknown_depth_of_the_other(self):
        first, second = prepared(facing(), [[60, 40]], [0.5]), prepared(facing(0.5), [[35, 40]], [0.0])
        assert link(first, second) == ([], {"depth of the other unknown": 1})

    def test_unknown_depth_here_is_not_counted(self):
        first, second = prepared(facing(), [[60, 40]], [0.0]), prepared(facing(0.5), [[35, 40]], [0.5])
        assert link(first, second) == ([], {})

    def test_rows_are_those_of_all_keypoints(self):
        first = prepared(facing(), [[10, 10], [60, 40], [20, 20], [80, 60]], [0.0, 0.5, 0.0, 0.5])
        second = prepared(facing(0.5), [[5, 5], [55, 60], [35, 40]], [0.0, 0.5, 0.5])
        assert sorted(link(first, second)[0]) == [[1, 2], [3, 1]]

    def test_behind_the_other_camera(self):
        """Through the centre of the other camera the formula would put the keypoint at 39, mirrored."""
        first, second = prepared(facing(), [[60, 40]], [0.5]), prepared(facing(0, back=True), [[39, 39]], [0.5])
        assert link(first, second) == ([], {"outside the other image": 1})

    def test_outside_the_other_image(self):
        first, second = prepared(facing(), [[20, 40]], [0.5]), prepared(facing(0.5), [[50, 40]], [0.5])
        assert link(first, second) == ([], {"outside the other image": 1})

    @pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 1), (1, 0)])
    def test_no_keypoints(self, first, second):
        here, there = np.full((first, 2), 40.0), np.full((second, 2), 40.0)
        found, _ = link(prepared(facing(), here, [0.5] * first), prepared(facing(), there, [0.5] * second))
        assert found == []

    def test_saved_and_loaded(self, tmp_path):
        random = np.random.default_rng(0)
        keypoints = Keypoints(
            random.uniform(0, 99, (7, 2)), random.uniform(1, 9, 7), random.uniform(0, 360, 7), random.random(7)
        )
        planes = Planes(random.random(7).astype(np.float32), random.normal(size=(7, 2)).astype(np.float32))
        before = PreparedView(facing(0.3), keypoints, planes)
        before.save(tmp_path / "view.npz")
        after = PreparedView.load(tmp_path / "view.npz")
        assert [path.name for path in tmp_path.iterdir()] == ["view.npz"]
        assert (after.camera.width, after.camera.height) == (100, 80)
        for one, other in (
            (before.camera.matrix, after.camera.matrix),
            (before.camera.rotation, after.camera.rotation),
            (before.camera.translation, after.camera.translation),
            (before.keypoints.table, after.keypoints.table),
            (before.keypoints.response, after.keypoints.response),
            (before.planes.inverse_depth, after.planes.inverse_depth),
            (before.planes.slope, after.planes.slope),
        ):
            np.testing.assert_array_equal(one, other)
