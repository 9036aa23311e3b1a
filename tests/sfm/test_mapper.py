"""The mapper on COLMAP's own synthetic scene; whole pipelines are tested with those who call it."""

from __future__ import annotations

import json

import cv2  # noqa: F401 - before pycolmap, whose zlib breaks OpenCV's PNG writer otherwise
import numpy as np
import pycolmap
import pytest

from logpolar.errors import StorageError
from logpolar.sfm import attempts, mapper
from logpolar.sfm.attempts import map_best
from logpolar.sfm.mapper import (
    MapperOptions,
    NoModelError,
    claim_folder,
    incremental_options,
    largest_model,
    map_database,
    polish,
    read_report,
    run_mapper,
)

FEW = MapperOptions(min_model_size=3, threads=1)


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig, options.num_frames_per_rig = 1, 1, 5
    options.num_points3D = 80
    path = tmp_path_factory.mktemp("synthetic") / "database.db"
    with pycolmap.Database.open(str(path)) as file:
        pycolmap.synthesize_dataset(options, file)
    return path


@pytest.fixture(scope="module")
def mapped(database, tmp_path_factory):
    output = tmp_path_factory.mktemp("mapped")
    return output, map_database(database, output, output, FEW, "all of it", {"bad.jpg": "cannot be read"})


def test_report_is_of_the_model_on_disk(mapped):
    output, report = mapped
    model = pycolmap.Reconstruction(str(output / "sparse" / str(report.model)))
    assert (report.photos, report.unregistered, report.pairs, report.verified) == (6, 0, 10, 10)
    assert report.points == model.num_points3D()
    assert {image.name for image in report.registered} == {model.images[n].name for n in model.reg_image_ids()}
    assert read_report(output) == report


@pytest.mark.parametrize("content", [b"", b"[]", b"no JSON", b"{}", b'{"registered": 1}', b'{"made_of": ""}'])
def test_a_damaged_report_is_none(mapped, tmp_path, content):
    (tmp_path / "sparse").mkdir()
    (tmp_path / "report.json").write_bytes(content)
    assert read_report(tmp_path) is None


def test_without_models_a_report_does_not_count(mapped, tmp_path):
    (tmp_path / "report.json").write_bytes((mapped[0] / "report.json").read_bytes())
    assert read_report(tmp_path) is None


def test_no_model_leaves_earlier_ones(database, tmp_path, monkeypatch):
    monkeypatch.setattr(pycolmap, "incremental_mapping", lambda *arguments, **options: {})
    (tmp_path / "sparse").mkdir()
    (tmp_path / "sparse" / "old").touch()
    with pytest.raises(NoModelError, match=r"reconstruction failed.*5 photos, 10 of 10 pairs verified"):
        map_database(database, tmp_path, tmp_path, FEW, "")
    assert [path.name for path in tmp_path.rglob("*")] == ["sparse", "old"]


def test_errors_of_colmap_are_one_line(database, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("[file.cc:1] the disk is full\nstack trace")

    monkeypatch.setattr(pycolmap, "incremental_mapping", fail)
    with pytest.raises(StorageError, match=r"database.db: COLMAP could not map it \(\[file.cc:1\] the disk is full\)$"):
        map_database(database, tmp_path, tmp_path, FEW, "")
    assert list(tmp_path.iterdir()) == []


def test_the_largest_has_most_images_then_most_points(mapped):
    whole, empty = pycolmap.Reconstruction(str(mapped[0] / "sparse" / "0")), pycolmap.Reconstruction()
    assert largest_model({3: empty, 5: whole, 7: empty})[0] == 5


def test_a_claimed_folder_is_ours(tmp_path):
    claim_folder(tmp_path)
    (tmp_path / "database.db").touch()
    claim_folder(tmp_path)
    (tmp_path / "report.json").write_text(json.dumps({"of": "another program"}))
    with pytest.raises(StorageError, match=r"database\.db was not made by this command"):
        claim_folder(tmp_path)


def test_iterations_of_bundle_adjustment_are_colmaps_or_a_fraction_of_them():
    usual, half = (incremental_options(MapperOptions(ba_iterations=share)) for share in (1.0, 0.5))
    default = pycolmap.IncrementalPipelineOptions()
    for name, expected in {"ba_local_max_num_iterations": 12, "ba_global_max_num_iterations": 25}.items():
        assert getattr(usual, name) == getattr(default, name)
        assert getattr(half, name) == expected


def test_of_several_attempts_the_one_that_explains_most_is_kept(database, tmp_path, monkeypatch):
    """The first seed finds a wrong model, with few points."""
    right, seeds = pycolmap.incremental_mapping, []

    def sometimes_wrong(path, photos, output, settings, **more):
        seeds.append(settings.random_seed)
        models = right(path, photos, output, settings, **more)
        if len(seeds) == 1:
            for number in list(models[0].point3D_ids())[8:]:
                models[0].delete_point3D(number)
            models[0].write(f"{output}/0")
        return models

    monkeypatch.setattr(pycolmap, "incremental_mapping", sometimes_wrong)
    report = map_database(database, tmp_path, tmp_path, FEW, "")
    assert seeds == [0, 1]
    assert report.points > 50
    assert [path.name for path in (tmp_path / "sparse").iterdir()] == ["0"]
    assert pycolmap.Reconstruction(str(tmp_path / "sparse" / "0")).num_points3D() == report.points


def test_the_log_stays_silent(database, tmp_path, capfd):
    map_database(database, tmp_path, tmp_path, FEW, "")
    assert "undle" not in capfd.readouterr().err


def test_the_last_adjustment_bears_incorrect_observations(database, tmp_path):
    models = run_mapper(database, tmp_path, tmp_path, FEW)
    centres = {image.name: image.projection_center() for image in models[0].images.values()}
    for number in list(models[0].point3D_ids())[::10]:
        element = models[0].points3D[number].track.elements[0]
        point = models[0].images[element.image_id].points2D[element.point2D_idx]
        point.xy = np.add(point.xy, [3.0, -2.0])
    pycolmap.bundle_adjustment(squares := pycolmap.Reconstruction(models[0]), pycolmap.BundleAdjustmentOptions())
    polish(models, tmp_path, FEW)
    written = pycolmap.Reconstruction(str(tmp_path / "0"))
    moved = [
        sum(np.linalg.norm(image.projection_center() - centres[image.name]) for image in model.images.values())
        for model in (squares, written)
    ]
    assert moved[1] < 0.7 * moved[0]


def test_a_model_that_the_last_adjustment_spoils_stays_as_it_was(database, tmp_path, monkeypatch):
    models = run_mapper(database, tmp_path, tmp_path, FEW)
    before = {number: models[0].images[number].projection_center() for number in models[0].reg_image_ids()}

    def collapse(model, settings, held):
        model.transform(pycolmap.Sim3d(1e-8, pycolmap.Rotation3d(), np.zeros(3)))
        for number in list(model.points3D)[::2]:
            model.points3D[number].xyz = np.ones(3)
        model.update_point_3d_errors()

    monkeypatch.setattr(mapper, "_adjust", collapse)
    polish(models, tmp_path, FEW)
    for model in (models[0], pycolmap.Reconstruction(str(tmp_path / "0"))):
        for number, centre in before.items():
            np.testing.assert_allclose(model.images[number].projection_center(), centre)


@pytest.mark.parametrize("failures", [1, 2, 4])
def test_another_seed_may_find_a_model_where_the_first_found_none(tmp_path, monkeypatch, failures):
    seeds = []
    pycolmap.Database.open(str(tmp_path / "d.db")).close()

    def run(database, photos, place, options, on_image):
        seeds.append(options.seed)
        if len(seeds) <= failures:
            raise NoModelError("no pair to start from")
        return {0: pycolmap.Reconstruction()}

    monkeypatch.setattr(attempts, "run_mapper", run)
    monkeypatch.setattr(attempts, "linked_photos", lambda database: 0)
    monkeypatch.setattr(attempts, "explained_matches", lambda models, database, astray: (9, 10))
    if failures == 4:
        with pytest.raises(NoModelError):
            map_best(tmp_path / "d.db", tmp_path, tmp_path, MapperOptions(seed=5))
    else:
        assert len(map_best(tmp_path / "d.db", tmp_path, tmp_path, MapperOptions(seed=5))) == 1
    assert seeds == [5, 6, 7, 8][: failures + 1]


@pytest.mark.parametrize(("few", "threads"), [(30, 1), (2, -1)])
def test_few_photos_are_mapped_by_one_thread(database, tmp_path, monkeypatch, few, threads):
    """Several threads round differently in every run."""
    made, seen = pycolmap.incremental_mapping, []

    def recorded(path, photos, output, settings, **more):
        seen.append(settings.num_threads)
        return made(path, photos, output, settings, **more)

    monkeypatch.setattr(pycolmap, "incremental_mapping", recorded)
    monkeypatch.setattr(mapper, "FEW_PHOTOS", few)
    map_database(database, tmp_path, tmp_path, MapperOptions(min_model_size=3), "")
    assert set(seen) == {threads}
