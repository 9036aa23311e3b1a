"""Whole runs; those that are stopped, or fail on the way, are in test_run_interrupted."""

from __future__ import annotations

import json
import math
import platform
import shutil
import sys

import h5py
import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from logpolar import load_model
from logpolar.datasets.files import CorrespondenceFile
from logpolar.errors import LogpolarError
from logpolar.evaluation.pairs import Score
from logpolar.features.extractor import Extractor
from logpolar.models.cards import ModelCard
from logpolar.training import cards
from logpolar.training.config import read_config
from logpolar.training.run import train
from logpolar.training.validation import summary, validate
from training_runs import assert_same_records, assert_same_training, read_rows, state_of


@pytest.fixture(scope="module")
def finished(place, tmp_path_factory, export_once):
    """The report and the folder of a run with all that belongs to it; not to be changed."""
    folder = tmp_path_factory.mktemp("finished") / "deep" / "run"
    with export_once():
        return train(read_config(place / "tiny.toml", ["run.tensorboard=true", "run.report_every=2"]), folder), folder


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished[1], tmp_path / "copy")


def assert_refused(config, folder, *words, **options):
    with pytest.raises(LogpolarError) as caught:
        train(config, folder, **options)
    line = str(caught.value)
    assert "\n" not in line
    for word in words:
        assert word in line, line


class TestFolder:
    def test_files(self, finished):
        assert {each.name for each in finished[1].iterdir()} == {
            *("config.toml", "log.csv", "validation.csv", "checkpoint.pt", "card.json"),
            *("tiny.safetensors", "tiny.onnx", "tensorboard"),
        }

    def test_report(self, finished):
        report, folder = finished
        assert report.model == folder / "tiny.safetensors"
        assert (report.continued_from, report.was_complete) == (0, False)
        assert list(report.scores) == ["one"]
        assert report.scores["one"].pairs == 2

    def test_config_can_be_used_again(self, finished, tiny):
        found = read_config(finished[1] / "config.toml")
        assert found == tiny("run.tensorboard=true", "run.report_every=2")
        assert train(found, finished[1]).was_complete

    def test_log(self, finished):
        rows = read_rows(finished[1] / "log.csv")
        assert [int(row["step"]) for row in rows] == [2, 3, 4, 6]
        assert [float(row["learning_rate"]) for row in rows[:3]] == pytest.approx(
            [0.005, 0.005, 0.005 * (1 + math.cos(math.pi / 4)) / 2]
        )
        assert all(0 < float(row["loss"]) < 5 for row in rows)
        seconds = [float(row["seconds"]) for row in rows]
        assert seconds == sorted(seconds)

    def test_rows_are_means_since_the_last(self, finished, tiny, tmp_path, quick):
        """The rows of one run are made of those of another that reports every step."""
        train(tiny(), tmp_path / "run")
        every = [float(row["loss"]) for row in read_rows(tmp_path / "run" / "log.csv")]
        rows = [float(row["loss"]) for row in read_rows(finished[1] / "log.csv")]
        means = [np.mean(every[:2]), every[2], every[3], np.mean(every[4:])]
        assert rows == pytest.approx(means, abs=1e-6)
        assert_same_training(tmp_path / "run", finished[1])

    def test_validation(self, finished):
        report, folder = finished
        rows = read_rows(folder / "validation.csv")
        assert [int(row["step"]) for row in rows] == [3, 6]
        assert float(rows[1]["rank1"]) == round(report.scores["one"].rank1, 5)
        assert rows[0]["fpr95"] != rows[1]["fpr95"]

    def test_tensorboard(self, finished):
        pytest.importorskip("tensorboard")
        assert next(each.name for each in (finished[1] / "tensorboard").iterdir()).startswith("events")


class TestModel:
    def test_weights_are_those_of_the_last_step(self, finished):
        weights, state = load_model(finished[0].model).weights, state_of(finished[1])["trainer"]
        assert state["step"] == 6
        for name, values in weights.items():
            np.testing.assert_allclose(values, state["network"][name].numpy(), rtol=1e-3, atol=1e-6)

    def test_scores_are_those_of_the_model(self, finished, place):
        model = load_model(finished[0].model)
        found = validate(model.network(), model.sampling, [place / "one.h5"], 0, torch.device("cpu"))
        assert found["one"].rank1 == pytest.approx(finished[0].scores["one"].rank1, abs=0.1)
        assert found["one"].fpr95 == pytest.approx(finished[0].scores["one"].fpr95, abs=0.01)

    def test_describes(self, finished, photo):
        features = Extractor(finished[0].model).extract(photo[:100, :100])
        assert len(features) > 10
        np.testing.assert_allclose(np.linalg.norm(features.descriptors, axis=1), 1, atol=1e-3)

    def test_plain_onnx_is_the_same_network(self, finished):
        report, folder = finished
        session = onnxruntime.InferenceSession(str(folder / "tiny.onnx"), providers=["CPUExecutionProvider"])
        patches = np.random.default_rng(0).random((5, 8, 8), np.float32)
        (found,) = session.run(["descriptors"], {"patches": patches})
        with torch.inference_mode():
            expected = load_model(report.model).network()(torch.from_numpy(patches)).numpy()
        assert found.shape == (5, 128)
        np.testing.assert_allclose(found, expected, atol=2e-3)  # of the model's weights, which are float16
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
        found_alone = session.run(["descriptors"], {"patches": patches[2:3]})[0]
        np.testing.assert_allclose(found_alone, found[2:3], atol=1e-5)

    def test_plain_onnx_carries_weights_and_card(self, finished):
        graph = onnx.load(finished[1] / "tiny.onnx", load_external_data=False)
        metadata = {each.key: each.value for each in graph.metadata_props}
        card = load_model(finished[0].model).card
        assert ModelCard.from_json(metadata["card"]) == card
        assert metadata["network"] == card.network.to_json()
        assert all(tensor.data_location == onnx.TensorProto.DEFAULT for tensor in graph.graph.initializer)

    def test_graph_of_the_model_file_has_no_weights(self, finished):
        model = load_model(finished[0].model)
        assert len(model.graph) < 100_000 < (finished[1] / "tiny.onnx").stat().st_size
        assert "card" not in {each.key for each in onnx.load_from_string(model.graph).metadata_props}


class TestCard:
    def test_says_what_how_with_what_and_how_well(self, finished, place):
        card = load_model(finished[0].model).card
        assert (card.name, card.description, card.training["data"]) == ("tiny", "Of a test.", "crops of a photo")
        training = card.training
        assert training["files"] == [["one.h5"]]
        with CorrespondenceFile(place / "one.h5") as file:
            counts = np.diff(file.correspondence_rows, axis=1)[file.pairs("train")]
        used = counts[counts >= 8]
        assert 3 <= len(used) < len(counts)
        assert (training["image_pairs"], training["correspondences"]) == (len(used), used.sum())
        assert (training["scenes_and_photos"], training["shares"]) == (3, [1.0])
        assert (training["seed"], training["optimisation"]["steps"], training["batch"]["per_pair"]) == (3, 6, 8)
        assert training["augmentation"]["scale_jitter"] == 0.8
        assert training["loss"]["second_order"] == 1
        assert training["hardware"] == "1 x CPU"
        assert training["versions"]["torch"] == torch.__version__
        assert training["versions"]["python"] == platform.python_version()
        figures = card.figures["validation"]
        assert figures["one"] == figures["mean"] == finished[0].scores["one"].to_dict()

    def test_to_read(self, finished):
        text = (finished[1] / "card.json").read_text()
        assert ModelCard.from_json(text) == load_model(finished[0].model).card
        assert text.count("\n") > 20

    def test_no_paths_of_this_machine(self, finished, place):
        for name in ("card.json", "tiny.safetensors", "tiny.onnx", "checkpoint.pt"):
            content = (finished[1] / name).read_bytes()
            for path in (place.parent, finished[1].parent.parent, cards.__file__, sys.prefix):
                assert str(path).encode() not in content, name

    def test_data_that_are_not_stated(self, tiny, tmp_path, quick):
        report = train(tiny("sources=", "optimisation.steps=1"), tmp_path / "run")
        assert load_model(report.model).card.training["data"] == "not stated"


class TestSecondCall:
    def test_complete_run_is_not_trained_again(self, finished, copied, tiny):
        before = {each.name: each.stat().st_mtime_ns for each in copied.iterdir()}
        report = train(tiny(), copied)
        assert (report.was_complete, report.model) == (True, copied / "tiny.safetensors")
        assert report.scores["one"].to_dict() == finished[0].scores["one"].to_dict()
        assert {each.name: each.stat().st_mtime_ns for each in copied.iterdir()} == before

    def test_lost_model_is_made_again(self, finished, copied, tiny, quick):
        (copied / "tiny.safetensors").unlink()
        report = train(tiny(), copied)
        assert (report.continued_from, report.was_complete) == (6, False)
        assert report.scores == finished[0].scores
        old, new = (load_model(folder / "tiny.safetensors").weights for folder in (finished[1], copied))
        assert all(np.array_equal(old[name], new[name]) for name in old)
        assert (copied / "log.csv").read_bytes() == (finished[1] / "log.csv").read_bytes()

    @pytest.mark.parametrize(
        "change",
        [
            *("report_every=5", "checkpoint_every=1", "validate_every=1", "validation_pairs=1"),
            *("compile=false", "tensorboard=false", "device=auto"),
        ],
    )
    def test_keys_that_do_not_matter(self, finished, tiny, change):
        assert train(tiny(f"run.{change}"), finished[1]).was_complete

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ("run.seed=4", "run.seed: 3 before, 4 now"),
            ("run.precision=float32", "run.precision: auto before, float32 now"),
            ("optimisation.steps=7", "optimisation.steps: 6 before, 7 now"),
            ("sampling.lambda=32", "sampling.lambda: 24.0 before, 32 now"),
            ("network.dropout=0.5", "network.dropout"),
            ("loss.margin=2", "loss.margin"),
            ("augmentation.scale_jitter=0.5", "augmentation.scale_jitter"),
            ("batch.near=3", "batch.near"),
            ("description=other", "description: Of a test. before, other now"),
            ('data=[{files=["two.h5"]}]', "data: "),
            ('data=[{files=["one.h5"], share=2}]', "data: "),
        ],
    )
    def test_other_keys_are_refused(self, finished, tiny, change, words):
        before = (finished[1] / "config.toml").read_bytes()
        assert_refused(tiny(change), finished[1], "checkpoint.pt: from another config", words, "--overwrite")
        assert (finished[1] / "config.toml").read_bytes() == before

    def test_overwrite_starts_anew(self, copied, tiny, tmp_path, quick):
        report = train(tiny("run.seed=4", "optimisation.steps=3"), copied, overwrite=True)
        assert (report.continued_from, report.was_complete) == (0, False)
        assert [row["step"] for row in read_rows(copied / "log.csv")] == ["1", "2", "3"]
        assert [row["step"] for row in read_rows(copied / "validation.csv")] == ["3"]
        assert read_config(copied / "config.toml").run.seed == 4
        train(tiny("run.seed=4", "optimisation.steps=3"), tmp_path / "fresh")
        assert_same_training(copied, tmp_path / "fresh")
        assert_same_records(copied, tmp_path / "fresh")

    def test_data_may_have_moved(self, finished, place, tmp_path):
        (tmp_path / "new").mkdir()
        for name in ("one.h5", "tiny.toml"):
            shutil.copy(place / name, tmp_path / "new" / name)
        assert train(read_config(tmp_path / "new" / "tiny.toml"), finished[1]).was_complete


class TestData:
    def test_two_sources(self, tiny, tmp_path, quick):
        report = train(
            tiny('data=[{files=["one.h5"]}, {files=["two.h5"], share=0.5}]', "optimisation.steps=1"), tmp_path / "run"
        )
        assert list(report.scores) == ["one", "two"]
        card = load_model(report.model).card
        assert card.training["files"] == [["one.h5"], ["two.h5"]]
        assert card.training["shares"] == [1.0, 0.5]
        mean = card.figures["validation"]["mean"]
        assert mean == summary(report.scores).to_dict()
        assert mean["pairs"] == sum(score.pairs for score in report.scores.values()) == 4
        assert float(read_rows(tmp_path / "run" / "validation.csv")[-1]["rank1"]) == mean["rank1"]

    def test_files_of_one_name_in_two_folders(self, place, tiny, tmp_path, quick):
        """Both are validated on."""
        for source, folder in (("one", "a"), ("two", "b")):
            (tmp_path / folder).mkdir()
            shutil.copy(place / f"{source}.h5", tmp_path / folder / "scene.h5")
        report = train(tiny(f'data=[{{files=["{tmp_path}/*/scene.h5"]}}]', "optimisation.steps=1"), tmp_path / "run")
        assert list(report.scores) == ["a/scene", "b/scene"]
        assert report.scores["a/scene"] != report.scores["b/scene"]

    def test_validation_does_not_change_what_comes_out(self, tiny, tmp_path, quick):
        for every in ("1", "100"):
            train(tiny(f"run.validate_every={every}"), tmp_path / every)
        assert_same_training(tmp_path / "1", tmp_path / "100")

    def test_limit_of_validation_pairs(self, tiny, tmp_path, quick):
        assert train(tiny("run.validation_pairs=1", "optimisation.steps=1"), tmp_path / "run").scores["one"].pairs == 1

    def test_file_without_a_validation_part(self, place, tiny, tmp_path, quick):
        shutil.copy(place / "one.h5", tmp_path / "all.h5")
        with h5py.File(tmp_path / "all.h5", "a") as file:
            file["images/part"][...] = 0
        report = train(tiny(f'data=[{{files=["{tmp_path}/all.h5"]}}]'), tmp_path / "run")
        assert report.scores == {}
        assert not (tmp_path / "run" / "validation.csv").exists()
        assert load_model(report.model).card.figures == {}
        assert train(tiny(f'data=[{{files=["{tmp_path}/all.h5"]}}]'), tmp_path / "run").was_complete

    @pytest.mark.parametrize(
        ("attribute", "value", "words"),
        [("version", 1, "version 1, but this logpolar reads"), ("complete", False, "incomplete")],
    )
    def test_file_that_does_not_do(self, place, tiny, tmp_path, attribute, value, words):
        shutil.copy(place / "one.h5", tmp_path / "odd.h5")
        with h5py.File(tmp_path / "odd.h5", "a") as file:
            file.attrs[attribute] = value
        assert_refused(tiny(f'data=[{{files=["{tmp_path}/odd.h5"]}}]'), tmp_path / "run", "odd.h5", words)

    def test_missing_file(self, tiny, tmp_path):
        assert_refused(tiny('data=[{files=["none.h5"]}]'), tmp_path / "run", "none.h5: no such correspondence file")
        assert not (tmp_path / "run").exists()

    def test_too_few_correspondences(self, tiny, tmp_path):
        words = "one.h5: no image pair to train on has 500 or more correspondences"
        assert_refused(tiny("batch.per_pair=500"), tmp_path / "run", words)

    def test_device_that_is_not_there(self, tiny, tmp_path, monkeypatch):
        monkeypatch.setattr(torch, "empty", lambda *_, device: (_ for _ in ()).throw(AssertionError("no CUDA\nhere")))
        assert_refused(tiny("run.device=cuda"), tmp_path / "run", "torch cannot use the device 'cuda' (no CUDA)")

    def test_device_that_does_not_exist(self, tiny, tmp_path):
        assert_refused(tiny("run.device=abacus"), tmp_path / "run", "torch cannot use the device 'abacus'")


def test_random_numbers_of_the_caller_are_left_alone(tiny, tmp_path, quick):
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    train(tiny("optimisation.steps=1"), tmp_path / "run")
    assert torch.equal(torch.rand(3), expected)


def test_summary_counts_each_file_the_same():
    one, two = Score(1, 10, 0.2, 0.5, 0, math.nan, 0, math.nan), Score(9, 90, 0.4, 0.9, 1, 1.0, 0, math.nan)
    mean = summary({"one": one, "two": two})
    assert (mean.pairs, mean.fpr95, mean.rank1) == (10, pytest.approx(0.3), pytest.approx(0.7))


def test_card_is_json(finished):
    assert json.loads((finished[1] / "card.json").read_text())["sampling"]["lambda"] == 24
