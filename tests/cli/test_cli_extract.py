from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image as PillowImage

from helpers import assert_one_error
from logpolar.cli import main
from logpolar.features.extractor import Extractor
from logpolar.features.files import FeatureFile, FeatureWriter
from logpolar.models import load_model
from logpolar.models.cards import Variant
from logpolar.models.detectors import NetworkDetector
from logpolar.models.files import save_variant
from logpolar.models.runtimes.base import check_patches
from logpolar.models.runtimes.onnxruntime_cpu import OnnxruntimeDescriber


@pytest.fixture(autouse=True)
def enough_cores(monkeypatch):
    """For --jobs to say nothing, whatever the machine."""
    monkeypatch.setattr("logpolar.distributed.cores", lambda: 4)


@pytest.fixture
def folder(tmp_path, photo):
    """Three images, one of them deeper."""
    place = tmp_path / "photos"
    (place / "deep").mkdir(parents=True)
    for number, name in enumerate(("a.png", "b.jpg", "deep/c.png")):
        cv2.imwrite(str(place / name), photo[60 * number : 60 * number + 60, 180:260])
    return place


def run_extract(*arguments: object):
    return CliRunner().invoke(main, ["extract", *map(str, arguments)])


def names_in(path: Path) -> list[str]:
    with FeatureFile(path) as file:
        return file.names()


def errors_of(result) -> list[str]:
    """What stderr holds but for the progress bar."""
    return [line for line in result.stderr.splitlines() if "image/s" not in line and line.strip()]


class TestResult:
    def test_folder(self, folder, tmp_path):
        result = run_extract(folder, "-o", tmp_path / "out.h5")
        assert result.exit_code == 0
        assert errors_of(result) == []
        assert names_in(tmp_path / "out.h5") == ["a.png", "b.jpg", "deep/c.png"]
        assert "added 3 of 3 images" in result.stdout

    def test_features_are_those_of_the_library(self, folder, tmp_path):
        run_extract(folder / "a.png", "-o", tmp_path / "out.h5")
        expected = Extractor().extract(folder / "a.png")
        with FeatureFile(tmp_path / "out.h5") as file:
            found = file.read("a.png")
        np.testing.assert_array_equal(found.keypoints.xy, expected.keypoints.xy)
        np.testing.assert_allclose(found.descriptors, expected.descriptors, atol=1e-5)

    def test_layout_is_that_of_hloc(self, folder, tmp_path):
        run_extract(folder, "-o", tmp_path / "out.h5")
        with h5py.File(tmp_path / "out.h5") as file:
            group = file["deep/c.png"]
            count = len(group["keypoints"])
            assert group["keypoints"].shape == (count, 2)
            assert group["descriptors"].shape == (128, count)
            assert group["scores"].shape == (count,)
            assert group["image_size"][()].tolist() == [80, 60]

    def test_files_folders_and_globs_together(self, folder, tmp_path):
        result = run_extract(folder / "b.jpg", folder / "deep", folder / "*.png", "-o", tmp_path / "out.h5")
        assert result.exit_code == 0
        assert names_in(tmp_path / "out.h5") == ["a.png", "b.jpg", "c.png"]

    @pytest.mark.parametrize(("count", "words"), [(1, "1 core"), (2, "2 cores")])
    def test_more_jobs_than_cores_are_pointed_out(self, tmp_path, monkeypatch, count, words):
        monkeypatch.setattr("logpolar.distributed.cores", lambda: count)
        result = run_extract(tmp_path / "none", "-o", tmp_path / "f.h5", "--jobs", 3)  # said before any work
        assert errors_of(result)[0] == f"logpolar: 3 jobs on {words}: more memory, no more speed"

    @pytest.mark.parametrize("jobs", ["1", "2"])
    def test_what_is_used_instead_of_bfloat16_is_told_once_in_one_line(self, folder, tmp_path, monkeypatch, jobs):
        code = "import openvino\nopenvino.Core.get_property = lambda *_: ['FP32']\n"
        (tmp_path / "sitecustomize.py").write_text(code)
        model = load_model("logpolar-96-small")
        card = replace(model.card, name="half", variant=Variant("bfloat16", model.name, model.digest))
        check = OnnxruntimeDescriber(model).describe_patches(check_patches(32, 32))
        save_variant(tmp_path / "half.safetensors", model.weights, model.graph, card, check)
        options = ["--model", tmp_path / "half.safetensors", "--runtime", "openvino", "--jobs", jobs]
        command = [sys.executable, "-m", "logpolar", "extract", folder, "-o", tmp_path / "out.h5", *options]
        path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path}
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert result.returncode == 0
        words = "this processor has no bfloat16: model 'half' runs in float32, slower"
        assert [line for line in errors_of(result) if "more memory" not in line] == [f"logpolar: {words}"]
        assert names_in(tmp_path / "out.h5") == ["a.png", "b.jpg", "deep/c.png"]

    def test_second_run_continues(self, folder, tmp_path):
        run_extract(folder / "a.png", "-o", tmp_path / "out.h5")
        result = run_extract(folder, "-o", tmp_path / "out.h5")
        assert result.exit_code == 0
        assert "added 2 of 3 images" in result.stdout
        assert "1 already present" in result.stdout

    def test_options_reach_the_file(self, folder, tmp_path):
        run_extract(
            folder, "-o", tmp_path / "out.h5", "--model", "paper-cartesian-12", "--max-keypoints", 7, "--max-size", 0
        )
        with FeatureFile(tmp_path / "out.h5") as file:
            assert file.settings["model"] == "paper-cartesian-12"
            assert file.settings["max_size"] is None
            assert all(len(file.read(name)) == 7 for name in file.names())

    def test_overwrite(self, folder, tmp_path):
        run_extract(folder, "-o", tmp_path / "out.h5")
        result = run_extract(folder / "deep", "-o", tmp_path / "out.h5", "--model", "paper-cartesian-12", "--overwrite")
        assert result.exit_code == 0
        assert names_in(tmp_path / "out.h5") == ["c.png"]

    def test_nothing_but_the_file_is_left(self, folder, tmp_path):
        run_extract(folder, "-o", tmp_path / "out.h5")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out.h5", "photos"]


def add_bad_images(folder: Path) -> list[str]:
    (folder / "text.jpg").write_text("no photo")
    data = (folder / "b.jpg").read_bytes()
    (folder / "cut.jpg").write_bytes(data[: len(data) // 2])
    hole = np.zeros((20, 20), np.float32)
    hole[1, 1] = np.nan
    PillowImage.fromarray(hole).save(folder / "hole.tif")
    return ["cut.jpg", "hole.tif", "text.jpg"]


class TestBadImages:
    @pytest.mark.parametrize("jobs", ["1", "2"])
    def test_are_reported_at_the_end_and_the_rest_is_done(self, folder, tmp_path, jobs, capfd):
        bad = add_bad_images(folder)
        result = run_extract(folder, "-o", tmp_path / "out.h5", "--jobs", jobs)
        assert result.exit_code == 1
        lines = sorted(errors_of(result))
        assert len(lines) == len(bad)
        for line, name in zip(lines, bad, strict=True):
            assert line.startswith("logpolar: ")
            assert name in line
        assert names_in(tmp_path / "out.h5") == ["a.png", "b.jpg", "deep/c.png"]
        assert capfd.readouterr().err == "", "decoders, in this process or in workers, have nothing to say"

    def test_none_is_good(self, folder, tmp_path):
        add_bad_images(folder)
        result = run_extract(folder / "text.jpg", folder / "cut.jpg", "-o", tmp_path / "out.h5")
        assert result.exit_code == 2
        *reasons, last = errors_of(result)
        assert len(reasons) == 2
        assert last == "logpolar: error: none of the 2 images could be read"
        assert not (tmp_path / "out.h5").exists()

    def test_a_single_bad_image_is_one_line(self, folder, tmp_path):
        add_bad_images(folder)
        assert_one_error(run_extract(folder / "cut.jpg", "-o", tmp_path / "out.h5"), "cut.jpg", "damaged")

    def test_were_bad_already_and_nothing_is_new(self, folder, tmp_path):
        add_bad_images(folder)
        run_extract(folder, "-o", tmp_path / "out.h5")
        assert run_extract(folder, "-o", tmp_path / "out.h5").exit_code == 1

    def test_unusual_ones_are_good(self, tmp_path, photo, capfd):
        piece = np.ascontiguousarray(photo[:120, 100:260])
        place = tmp_path / "unusual"
        place.mkdir()
        PillowImage.fromarray(piece[:, :, ::-1]).convert("CMYK").save(place / "cmyk.jpg")
        cv2.imwrite(str(place / "alpha.png"), np.dstack([piece, piece[:, :, 0]]))
        cv2.imwrite(str(place / "deep.png"), piece.astype(np.uint16) * 257)
        cv2.imwrite(str(place / "one.png"), piece[:1, :1])
        cv2.imwrite(str(place / "plain.png"), np.full((40, 40), 90, np.uint8))
        result = run_extract(place, "-o", tmp_path / "out.h5")
        assert result.exit_code == 0
        assert errors_of(result) == []
        assert capfd.readouterr().err == ""
        with FeatureFile(tmp_path / "out.h5") as file:
            counts = {name: len(file.read(name)) for name in file.names()}
        assert counts["one.png"] == counts["plain.png"] == 0
        assert min(counts["cmyk.jpg"], counts["alpha.png"], counts["deep.png"]) > 30


class TestBadPaths:
    def test_missing_file(self, tmp_path):
        assert_one_error(run_extract(tmp_path / "none.jpg", "-o", tmp_path / "out.h5"), "none.jpg", "no such file")

    def test_folder_without_images(self, tmp_path):
        (tmp_path / "notes.txt").write_text("")
        assert_one_error(run_extract(tmp_path, "-o", tmp_path / "out.h5"), str(tmp_path), "no images")

    def test_glob_without_images(self, tmp_path):
        assert_one_error(run_extract(tmp_path / "*.jpg", "-o", tmp_path / "out.h5"), "*.jpg")

    def test_two_images_of_one_name(self, folder, tmp_path, photo):
        cv2.imwrite(str(folder / "deep" / "a.png"), photo[:90, :90])
        result = run_extract(folder / "a.png", folder / "deep", "-o", tmp_path / "out.h5")
        assert_one_error(result, "'a.png'", "deep")

    def test_no_path_at_all(self, tmp_path):
        result = run_extract("-o", tmp_path / "out.h5")
        assert result.exit_code == 2
        assert "PATH" in result.stderr


class TestBadOutput:
    def test_folder_that_does_not_exist(self, folder, tmp_path):
        assert_one_error(run_extract(folder, "-o", tmp_path / "none" / "out.h5"), "none", "does not exist")

    def test_below_a_file(self, folder, tmp_path):
        assert_one_error(run_extract(folder, "-o", folder / "a.png" / "out.h5"), "a.png")

    def test_a_folder(self, folder, tmp_path):
        assert_one_error(run_extract(folder, "-o", folder), str(folder), "is a folder")

    @pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder where nobody may write")
    def test_where_nobody_may_write(self, folder):
        assert_one_error(run_extract(folder, "-o", "/proc/out.h5"), "/proc/out.h5", "cannot be written")

    @pytest.mark.parametrize("content", [b"", b"these are words, not HDF5"])
    def test_file_that_is_no_hdf5_is_left_alone(self, folder, tmp_path, content):
        (tmp_path / "out.h5").write_bytes(content)
        assert_one_error(run_extract(folder, "-o", tmp_path / "out.h5"), "out.h5", "not an HDF5 file")
        assert (tmp_path / "out.h5").read_bytes() == content

    def test_truncated_file(self, folder, tmp_path):
        run_extract(folder, "-o", tmp_path / "out.h5")
        whole = (tmp_path / "out.h5").read_bytes()
        (tmp_path / "out.h5").write_bytes(whole[: len(whole) // 2])
        assert_one_error(run_extract(folder, "-o", tmp_path / "out.h5"), "out.h5", "damaged")

    @pytest.mark.parametrize("options", [(), ("--overwrite",)])
    def test_hdf5_of_somebody_else_is_left_alone(self, folder, tmp_path, options):
        with h5py.File(tmp_path / "out.h5", "w") as file:
            file["precious"] = [1, 2, 3]
        assert_one_error(run_extract(folder, "-o", tmp_path / "out.h5", *options), "out.h5", "not a logpolar")
        with h5py.File(tmp_path / "out.h5") as file:
            assert file["precious"][()].tolist() == [1, 2, 3]

    def test_an_input_is_never_overwritten(self, folder):
        before = (folder / "a.png").read_bytes()
        assert_one_error(run_extract(folder, "-o", folder / "a.png", "--overwrite"), "a.png")
        assert (folder / "a.png").read_bytes() == before

    def test_file_of_another_model(self, folder, tmp_path):
        run_extract(folder / "a.png", "-o", tmp_path / "out.h5")
        result = run_extract(folder, "-o", tmp_path / "out.h5", "--model", "paper-cartesian-12")
        assert_one_error(result, "out.h5", "logpolar-96", "paper-cartesian-12")
        assert names_in(tmp_path / "out.h5") == ["a.png"]

    def test_file_with_other_settings(self, folder, tmp_path):
        run_extract(folder / "a.png", "-o", tmp_path / "out.h5")
        assert_one_error(
            run_extract(folder, "-o", tmp_path / "out.h5", "--max-keypoints", 5), "out.h5", "max_keypoints"
        )

    def test_somebody_else_is_writing(self, folder, tmp_path):
        with FeatureWriter(tmp_path / "out.h5", Extractor().settings):
            assert_one_error(run_extract(folder, "-o", tmp_path / "out.h5"), "another process is writing")
        assert run_extract(folder, "-o", tmp_path / "out.h5").exit_code == 0

    def test_unknown_model_leaves_nothing_behind(self, folder, tmp_path):
        assert_one_error(run_extract(folder, "-o", tmp_path / "out.h5", "--model", "nonsense"), "nonsense")
        assert not list(tmp_path.glob("out*"))


def test_real_process_has_the_exit_code_and_one_line_of_error(folder, tmp_path):
    (tmp_path / "out.h5").write_text("no HDF5")
    done = subprocess.run(
        [sys.executable, "-c", "from logpolar.cli import main; main()", "extract", "photos", "-o", "out.h5"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "logpolar: error: out.h5: not an HDF5 file, or a damaged one; delete it or choose another\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--device", "cuda:9"), "no device 'cuda:9'"),
        (("--device", "tpu"), "unknown device 'tpu'"),
        (("--precision", "float16"), "float16 needs a GPU"),
    ],
)
def test_a_device_or_precision_that_is_not_there(folder, tmp_path, options, words):
    result = run_extract(folder, "-o", tmp_path / "out.h5", *options)
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out.h5").exists()


def test_a_network_detector_has_one_size(folder, tmp_path, detector_file):
    output, turned = tmp_path / "f.h5", tmp_path / "turned.h5"
    options = ("--detector", detector_file, "--min-size", "0", "--max-keypoints", "30")
    assert run_extract(folder / "a.png", "-o", output, *options).exit_code == 0
    assert run_extract(folder / "a.png", "-o", turned, *options, "--orientation", "gradient").exit_code == 0
    with FeatureFile(output) as upright, FeatureFile(turned) as other:
        found, angled = upright.read("a.png"), other.read("a.png")
        assert upright.settings["detector"]["model"] == "tiny-detector"
        assert other.settings["detector"]["orientation"] == "gradient"
    assert set(found.keypoints.size.tolist()) == {5.0}
    assert set(found.keypoints.angle.tolist()) == {0.0}
    assert np.array_equal(found.keypoints.xy, angled.keypoints.xy)
    assert len(set(angled.keypoints.angle.tolist())) > 5
    refused = run_extract(folder / "b.jpg", "-o", output, *options, "--orientation", "gradient")
    assert_one_error(refused, "detector")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--detector", "nothing"), "no detector 'nothing'"),
        (("--detector", "logpolar-96"), "no detector 'logpolar-96'"),
        (("--orientation", "gradient"), "SIFT has its own"),
        (("--model", "logpolar-sf", "--detector", "sift"), "has its own detector"),
        (("--model", "logpolar"), "no model 'logpolar'"),
    ],
)
def test_detectors_that_cannot_be_used(folder, tmp_path, options, words):
    assert_one_error(run_extract(folder, "-o", tmp_path / "f.h5", *options), words)


def test_a_pair_is_its_two_halves(folder, tmp_path):
    options = ("--min-size", "0", "--max-keypoints", "30")
    output = tmp_path / "f.h5"
    assert run_extract(folder / "a.png", "-o", output, "--model", "logpolar-sf", *options).exit_code == 0
    with FeatureFile(output) as file:
        found, settings = file.read("a.png"), file.settings
    detector = NetworkDetector("logpolar", 30, threads=1)
    assert settings["model"] == "logpolar-96-upright"
    assert settings["detector"] == detector.settings
    assert set(found.keypoints.size.tolist()) == {detector.size}
    expected = Extractor("logpolar-96-upright", detector, min_size=0, threads=1).extract(folder / "a.png")
    assert np.allclose(found.keypoints.table, expected.keypoints.table, atol=1e-3)
    assert np.abs((found.descriptors * expected.descriptors).sum(axis=1) - 1).max() < 1e-3
