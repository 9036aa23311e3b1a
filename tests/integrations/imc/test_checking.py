"""Every rule of the validator, each broken once."""

from __future__ import annotations

import cv2
import h5py
import numpy as np
import pytest

from logpolar.errors import StorageError
from logpolar.integrations.imc.checking import check_submission
from logpolar.integrations.imc.exporting import export_submission


def put(submission, kind: str, key: str, array) -> None:
    """Replace an array, or remove it with None."""
    with h5py.File(submission / "phototourism" / "reichstag" / f"{kind}.h5", "a") as file:
        if key in file:
            del file[key]
        if array is not None:
            file[key] = array


@pytest.mark.parametrize(
    ("kind", "key", "array", "words"),
    [
        ("keypoints", "a", np.zeros((20, 3)), "a has shape (20, 3), not (N, 2)"),
        ("keypoints", "a", np.full((20, 2), np.nan), "not finite"),
        ("keypoints", "a", np.float32(1), "a has shape (), not (N, 2)"),
        ("keypoints", "a", np.zeros((2049, 2)), "2049 keypoints, more than 2048"),
        ("descriptors", "a", None, "descriptors.h5: a is missing"),
        ("descriptors", "x", np.zeros((1, 128)), "x has no keypoints"),
        ("descriptors", "a", np.zeros((19, 128)), "a has shape (19, 128), not (N, D) with N = 20"),
        ("descriptors", "a", np.zeros((20, 32)), "32-dimensional descriptors"),
        ("scales", "a", np.zeros((20, 1)), "scales.h5: a has shape (20, 1), not (N,) with N = 20"),
        ("matches", "c-a", None, "c-a is missing"),
        ("matches", "a-c", np.zeros((2, 1), int), "a-c has its names swapped"),
        ("matches", "x-a", np.zeros((2, 1), int), "x-a is not a pair"),
        ("matches", "c-a", np.zeros((5, 2), int), "c-a has shape (5, 2), not (2, K)"),
        ("matches", "c-a", np.zeros((2, 5)), "type float64"),
        ("matches", "c-a", np.array([[0], [20]]), "keypoints that do not exist (20 and 20 do)"),
        ("matches", "c-a", np.array([[-1], [0]]), "keypoints that do not exist"),
    ],
)
def test_a_broken_array(submission, kind, key, array, words):
    put(submission, kind, key, array)
    problems = check_submission(submission).problems
    assert problems, "something is wrong"
    assert any(words in problem for problem in problems), problems
    assert all(problem.startswith("phototourism/reichstag: ") for problem in problems)


def test_large_descriptors_need_matches(files, tmp_path):
    export_submission(files[0], None, tmp_path / "s", "phototourism", "reichstag")
    put(tmp_path / "s", "descriptors", "a", np.zeros((20, 128)))  # float64
    (problem,) = check_submission(tmp_path / "s").problems
    assert "1024 bytes" in problem


def test_no_matches_are_no_problem(submission):
    put(submission, "matches", "c-a", np.zeros((2, 0)))
    assert check_submission(submission).problems == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda scene: (scene / "keypoints.h5").unlink(), "keypoints.h5 is missing"),
        (lambda scene: (scene / "keypoints.h5").write_text("x"), "keypoints.h5: not an HDF5 file"),
        (lambda scene: h5py.File(scene / "keypoints.h5", "w").close(), "keypoints.h5 is empty"),
        (lambda scene: (scene / "matches.h5").unlink(), "there is no matches.h5"),
        (lambda scene: (scene / "matches.h5").rename(scene / "matches_stereo.h5"), "matches_multiview.h5"),
        (lambda scene: h5py.File(scene / "matches_stereo.h5", "w").close(), "use one of them"),
        (lambda scene: scene.rename(scene.parent.parent / "x"), "no scene"),
    ],
)
def test_broken_files(submission, change, words):
    change(submission / "phototourism" / "reichstag")
    problems = check_submission(submission).problems
    assert any(words in problem for problem in problems), problems


def test_neither_descriptors_nor_matches(files, tmp_path):
    export_submission(files[0], None, tmp_path / "s", "phototourism", "reichstag")
    (tmp_path / "s" / "phototourism" / "reichstag" / "descriptors.h5").unlink()
    assert any("neither" in problem for problem in check_submission(tmp_path / "s").problems)


def test_matches_that_the_config_does_not_know(edit):
    def change(method):
        for key in ("config_phototourism_stereo", "config_phototourism_multiview"):
            method[key].update(use_custom_matches=False, matcher={}, outlier_filter={})

    assert any("use_custom_matches = false" in problem for problem in edit(change))


def test_a_dataset_without_a_task(edit):
    problems = edit(lambda method: method.pop("config_phototourism_stereo"))
    assert problems == []
    problems = edit(lambda method: method.pop("config_phototourism_multiview"))
    assert any("no task for this dataset" in problem for problem in problems)


def test_names_of_the_benchmarks_images(submission, tmp_path):
    place = tmp_path / "data" / "phototourism" / "reichstag"
    place.mkdir(parents=True)
    for name in ("a", "b", "d"):
        cv2.imwrite(str(place / f"{name}.jpg"), np.zeros((4, 4), np.uint8))
    problems = check_submission(submission, tmp_path / "data").problems
    assert any("d is missing" in problem for problem in problems)
    assert any("c is not an image" in problem for problem in problems)
    assert any("no images in" in problem for problem in check_submission(submission, tmp_path / "none").problems)


def test_many_problems_of_a_kind_are_summed_up(submission):
    for number in range(9):
        put(submission, "matches", f"x{number}-a", np.zeros((2, 0), int))
    problems = check_submission(submission).problems
    assert len(problems) == 4
    assert problems[-1].endswith("and 6 more")


def test_a_missing_folder(tmp_path):
    with pytest.raises(StorageError, match="no such folder"):
        check_submission(tmp_path / "none")
