"""Structure from motion on the synthetic world, whose cameras are known exactly."""

from __future__ import annotations

import contextlib
import math
import shutil
from dataclasses import replace

import cv2
import numpy as np
import pycolmap
import pytest

from logpolar.errors import StorageError
from logpolar.evaluation.alignment import Poses
from logpolar.evaluation.options import SfmTestOptions
from logpolar.evaluation.posed_scenes import PosedScene, read_scene
from logpolar.evaluation.sfm import (
    MethodExtractor,
    by_colmap,
    by_method,
    camera_errors,
    choose_photos,
    mean_of_repeats,
    measure_structure,
    read_poses,
    score_structure,
    sum_up,
    write_photos,
)
from logpolar.features.extractor import Extractor
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import SiftDetector
from logpolar.settings import DetectionOptions
from logpolar.sfm.mapper import DATABASE, MODELS, NoModelError
from synthetic_world import standard_world, write_workspace

TEST = SfmTestOptions(keypoints=700, repeats=1)


@pytest.fixture(scope="module")
def world():
    return standard_world(cameras=6)


@pytest.fixture(scope="module")
def photos(world, tmp_path_factory):
    """Six photos of the world and the folder that they are in."""
    place = tmp_path_factory.mktemp("structure")
    write_workspace(world, place / "world")
    chosen = choose_photos(read_scene(place / "world", min_shared=1), TEST)
    write_photos(chosen, place / "photos")
    return chosen, place / "photos"


@pytest.fixture(scope="module")
def measured(photos, tmp_path_factory):
    """RootSIFT through our pipeline, and COLMAP alone: their folders and scores."""
    found = {}
    for name, way in (("rootsift", by_method("rootsift", 0.8, TEST)), ("colmap", by_colmap(TEST))):
        output = tmp_path_factory.mktemp("models") / name
        found[name] = output, measure_structure(*photos, output, way, TEST)[0]
    return found


class TestScores:
    @pytest.mark.parametrize("name", ["rootsift", "colmap"])
    def test_all_photos_are_registered_and_right(self, measured, name):
        _, score = measured[name]
        assert score.registered == [f"view{number}.png.png" for number in range(6)]
        assert (score.images, score.right, score.pairs, score.reduced) == (6, 6, 15, 0)
        assert 9 <= score.verified <= 15
        assert np.median(score.errors.degrees) < 1
        assert np.median(score.errors.fractions) < 0.08

    @pytest.mark.parametrize("name", ["rootsift", "colmap"])
    def test_figures_are_those_on_disk(self, measured, name):
        output, score = measured[name]
        database = pycolmap.Database.open(str(output / DATABASE))
        counts = [len(database.read_keypoints(image.image_id)) for image in database.read_all_images()]
        database.close()
        assert max(counts) == TEST.keypoints  # no image has more, second orientations included
        assert score.keypoints_mean == pytest.approx(np.mean(counts))
        models = [pycolmap.Reconstruction(str(place)) for place in (output / MODELS).iterdir()]
        assert score.models == len(models)
        model = max(models, key=lambda each: each.num_reg_images())
        tracks = [len(point.track.elements) for point in model.points3D.values()]
        assert (score.points, score.mean_track_length) == (len(tracks), pytest.approx(np.mean(tracks)))

    def test_no_model(self, photos, measured):
        def fail(folder, output):
            raise NoModelError("none")

        found = measure_structure(*photos, measured["colmap"][0], fail, TEST)
        (score,) = found
        assert (score.images, score.registered, score.right, score.models, score.points) == (6, [], 0, 0, 0)
        plain = mean_of_repeats(found)
        assert plain["rotation_median"] is plain["position_median"] is plain["mean_track_length"] is None
        assert (plain["registered"], plain["registered_most"], plain["pairs"]) == (0, 0, 15)

    def test_means_and_sums(self, measured, photos):
        output, whole = measured["colmap"]
        none = score_structure(photos[0], output / DATABASE, output, None)
        plain = mean_of_repeats([whole, none])
        own = whole.to_dict()
        assert (plain["registered"], plain["registered_least"], plain["registered_most"]) == (3, 0, 6)
        assert (plain["images"], plain["right"], plain["points"]) == (6, 3, whole.points / 2)
        assert plain["rotation_median"] == own["rotation_median"]  # of those that have one
        assert plain["repeats"] == [own, none.to_dict()]
        both = sum_up([plain, mean_of_repeats([none])])
        assert (both["images"], both["registered"], both["registered_most"], both["right"]) == (12, 3, 6, 3)
        assert both["position_median"] == own["position_median"]
        assert sum_up([mean_of_repeats([none])])["position_median"] is None

    def test_repeats(self, photos, measured, tmp_path, monkeypatch):
        """From the same matches with seeds that follow; a second call finds them again."""
        output = shutil.copytree(measured["rootsift"][0], tmp_path / "model")
        seeds, mapping = [], pycolmap.incremental_mapping

        def counted(database, images, place, options, **more):
            seeds.append(options.random_seed)
            return mapping(database, images, place, options, **more)

        monkeypatch.setattr(pycolmap, "incremental_mapping", counted)
        way = by_method("rootsift", 0.8, TEST)
        found = [mean_of_repeats(measure_structure(*photos, output, way, replace(TEST, repeats=2))) for _ in range(2)]
        assert seeds == [1, 2]  # of the second repeat alone, whose mapping starts from two focal lengths
        assert found[0] == found[1]
        assert [each["registered"] for each in found[0]["repeats"]] == [6, 6]
        assert found[0]["repeats"][0] == measured["rootsift"][1].to_dict()


class TestColmap:
    def test_coarsest_keypoints_are_kept(self, photos, measured, tmp_path):
        """COLMAP itself, asked for as many, finds more."""
        options = pycolmap.FeatureExtractionOptions()
        options.sift.max_num_features = TEST.keypoints
        pycolmap.extract_features(tmp_path / "all.db", photos[1], ["view0.png.png"], extraction_options=options)
        with contextlib.closing(pycolmap.Database.open(str(tmp_path / "all.db"))) as database:
            rows, described = database.read_keypoints(1), database.read_descriptors(1).data
        with contextlib.closing(pycolmap.Database.open(str(measured["colmap"][0] / DATABASE))) as database:
            number = next(image.image_id for image in database.read_all_images() if image.name == "view0.png.png")
            kept, kept_described = database.read_keypoints(number), database.read_descriptors(number).data
        assert len(rows) > len(kept) == TEST.keypoints
        places = [int(np.flatnonzero((rows == row).all(axis=1))[0]) for row in kept]
        np.testing.assert_array_equal(described[places], kept_described)
        scale = np.hypot(rows[:, 2], rows[:, 4])
        others = np.setdiff1d(np.arange(len(rows)), places)
        assert scale[others].max() <= scale[places].min()

    def test_second_run_gives_the_first_ones_result(self, photos, measured, monkeypatch):
        monkeypatch.setattr(pycolmap, "extract_features", lambda *_, **__: pytest.fail("was finished before"))
        output, score = measured["colmap"]
        again = measure_structure(*photos, output, by_colmap(TEST), TEST)
        assert again[0].to_dict() == score.to_dict()

    def test_other_options_start_anew(self, photos, measured, monkeypatch):
        monkeypatch.setattr(pycolmap, "extract_features", lambda *_, **__: pytest.fail("anew"))
        with pytest.raises(pytest.fail.Exception, match="anew"):
            by_colmap(SfmTestOptions(keypoints=399))(photos[1], measured["colmap"][0])

    def test_old_pycolmap(self, photos, tmp_path, monkeypatch):
        monkeypatch.setattr(pycolmap, "__version__", "3.13.0")
        with pytest.raises(Exception, match=r"needs pycolmap 4 or newer, not 3\.13\.0"):
            by_colmap(TEST)(photos[1], tmp_path / "model")


class TestCameras:
    @pytest.fixture
    def moved(self, photos, tmp_path):
        """The true model after a similarity, on disk, with one camera turned by 20 degrees and one shifted."""
        model = pycolmap.Reconstruction(str(photos[1].parent / "world" / "sparse"))
        for image in model.images.values():
            image.name += ".png"
        rotation = pycolmap.Rotation3d(np.array([0.5, 0.5, -0.5, 0.5]))
        model.transform(pycolmap.Sim3d(0.25, rotation, np.array([1.0, 2.0, 3.0])))
        model.write(str(tmp_path))
        return read_poses(tmp_path)

    def test_moved_model_has_no_errors(self, moved, photos):
        errors = camera_errors(moved, photos[0].cameras)
        assert errors.degrees.max() < 1e-5
        assert errors.fractions.max() < 1e-7

    def test_disturbed_cameras(self, moved, photos):
        cameras = photos[0].cameras
        extent = Poses.of([(camera.rotation, camera.centre) for camera in cameras.values()]).extent
        rotation, centre = moved["view1.png.png"]
        moved["view1.png.png"] = cv2.Rodrigues(np.radians([0, 20.0, 0]))[0] @ rotation, centre
        rotation, centre = moved["view4.png.png"]
        moved["view4.png.png"] = rotation, centre + np.array([0, 0, 0.25 * 0.5 * extent])
        errors = camera_errors(moved, cameras)
        np.testing.assert_allclose(errors.degrees, [0, 20, 0, 0, 0, 0], atol=1e-4)
        np.testing.assert_allclose(errors.fractions, [0, 0, 0, 0, 0.5, 0], atol=1e-6)
        assert errors.agree.tolist() == [True, False, True, True, False, True]

    def test_part_of_the_cameras(self, moved, photos):
        """The extent is that of all true cameras, whichever were found."""
        part = {name: moved[name] for name in list(moved)[:3]}
        assert camera_errors(part, photos[0].cameras).fractions.max() < 1e-7
        alone = {name: moved[name] for name in list(moved)[:1]}
        assert math.isinf(camera_errors(alone, photos[0].cameras).degrees[0])

    def test_true_cameras_at_one_place(self, moved, photos):
        still = {name: replace(camera, translation=np.zeros(3)) for name, camera in photos[0].cameras.items()}
        with pytest.raises(StorageError, match="all at the same place"):
            camera_errors(moved, still)


class TestExtractor:
    def test_models_are_described_as_by_logpolar_sfm(self, photos):
        """To the bit, where images need not be reduced."""
        path = photos[1] / "view0.png.png"
        ours = MethodExtractor("logpolar-96", 50, DetectionOptions(max_size=1600), {}).extract(path)
        theirs = Extractor("logpolar-96", SiftDetector(50)).extract(path)
        np.testing.assert_array_equal(ours.keypoints.table, theirs.keypoints.table)
        np.testing.assert_array_equal(ours.descriptors, theirs.descriptors)
        assert ours.image_size == theirs.image_size

    def test_reduced_images_have_keypoints_in_their_own_pixels(self, photos):
        path = photos[1] / "view0.png.png"
        ours = MethodExtractor("rootsift", 50, DetectionOptions(max_size=160), {}).extract(path)
        theirs = Extractor("logpolar-96", SiftDetector(50), max_size=160).extract(path)
        np.testing.assert_array_equal(ours.keypoints.table, theirs.keypoints.table)
        assert ours.keypoints.xy.max() > 160

    def test_given_keypoints(self, photos):
        path, given = photos[1] / "view0.png.png", Keypoints.from_points([[100.0, 80.0], [200.0, 90.0]], 9.0)
        found = MethodExtractor("rootsift", 50, DetectionOptions(max_size=0), {}).extract(path, given)
        assert (found.keypoints is given, found.descriptors.shape) == (True, (2, 128))

    def test_settings_tell_extractors_apart(self):
        ways = (("sift", 50, 160), ("rootsift", 50, 160), ("sift", 60, 160), ("sift", 50, 0))
        opened = [MethodExtractor(spec, count, DetectionOptions(max_size=size), {}) for spec, count, size in ways]
        assert len({str(each.settings) for each in opened}) == 4


class TestPhotos:
    @pytest.fixture(scope="class")
    @classmethod
    def scene(cls, castle):
        return read_scene(castle[0], min_shared=1)

    def test_every_second_photo_is_smaller(self, scene, posed_world, tmp_path):
        photos = choose_photos(scene, SfmTestOptions(downscale=2))
        write_photos(photos, tmp_path)
        assert photos.names == [f"view{number}.png.png" for number in range(6)]
        for number, name in enumerate(photos.names):
            written = cv2.imread(str(tmp_path / name), cv2.IMREAD_UNCHANGED)
            truth = posed_world.views[number][0]
            if number % 2:
                assert written.shape == (60, 80)
                mean = truth.reshape(60, 2, 80, 2).mean(axis=(1, 3))
                assert np.abs(written - mean).max() <= 0.51
            else:
                np.testing.assert_array_equal(written, truth)
            np.testing.assert_allclose(photos.cameras[name].centre, scene.images[number].camera.centre)

    @pytest.mark.parametrize("name", ["../written", "{}/written"])
    def test_nothing_is_written_outside(self, scene, tmp_path, name):
        images = [replace(each, name=name.format(tmp_path)) for each in scene.images[:2]]
        photos = choose_photos(replace(scene, images=images, pairs=[]), SfmTestOptions())
        with pytest.raises(StorageError, match="is not the name of a file"):
            write_photos(photos, tmp_path / "photos")
        assert not list(tmp_path.glob("written*"))

    def test_drawn_by_the_seed(self, scene):
        chosen = [tuple(choose_photos(scene, SfmTestOptions(images=3, seed=seed)).names) for seed in (0, 0, 1, 2, 3)]
        assert chosen[0] == chosen[1]
        assert len(set(chosen)) > 1
        assert all(list(names) == sorted(names) and len(set(names)) == 3 for names in chosen)
        assert len(choose_photos(scene, SfmTestOptions(images=99)).names) == 6

    def test_identity_tells_photos_apart(self, scene):
        found = [choose_photos(scene, test).identity() for test in (SfmTestOptions(), SfmTestOptions(downscale=3))]
        found += [choose_photos(scene, SfmTestOptions(images=4)).identity()]
        assert len({each["photos"] for each in found}) == 3

    def test_one_image(self, scene):
        with pytest.raises(StorageError, match="at least two images"):
            choose_photos(PosedScene("small", scene.images[:1], []), SfmTestOptions())
        with pytest.raises(StorageError, match="at least two images"):
            choose_photos(scene, SfmTestOptions(images=1))
