from __future__ import annotations

import cv2  # noqa: F401 - before pycolmap, whose zlib breaks OpenCV's PNG writer otherwise
import numpy as np
import pycolmap
import pytest

from logpolar.errors import StorageError
from logpolar.sfm.survey import common_points, find_database, find_models, survey


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """COLMAP's own synthetic scene: five photos, noise of 0.5 pixels, with its database."""
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig, options.num_frames_per_rig = 1, 1, 5
    options.num_points3D = 60
    folder = tmp_path_factory.mktemp("survey")
    with pycolmap.Database.open(str(folder / "database.db")) as file:
        model = pycolmap.synthesize_dataset(options, file)
        noise = pycolmap.SyntheticNoiseOptions(point2D_stddev=0.5)
        pycolmap.synthesize_noise(noise, model)
    (folder / "sparse" / "3").mkdir(parents=True)
    model.write(str(folder / "sparse" / "3"))
    return folder


@pytest.fixture(scope="module")
def facts(place):
    return survey(find_models(place), find_database(place / "sparse" / "3"), {"a.jpg": "a.jpg: not an image"})


def test_photos_are_those_of_model_database_and_unreadable_ones(place, facts):
    model = pycolmap.Reconstruction(str(place / "sparse" / "3"))
    assert sorted(photo.name for photo in facts.photos) == sorted(
        ["a.jpg", *(image.name for image in model.images.values())]
    )
    for image in model.images.values():
        photo = next(photo for photo in facts.photos if photo.name == image.name)
        assert (photo.model, photo.keypoints, photo.points) == (3, image.num_points2D(), image.num_points3D)


def test_error_of_a_photo_is_that_of_its_points(place, facts):
    model = pycolmap.Reconstruction(str(place / "sparse" / "3"))
    image = next(iter(model.images.values()))
    errors = [
        np.linalg.norm(image.project_point(model.points3D[point.point3D_id].xyz) - point.xy)
        for point in image.points2D
        if point.has_point3D()
    ]
    photo = next(photo for photo in facts.photos if photo.name == image.name)
    assert photo.error == pytest.approx(np.mean(errors))
    assert 0.3 < photo.error < 1


def test_error_of_a_model_is_colmaps(place, tmp_path):
    """A mean over points, which differs from one over photos where some photos see few points."""
    model = pycolmap.Reconstruction(str(place / "sparse" / "3"))
    first = min(model.images)
    for number in sorted(model.points3D)[:40]:
        track = model.points3D[number].track.elements
        model.delete_observation(first, next(each.point2D_idx for each in track if each.image_id == first))
    model.update_point_3d_errors()
    model.write(str(tmp_path))
    facts = survey(find_models(tmp_path))
    assert facts.models[0].error == pytest.approx(model.compute_mean_reprojection_error())
    assert facts.models[0].error != pytest.approx(np.mean([photo.error for photo in facts.photos]), abs=1e-6)


def test_pairs_have_inliers_and_common_points(place, facts):
    assert len(facts.pairs) == 10
    model = facts.models[0]
    for (first, second), shared in zip(facts.pairs.rows.tolist(), facts.pairs.shared.tolist(), strict=True):
        sets = [set(model.observed[model.photos.tolist().index(row)].tolist()) for row in (first, second)]
        assert shared == len(sets[0] & sets[1]) > 0
    assert (facts.pairs.inliers >= facts.pairs.shared).all()
    assert len(facts.islands) == 2, "the unreadable photo is alone"


def test_the_lens(facts):
    (lens,) = facts.lenses.values()
    assert (lens.kind, lens.width, lens.height, lens.focal) == ("SIMPLE_RADIAL", 1024, 768, 1280)


def test_centres_are_colmaps(place, facts):
    model = pycolmap.Reconstruction(str(place / "sparse" / "3"))
    names = [facts.photos[row].name for row in facts.models[0].photos]
    for name, centre in zip(names, facts.models[0].centres, strict=True):
        np.testing.assert_allclose(model.find_image_with_name(name).projection_center(), centre, atol=1e-9)


def test_a_model_alone_knows_no_matches(place):
    facts = survey(find_models(place / "sparse" / "3"))
    assert set(facts.pairs.inliers.tolist()) == {-1}
    assert facts.verified.all()
    assert facts.photos[0].keypoints is None


def test_common_points_of_a_model_without_points(facts):
    from dataclasses import replace

    empty = replace(facts.models[0], points=np.zeros((0, 3)), observed=[np.zeros(0, int)] * 5)
    assert not common_points(empty).any()


def test_photos_of_points_that_are_gone(place, tmp_path):
    """An emptied file of points, while the photos still refer to them."""
    pycolmap.Reconstruction(str(place / "sparse" / "3")).write_text(str(tmp_path))
    (tmp_path / "points3D.txt").write_text("")
    facts = survey(find_models(tmp_path))
    assert (len(facts.models[0].points), facts.photos[0].points, facts.photos[0].error) == (0, 0, None)
    assert facts.models[0].error is None


def test_folders_without_a_model(tmp_path):
    assert find_models(tmp_path) == {}
    assert find_models(tmp_path / "missing") == {}


def test_a_damaged_database_is_one_line(place, tmp_path):
    (tmp_path / "database.db").write_bytes(b"no database")
    with pytest.raises(StorageError, match=r"database.db: not a COLMAP database"):
        survey(find_models(place), tmp_path / "database.db")
