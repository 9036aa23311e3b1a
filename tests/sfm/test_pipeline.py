"""Photos of an exact world to a model; the slow stages are those of the shared scene, resumed."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pycolmap
import pytest

from colmap_databases import query
from colmap_scene import open_few
from logpolar.errors import LogpolarError, StorageError
from logpolar.features.collections import open_features
from logpolar.matching.files import MatchFile, MatchWriter
from logpolar.matching.merging import merge_sources
from logpolar.sfm.cameras import CameraOptions
from logpolar.sfm.localisation import Localiser
from logpolar.sfm.mapper import read_report
from logpolar.sfm.pipeline import SfmInputs, SfmOptions, reconstruct
from logpolar.sfm.second_looks import LookReport
from synthetic_world import standard_world


def start(scene, output):
    """A folder as a run leaves it that was stopped after matching."""
    output.mkdir()
    for name in ("features.h5", "matches.h5"):
        shutil.copyfile(scene / name, output / name)
    (output / "pairs.txt").touch()
    return output


@pytest.fixture(scope="module")
def finished(scene, tmp_path_factory):
    output = start(scene, tmp_path_factory.mktemp("finished") / "model")
    return output, reconstruct(scene / "photos", output, open_few)


def fail(*arguments, **options):
    pytest.fail("was finished before")


class TestModel:
    def test_all_photos_are_registered(self, finished):
        _, report = finished
        assert [image.name for image in report.registered] == [
            "0.png",
            "1.png",
            "2.png",
            "3.png",
            "4.png",
            "deep/5.png",
        ]
        assert (report.photos, report.left_out, report.unregistered, report.pairs) == (6, {}, 0, 15)
        assert report.verified >= 9

    def test_figures_are_those_of_the_model_on_disk(self, finished):
        output, report = finished
        model = pycolmap.Reconstruction(str(output / "sparse" / str(report.model)))
        tracks = [len(point.track.elements) for point in model.points3D.values()]
        assert report.points == len(tracks)
        assert report.mean_track_length == pytest.approx(np.mean(tracks))
        assert 0 < report.mean_reprojection_error < 1
        assert sum(image.points for image in report.registered) == sum(tracks)

    def test_cameras_are_where_they_were(self, finished):
        """Up to a similarity, by Umeyama's formula; the focal lengths were not known."""
        truth = np.array([-camera.rotation.T @ camera.translation for camera in standard_world(cameras=6).cameras])
        found = np.array([image.centre for image in finished[1].registered])
        a, b = found - found.mean(axis=0), truth - truth.mean(axis=0)
        left, sizes, right = np.linalg.svd(b.T @ a)
        turn = left @ np.diag([1, 1, np.linalg.det(left @ right)]) @ right
        scale = (sizes * [1, 1, np.linalg.det(left @ right)]).sum() / (a**2).sum()
        assert np.linalg.norm(scale * a @ turn.T - b, axis=1).max() < 0.1 * np.linalg.norm(b, axis=1).max()

    def test_report_and_pairs_are_written(self, finished):
        output, report = finished
        written = json.loads((output / "report.json").read_text())
        assert written["points"] == report.points
        assert len((output / "pairs.txt").read_text().splitlines()) == 15
        expected = ["database.db", "features.h5", "matches.h5", "pairs.txt", "report.json", "sparse"]
        assert sorted(path.name for path in output.iterdir()) == expected


class TestMapping:
    @pytest.mark.parametrize("mapper", ["incremental", "global"])
    def test_fixed_intrinsics_stay(self, scene, tmp_path, mapper):
        known = CameraOptions("single", "SIMPLE_PINHOLE", "352,160,120")
        options = SfmOptions(cameras=known, fixed_intrinsics=True, refine=False, mapper=mapper)
        output = start(scene, tmp_path / "m")
        report = reconstruct(scene / "photos", output, open_few, options)
        assert len(report.registered) >= 4
        (camera,) = pycolmap.Reconstruction(str(output / "sparse" / str(report.model))).cameras.values()
        assert (camera.model.name, camera.params.tolist()) == ("SIMPLE_PINHOLE", [352, 160, 120])


class TestSecondLooks:
    def test_their_matches_are_mapped_and_photos_localised_all_the_same(self, scene, tmp_path):
        options = SfmOptions("sequential", overlap=2, refine=False, second_look="same", look_at="all", region_size=400)
        photos, said = scene / "photos", []
        once = reconstruct(photos, start(scene, tmp_path / "once"), open_few, replace(options, second_look="none"))
        output = start(scene, tmp_path / "twice")
        twice = reconstruct(photos, output, open_few, options, say=said.append, open_second=open_few)
        assert re.search(r"second looks: \d{3,} matches more, of \d pairs", "\n".join(said))
        assert len(twice.registered) >= len(once.registered)
        assert twice.points > 1.2 * once.points
        views = Localiser(output).model.images.values()
        assert any(len(view.points2D) > 300 for view in views)
        (found,) = Localiser(output).localise([photos / "2.png"])
        assert found.inliers > 20
        assert reconstruct(photos, output, open_few, options, open_second=fail) == twice
        assert (output / "merged.h5").exists()
        again = reconstruct(photos, output, open_few, replace(options, second_look="none"))
        assert again.points == once.points
        assert not (output / "merged.h5").exists()


class TestMissingPhotos:
    """Of four photos, whose files say they are of a chain, the last has no matches until a second look."""

    OPTIONS = SfmOptions("sequential", overlap=2, refine=False, second_look="same", region_size=400)

    @pytest.fixture
    def output(self, scene, tmp_path):
        """Stopped after matching; of the deep photo only ten matches with each other one are left."""
        output = start(scene, tmp_path / "model")
        with MatchFile(scene / "matches.h5") as file:
            found = {pair: file.read(*pair) for pair in file.pairs()}
            settings = file.settings
        with open_features(scene / "features.h5") as features:
            counts = {name: features.count(name) for name in features.names()}
        with MatchWriter(output / "matches.h5", settings, overwrite=True) as writer:
            for pair, matches in found.items():
                kept = matches[:12] if "deep/5.png" in pair else matches
                writer.add({pair: (counts[pair[0]], kept)})
        return output

    def test_their_pairs_are_looked_at_again(self, scene, output):
        said = []
        report = reconstruct(scene / "photos", output, open_few, self.OPTIONS, say=said.append, open_second=open_few)
        assert "1 of 6 photos are missing from the model" in said
        assert "second looks at 2 pairs" in said
        assert said.count("database and verification") == 2
        assert len(report.registered) == 6
        assert read_report(output) == report

    def test_a_run_that_is_stopped_before_the_second_look_goes_on_there(self, scene, output, monkeypatch):
        given = scene / "photos", output, open_few, self.OPTIONS
        with monkeypatch.context() as patch:
            patch.setattr("logpolar.sfm.second_looks.look_at_pairs", fail)
            with pytest.raises(pytest.fail.Exception):
                reconstruct(*given, open_second=open_few)
        said = []
        assert len(reconstruct(*given, say=said.append, open_second=open_few).registered) == 6
        assert said.count("database and verification") == 1
        assert reconstruct(*given, say=said.append, open_second=fail).photos == 6
        assert said[-1] == "database and model are up to date"

    def test_looks_that_add_nothing_leave_the_model(self, scene, output, monkeypatch):
        nothing = LookReport(2, 0, 0)
        monkeypatch.setattr("logpolar.sfm.second_looks.look_at_pairs", lambda *arguments: nothing)
        report = reconstruct(scene / "photos", output, open_few, self.OPTIONS, open_second=open_few)
        assert len(report.registered) == 5
        assert read_report(output) == report
        assert not (output / "merged.h5").exists()


class TestResuming:
    def test_nothing_is_done_twice(self, finished, scene, monkeypatch):
        monkeypatch.setattr(pycolmap, "incremental_mapping", fail)
        said = []
        assert reconstruct(scene / "photos", finished[0], open_few, say=said.append) == finished[1]
        assert said[-1] == "database and model are up to date"

    def test_a_killed_run_resumes(self, finished, scene, tmp_path, monkeypatch):
        """Stopped while mapping, with a new database beside the old models."""
        output = shutil.copytree(finished[0], tmp_path / "model")
        with monkeypatch.context() as patch:
            patch.setattr(pycolmap, "incremental_mapping", lambda *a, **k: pytest.fail("stopped here"))
            with pytest.raises(pytest.fail.Exception):
                reconstruct(scene / "photos", output, open_few, SfmOptions(seed=1))
        assert read_report(output) is None
        monkeypatch.setattr("logpolar.sfm.pipeline.map_database", lambda *arguments, **more: "mapped")
        assert reconstruct(scene / "photos", output, open_few) == "mapped"

    def test_features_of_a_collection_are_used(self, finished, scene, tmp_path, monkeypatch):
        merge_sources([finished[0] / "features.h5"], tmp_path / "features")
        monkeypatch.setattr("logpolar.sfm.pipeline.map_database", lambda *arguments, **more: "mapped")
        inputs = SfmInputs(features=tmp_path / "features")
        options = SfmOptions("sequential", overlap=2, refine=False)
        assert reconstruct(scene / "photos", tmp_path / "model", fail, options, inputs=inputs) == "mapped"
        assert not (tmp_path / "model" / "features.h5").exists()
        with open_features(tmp_path / "features") as features:
            counts = sorted(features.count(name) for name in features.names())
        assert (
            sorted(rows for (rows,) in query(tmp_path / "model" / "database.db", "SELECT rows FROM keypoints"))
            == counts
        )

    def test_other_options_map_anew(self, finished, scene, tmp_path):
        output = shutil.copytree(finished[0], tmp_path / "model")
        report = reconstruct(scene / "photos", output, open_few, SfmOptions("sequential", overlap=3))
        assert report.made_of != finished[1].made_of
        assert report.pairs == len(query(output / "database.db", "SELECT * FROM matches")) == 12
        assert len(report.registered) >= 3

    def test_a_removed_photo_is_dropped(self, finished, scene, tmp_path):
        """And everything else is kept: nothing is extracted or matched again."""
        photos, output = shutil.copytree(scene / "photos", tmp_path / "photos"), tmp_path / "model"
        shutil.copytree(finished[0], output)
        (photos / "4.png").unlink()
        report = reconstruct(photos, output, open_few)
        assert (report.photos, report.pairs) == (5, 10)
        assert "4.png" not in [image.name for image in report.registered]
        assert query(output / "database.db", "SELECT name FROM images WHERE name = '4.png'") == []

    def test_other_features_are_refused(self, finished, scene):
        with pytest.raises(StorageError, match="max_keypoints"):
            reconstruct(scene / "photos", finished[0], lambda **more: open_few(**more, max_keypoints=9))


class TestRefusals:
    def assert_refused(self, photos, output, words, **options):
        with pytest.raises(LogpolarError, match=words):
            reconstruct(photos, output, open_few, **options)

    def test_folders(self, scene, tmp_path):
        self.assert_refused(tmp_path / "none", tmp_path / "m", "no such folder")
        self.assert_refused(scene / "photos", scene / "photos" / "m", "inside the photos' folder")
        self.assert_refused(scene / "photos", tmp_path / "none" / "m", "does not exist")

    def test_a_single_photo(self, scene, tmp_path):
        self.assert_refused(scene / "photos" / "deep", tmp_path / "m", "at least two photos")
        assert not (tmp_path / "m").exists()

    def test_copies_are_named(self, tmp_path):
        (tmp_path / "photos").mkdir()
        for name in ("a.jpg", "b.jpg", "c.jpg"):
            (tmp_path / "photos" / name).write_text("no photo" if name != "b.jpg" else "nothing!")
        said = []
        self.assert_refused(tmp_path / "photos", tmp_path / "m", "readable photos", warn=said.append)
        assert said[0] == "a.jpg: copies of this photo add nothing: c.jpg"

    def test_none_can_be_read(self, tmp_path):
        (tmp_path / "photos").mkdir()
        for name in ("a.jpg", "b.jpg"):
            (tmp_path / "photos" / name).write_text("no photo")
        self.assert_refused(tmp_path / "photos", tmp_path / "m", r"readable photos; .*a\.jpg")

    @pytest.mark.parametrize("overwrite", [False, True])
    @pytest.mark.parametrize("name", ["database.db", "sparse", "pairs.txt", "report.json", "summary.png"])
    def test_a_project_of_someone_else_is_left_alone(self, scene, tmp_path, name, overwrite):
        precious = tmp_path / "m" / (name if name != "sparse" else "sparse/0/points3D.bin")
        precious.parent.mkdir(parents=True)
        precious.write_text("precious")
        words = f"{name} was not made by this command"
        self.assert_refused(scene / "photos", tmp_path / "m", words, overwrite=overwrite)
        assert precious.read_text() == "precious"
        assert [path.name for path in (tmp_path / "m").iterdir()] == [name]

    def test_no_model(self, scene, tmp_path):
        (tmp_path / "pairs.txt").write_text("0.png 1.png\n")
        shutil.copyfile(scene / "features.h5", start(scene, tmp_path / "m") / "features.h5")
        (tmp_path / "m" / "matches.h5").unlink()
        self.assert_refused(
            scene / "photos",
            tmp_path / "m",
            "reconstruction failed.*6 photos",
            inputs=SfmInputs(tmp_path / "pairs.txt"),
        )
        assert not (tmp_path / "m" / "sparse").exists()
        assert not list((tmp_path / "m").glob(".*"))
