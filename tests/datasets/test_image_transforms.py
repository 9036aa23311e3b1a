"""Scenes whose second images are downscaled or rotated, against the exact truth of a synthetic world."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from helpers import assert_same_content, content_of
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.image_transforms import ImageTransform, transformed_name
from logpolar.datasets.options import DepthRules, ImageRules, SecondViewRules
from logpolar.datasets.scenes import build_scene
from logpolar.datasets.views import PreparedView, ViewTask, prepare_view
from logpolar.keypoints import Keypoints
from logpolar.sfm.workspace import read_workspace
from scene_truth import NAMES, OPTIONS, ROUNDING, SIZE, SMALL, predict, stop_after, wrap
from synthetic_world import World

KINDS = {
    "downscale 3": SecondViewRules(downscale=3),
    "rotate -75": SecondViewRules(rotate=-75),
    "rotate 90": SecondViewRules(rotate=90),
    "both": SecondViewRules(downscale=1.7, rotate=-120),
}
DOWNSCALED = {1: (320, 240), 1.7: (188, 141), 3: (107, 80)}
"""Sizes of an image of 320 x 240 px that is reduced by a factor."""

LEAST = {"downscale 3": 150, "both": 500}
"""Correspondences; 1000 where nothing is said."""


def place_by_hand(xy: np.ndarray, size: tuple[int, int], rules: SecondViewRules) -> np.ndarray:
    """Where pixels (N, 2) of an image of 320 x 240 lie in an altered copy of ``size``: about the centres of both."""
    radians = np.radians(rules.rotate)
    from_centre = (xy - (np.array(SIZE) - 1) / 2) * DOWNSCALED[rules.downscale] / SIZE
    x, y = from_centre.T
    turned = np.stack([x * np.cos(radians) - y * np.sin(radians), x * np.sin(radians) + y * np.cos(radians)], axis=1)
    return turned + (np.array(size) - 1) / 2


@dataclass(frozen=True, eq=False)
class Truth:
    """Of all correspondences of a file."""

    count: int
    distance: np.ndarray  # pixels of the second image
    visible: np.ndarray
    angle_error: np.ndarray  # degrees
    scale_error: np.ndarray  # logarithm
    warp_error: np.ndarray  # as a share


def judge_altered(world: World, path: Path, rules: SecondViewRules) -> Truth:
    columns = []
    radians = np.radians(rules.rotate)
    rotation = np.array([[np.cos(radians), -np.sin(radians)], [np.sin(radians), np.cos(radians)]])
    linear = rotation * DOWNSCALED[rules.downscale] / SIZE
    with CorrespondenceFile(path) as file:
        for number, (first, second) in enumerate(file.pair_images.tolist()):
            here = world.cameras[NAMES.index(file.images[first].name)]
            there = world.cameras[NAMES.index(file.images[second].name.partition("@")[0])]
            found = file.read_correspondences(number)
            exact = world.transfer(here, there, found.first.xy.astype(float))
            place = place_by_hand(exact.xy, file.images[second].size, rules)
            jacobian = linear @ exact.jacobian
            angle, size = predict(jacobian, found.first)
            difference = np.linalg.norm(found.warp - jacobian, axis=(1, 2)) / np.linalg.norm(jacobian, axis=(1, 2))
            columns.append(
                (
                    np.linalg.norm(place - found.second.xy, axis=1),
                    exact.visible,
                    np.abs(wrap(found.second.angle - angle - found.angle_residual)),
                    np.abs(np.log(found.second.size / size) - found.log_scale_ratio),
                    difference,
                )
            )
    together = [np.concatenate(column) for column in zip(*columns, strict=True)]
    return Truth(len(together[0]), *together)


@pytest.fixture(scope="module", params=KINDS)
def altered(request, workspace, tmp_path_factory) -> tuple[str, Path]:
    path = tmp_path_factory.mktemp("altered") / "scene.h5"
    build_scene(workspace, path, replace(OPTIONS, second=KINDS[request.param]))
    return request.param, path


@pytest.fixture(scope="module")
def truth(world, altered) -> Truth:
    return judge_altered(world, altered[1], KINDS[altered[0]])


class TestTruth:
    def test_enough_to_judge_by(self, truth, altered):
        assert truth.count > LEAST.get(altered[0], 1000)

    def test_every_correspondence_is_at_the_exact_place(self, truth):
        """Half of them far nearer than they must be: the places of SIFT's keypoints differ by less."""
        assert truth.distance.max() <= 1.5 + 4 * ROUNDING
        assert np.median(truth.distance) < 0.5

    def test_nearly_none_is_occluded(self, truth):
        assert truth.visible.mean() > 0.995

    def test_columns(self, truth):
        """Of the flat surfaces; wide windows of a reduced image reach over folds now and then."""
        for error, usual, largest in (
            (truth.angle_error, 0.2, 8),
            (truth.scale_error, 0.005, 0.1),
            (truth.warp_error, 0.01, 0.2),
        ):
            assert np.median(error) < usual
            assert np.quantile(error, 0.99) < largest

    def test_depths(self, world, altered):
        kind, path = altered
        with CorrespondenceFile(path) as file:
            for image, entry in enumerate(file.images):
                name, _, suffix = entry.name.partition("@")
                if not suffix:
                    continue
                depth, camera = file.read_depths(image), world.cameras[NAMES.index(name)]
                known = np.isfinite(depth)
                inverse = np.linalg.inv(ImageTransform.of(*SIZE, KINDS[kind]).matrix)
                back = file.read_keypoints(image).xy.astype(float)[known] @ inverse[:2, :2].T + inverse[:2, 2]
                error = np.abs(depth[known] / world.cast(camera, back)[0] - 1)
                assert known.sum() > 20
                assert (error < 0.02).mean() > 0.97

    @pytest.mark.parametrize("kind", KINDS)
    def test_planes_continue_around_the_keypoints_of_the_copy(self, world, workspace, tmp_path, kind):
        """Two pixels to the side, in the copy, they are where the surface is."""
        options = replace(OPTIONS, depth=DepthRules(min_views=0), second=KINDS[kind])
        view = read_workspace(workspace).views[1]
        assert not isinstance(prepare_view(ViewTask(view, "train", [], options, "", tmp_path / "view.npz", True)), str)
        made = PreparedView.load(tmp_path / "view.npz")
        inverse = np.linalg.inv(ImageTransform.of(*SIZE, KINDS[kind]).matrix)
        known = np.flatnonzero(made.planes.known)
        slopes = np.linalg.norm(made.planes.slope[known], axis=1) / made.planes.inverse_depth[known]
        assert np.median(slopes) > 0.001
        for step in ((2, 0), (0, 2)):
            xy = made.keypoints.xy[known].astype(float) + step
            exact = 1 / world.cast(world.cameras[1], xy @ inverse[:2, :2].T + inverse[:2, 2])[0]
            error = np.abs(made.planes[known].at(np.array(step)) / exact - 1)
            assert (error < 1e-5).mean() > 0.75

    def test_cameras_see_points_where_the_pictures_show_them(self, world, altered):
        kind, path = altered
        random = np.random.default_rng(0)
        with CorrespondenceFile(path) as file:
            for image, entry in enumerate(file.images):
                name, _, suffix = entry.name.partition("@")
                own = world.cameras[NAMES.index(name)]
                xy, depth = random.uniform(0, 200, (50, 2)), random.uniform(2, 9, 50)
                camera = file.read_camera(image)
                pixels, deep = camera.see(own.lift(xy, depth))
                expected = place_by_hand(xy, entry.size, KINDS[kind]) if suffix else xy
                np.testing.assert_allclose(pixels, expected, atol=1e-6)
                np.testing.assert_allclose(deep, depth)
                assert (camera.width, camera.height) == entry.size


class TestFile:
    @pytest.fixture(scope="class")
    @classmethod
    def shrunk(cls, small, tmp_path_factory) -> Path:
        path = tmp_path_factory.mktemp("shrunk") / "scene.h5"
        build_scene(small, path, replace(SMALL, second=SecondViewRules(downscale=1.5)))
        return path

    def test_pairs_are_those_of_the_scene_with_the_second_altered(self, shrunk, small_built):
        with CorrespondenceFile(shrunk) as file, CorrespondenceFile(small_built) as plain:
            pairs = [[each.images[image].name for image in pair] for each in (file, plain) for pair in each.pair_images]
        half = len(pairs) // 2
        assert pairs[:half] == [[first, f"{second}@shrunk-1.5"] for first, second in pairs[half:]]

    def test_only_what_is_paired_is_in_the_file(self, shrunk):
        with CorrespondenceFile(shrunk) as file:
            paired = set(file.pair_images.ravel().tolist())
            assert paired == set(range(len(file.images)))
            first, second = (set(column) for column in file.pair_images.T.tolist())
            assert {file.images[image].size for image in first} == {(200, 150)}
            assert {file.images[image].size for image in second} == {(133, 100)}
            assert all(file.read_image(image).shape == (100, 133) for image in second)
            assert file.settings["second"] == {"shrink": 1.5, "turn": 0.0}

    def test_first_images_are_as_ever(self, shrunk, small_built):
        with CorrespondenceFile(shrunk) as file, CorrespondenceFile(small_built) as plain:
            numbers = {entry.name: number for number, entry in enumerate(plain.images)}
            for image in set(file.pair_images[:, 0].tolist()):
                same = numbers[file.images[image].name]
                np.testing.assert_array_equal(file.read_keypoints(image).table, plain.read_keypoints(same).table)
                np.testing.assert_array_equal(file.read_depths(image), plain.read_depths(same))

    def test_defaults_alter_nothing(self, small, small_built, tmp_path):
        """A turn by nothing, whatever its sign, included."""
        build_scene(small, tmp_path / "scene.h5", replace(SMALL, second=SecondViewRules(1.0, -0.0)))
        one, other = content_of(tmp_path / "scene.h5"), content_of(small_built)
        for name in one.keys() - {"@settings"}:
            np.testing.assert_array_equal(one[name], other[name])

    @pytest.mark.parametrize(("step", "count"), [("prepare_view", 2), ("link_views", 3)])
    def test_a_stopped_run_is_continued(self, small, shrunk, tmp_path, monkeypatch, step, count):
        options = replace(SMALL, second=SecondViewRules(downscale=1.5))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            stop_after(patch, step, count)
            build_scene(small, tmp_path / "scene.h5", options)
        build_scene(small, tmp_path / "scene.h5", options)
        assert_same_content(tmp_path / "scene.h5", shrunk)
        assert [path.name for path in tmp_path.iterdir()] == ["scene.h5"]

    @pytest.mark.parametrize("embed", [True, False])
    def test_altered_copies_are_inside_the_file_to_the_pixel(self, small, small_world, tmp_path, embed):
        """Turned by 90 degrees clockwise, the top left pixel is at the top right."""
        rules = ImageRules(embed=embed, quality=100)
        options = replace(SMALL, images=rules, second=SecondViewRules(rotate=90))
        build_scene(small, tmp_path / "scene.h5", options)
        with CorrespondenceFile(tmp_path / "scene.h5") as file:
            for image, entry in enumerate(file.images):
                name, _, suffix = entry.name.partition("@")
                view = small_world.views[NAMES.index(name)][0]
                expected = view[::-1].T if suffix else view
                np.testing.assert_array_equal(file.read_image(image), expected)

    def test_depth_pictures_are_altered_too(self, small, small_world, tmp_path):
        options = replace(SMALL, depth=DepthRules(min_views=0), second=SecondViewRules(rotate=90))
        build_scene(small, tmp_path / "scene.h5", options)
        with CorrespondenceFile(tmp_path / "scene.h5") as file:
            for image, entry in enumerate(file.images):
                name, _, suffix = entry.name.partition("@")
                depth = small_world.views[NAMES.index(name)][1]
                unknown = (depth[::-1].T if suffix else depth) == 0
                np.testing.assert_array_equal(file.read_depth_picture(image) == 0, unknown)

    def test_images_of_photos_have_no_camera(self, scene, path):
        with CorrespondenceFile(path) as file:
            assert [file.read_camera(image) for image in range(3)] == [None] * 3


class TestImageTransform:
    @pytest.mark.parametrize("turn", [90, 180, -90, -180])
    def test_quarter_turns_are_permutations(self, turn):
        """And every pixel goes where ``place`` says."""
        image = np.random.default_rng(0).random((5, 8)).astype(np.float32)
        transform = ImageTransform.of(8, 5, SecondViewRules(rotate=turn))
        copy = transform.image(image)
        assert copy.shape == transform.size[::-1]
        for y in range(5):
            for x in range(8):
                column, row, _ = transform.matrix @ (x, y, 1)
                assert copy[round(row), round(column)] == image[y, x]

    @pytest.mark.parametrize("turn", [30, -75, 1, 179])
    def test_nothing_is_lost_and_the_rest_is_the_mean(self, turn):
        image = np.full((40, 60), 0.5, np.float32)
        image[:20] = 1
        transform = ImageTransform.of(60, 40, SecondViewRules(rotate=turn))
        corners = np.array([(-0.5, -0.5, 1), (59.5, -0.5, 1), (-0.5, 39.5, 1), (59.5, 39.5, 1)]) @ transform.matrix.T
        assert corners[:, :2].min() > -0.5 - 1e-9
        assert (corners[:, :2].max(axis=0) < np.array(transform.size) - 0.5 + 1e-9).all()
        assert (np.ptp(corners[:, :2], axis=0) > np.array(transform.size) - 1).all()
        if turn in (30, -75):
            assert transform.image(image)[0, 0] == pytest.approx(0.75)
        x, y, _ = transform.matrix @ (30, 10, 1)
        assert transform.image(image)[round(y), round(x)] == pytest.approx(1, abs=0.01)

    def test_clockwise_on_the_screen(self):
        """What points to the right points down, after a quarter turn."""
        linear = ImageTransform.of(60, 40, SecondViewRules(rotate=90)).linear
        np.testing.assert_array_equal(linear @ (1, 0), (0, 1))

    def test_overshoot_stays_within_the_range(self):
        image = (np.random.default_rng(0).random((40, 60)) > 0.5).astype(np.float32)
        copy = ImageTransform.of(60, 40, SecondViewRules(rotate=20)).image(image)
        assert copy.min() >= 0
        assert copy.max() <= 1

    def test_keypoints_back_by_hand(self):
        """Of a copy of 3 x 4 px: a third along its right edge is a third along the top edge of 8 x 6 px."""
        transform = ImageTransform.of(8, 6, SecondViewRules(downscale=2, rotate=90))
        assert transform.size == (3, 4)
        back = transform.keypoints_back(Keypoints.from_points([[2.5, 1.0]], 3, 30))
        np.testing.assert_allclose(back.table, [[2.5, -0.5, 6, 300]], atol=1e-5)

    def test_names(self):
        assert transformed_name("a.jpg", SecondViewRules(downscale=3)) == "a.jpg@shrunk-3"
        assert transformed_name("b/a.jpg", SecondViewRules(rotate=-45)) == "b/a.jpg@turned--45"
        assert transformed_name("a.jpg", SecondViewRules(2.5, 180)) == "a.jpg@shrunk-2.5-turned-180"

    def test_a_pixel_is_the_least(self):
        assert ImageTransform.of(320, 2, SecondViewRules(downscale=1000)).size == (1, 1)
