from __future__ import annotations

import json
from itertools import combinations

import h5py
import numpy as np
import pytest

from feature_files import make_features, true_matches, write_feature_file
from logpolar.errors import LogpolarError, StorageError
from logpolar.features.files import FeatureWriter
from logpolar.integrations.imc import exporting
from logpolar.integrations.imc.checking import check_submission
from logpolar.integrations.imc.config import SubmissionOptions
from logpolar.integrations.imc.exporting import export_submission
from logpolar.matching.batch import match_pairs


def arrays(path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: item[()] for name, item in file.items()}


def test_layout_by_hand(submission):
    scene = submission / "phototourism" / "reichstag"
    found = {kind: arrays(scene / f"{kind}.h5") for kind in ("keypoints", "descriptors", "scales", "angles", "scores")}
    for number, key in enumerate(("a", "b", "c")):
        features = make_features(number)
        np.testing.assert_array_equal(found["keypoints"][key], features.keypoints.xy)
        np.testing.assert_array_equal(found["descriptors"][key], features.descriptors)
        np.testing.assert_array_equal(found["scales"][key], features.keypoints.size)
        np.testing.assert_array_equal(found["angles"][key], features.keypoints.angle)
        assert found["scores"][key].shape == (20,)
    matches = arrays(scene / "matches.h5")
    assert matches.keys() == {"b-a", "c-a", "c-b"}
    assert matches["b-a"].T.tolist() == true_matches(1, 0)
    assert matches["c-b"].T.tolist() == true_matches(2, 1)


def test_config_by_hand(submission):
    (method,) = json.loads((submission / "config.json").read_text())
    assert method["config_common"] == {
        "json_label": "logpolar",
        "keypoint": "sift",
        "descriptor": "logpolar-96",
        "num_keypoints": 2048,
    }
    stereo, multiview = (method[f"config_phototourism_{task}"] for task in ("stereo", "multiview"))
    assert stereo["use_custom_matches"] is multiview["use_custom_matches"] is True
    assert stereo["geom"]["method"] == "cmp-degensac-f"
    assert multiview["colmap"] == {}


def test_our_validator_agrees(submission):
    report = check_submission(submission)
    assert report.problems == []
    assert (report.scenes, report.images, report.pairs) == (1, 3, 3)


def test_without_matches_the_benchmark_matches(files, tmp_path):
    export_submission(files[0], None, tmp_path / "s", "phototourism", "reichstag", SubmissionOptions(ratio=0.8))
    assert check_submission(tmp_path / "s").problems == []
    (method,) = json.loads((tmp_path / "s" / "config.json").read_text())
    matcher = method["config_phototourism_multiview"]["matcher"]
    assert matcher["filtering"] == {"type": "snn_ratio_pairwise", "threshold": 0.8}
    assert not (tmp_path / "s" / "phototourism" / "reichstag" / "matches.h5").exists()


def test_scenes_and_datasets_are_added(submission, files):
    export_submission(*files, submission, "phototourism", "sacre_coeur")
    export_submission(*files, submission, "pragueparks", "pond")
    report = check_submission(submission)
    assert report.problems == []
    assert report.scenes == 3


def test_an_existing_scene(submission, files):
    with pytest.raises(LogpolarError, match="reichstag: already exists"):
        export_submission(*files, submission, "phototourism", "reichstag")
    place = export_submission(*files, submission, "phototourism", "reichstag", overwrite=True)
    assert len(arrays(place / "keypoints.h5")) == 3
    assert sorted(path.name for path in submission.iterdir()) == ["config.json", "phototourism"]


@pytest.mark.parametrize(
    ("names", "words"),
    [(["..jpg", "a.jpg"], "rename it"), (["b.jpg", "a-b.jpg", "b-a.jpg"], "two pairs would be called")],
)
def test_names_that_a_submission_cannot_hold(tmp_path, names, words):
    with FeatureWriter(tmp_path / "f.h5", {}) as writer:
        for number, name in enumerate(names):
            writer.add(name, make_features(number))
    match_pairs(tmp_path / "f.h5", tmp_path / "m.h5", list(combinations(names, 2)))
    with pytest.raises(StorageError, match=words):
        export_submission(tmp_path / "f.h5", tmp_path / "m.h5", tmp_path / "s", "phototourism", "s")


def test_a_full_disk_is_one_line_with_the_scene_and_leaves_the_former(submission, files, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "_write_matches", full)
    with pytest.raises(StorageError, match=r"phototourism.reichstag: cannot be written \(no space left on device\)"):
        export_submission(*files, submission, "phototourism", "reichstag", overwrite=True)
    assert check_submission(submission).problems == []


def test_a_scene_that_a_killed_process_had_moved_away_is_put_back(submission, files):
    (submission / "phototourism" / "reichstag").rename(submission / ".phototourism-reichstag.former")
    with pytest.raises(LogpolarError, match="reichstag: already exists"):
        export_submission(*files, submission, "phototourism", "reichstag")
    assert check_submission(submission).problems == []


@pytest.mark.parametrize(
    "changes", [{"num_keypoints": "many"}, {"num_keypoints": None}, {"json_label": None}, {"keypoint": None}]
)
def test_a_damaged_config_is_one_line(submission, files, changes):
    path = submission / "config.json"
    (method,) = json.loads(path.read_text())
    common = {**method["config_common"], **changes}
    method["config_common"] = {key: value for key, value in common.items() if value is not None}
    path.write_text(json.dumps([method]))
    with pytest.raises(StorageError, match=r"config\.json: not written by this command"):
        export_submission(*files, submission, "phototourism", "x")


def test_scenes_made_in_another_way_are_refused(submission, files):
    with pytest.raises(StorageError, match="descriptor = logpolar-96, not mine"):
        export_submission(*files, submission, "phototourism", "x", SubmissionOptions(descriptor="mine"))
    with pytest.raises(StorageError, match="with matches, this one is without matches"):
        export_submission(files[0], None, submission, "phototourism", "x")
    assert not (submission / "phototourism" / "x").exists()


def test_a_pair_is_missing(files, tmp_path):
    match_pairs(files[0], tmp_path / "few.h5", [("a.jpg", "c.jpg")])
    with pytest.raises(StorageError, match=r"no matches of 'deep/b\.jpg' and 'a\.jpg'"):
        export_submission(files[0], tmp_path / "few.h5", tmp_path / "s", "phototourism", "x")
    assert not (tmp_path / "s" / "phototourism").exists()
    assert not (tmp_path / "s" / "config.json").exists()


def test_two_images_of_one_name(tmp_path):
    write_feature_file(tmp_path / "f.h5", ("x/a.jpg", "y/a.png"))
    with pytest.raises(StorageError, match=r"'x/a\.jpg' and 'y/a\.png' would both be called 'a'"):
        export_submission(tmp_path / "f.h5", None, tmp_path / "s", "phototourism", "x")


@pytest.mark.parametrize(("count", "category"), [(2048, 2048), (2049, 8000), (8001, None)])
def test_categories(tmp_path, count, category):
    with FeatureWriter(tmp_path / "f.h5", {}) as writer:
        writer.add("a.jpg", make_features(0, count))
    if category is None:
        with pytest.raises(LogpolarError, match=r"a\.jpg has 8001 keypoints"):
            export_submission(tmp_path / "f.h5", None, tmp_path / "s", "phototourism", "x")
        return
    export_submission(tmp_path / "f.h5", None, tmp_path / "s", "phototourism", "x")
    (method,) = json.loads((tmp_path / "s" / "config.json").read_text())
    assert method["config_common"]["num_keypoints"] == category


@pytest.mark.parametrize("name", ["", "../x", ".hidden"])
def test_impossible_names(files, tmp_path, name):
    with pytest.raises(LogpolarError, match="cannot be the name"):
        export_submission(*files, tmp_path / "s", "phototourism", name)
