from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner

import logpolar.models.export
from helpers import assert_one_error
from logpolar.cli import main
from logpolar.models import load_model
from logpolar.models.runtimes.onnxruntime_cpu import OnnxruntimeDescriber


def export(*arguments):
    return CliRunner().invoke(main, ["export", *map(str, arguments)])


def test_network_alone(tmp_path):
    result = export("paper-logpolar-96", "-o", tmp_path / "net.onnx")
    assert result.exit_code == 0
    assert "patches -> descriptors" in result.output
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    patches = np.random.default_rng(0).random((3, 32, 32), np.float32)
    expected = OnnxruntimeDescriber(load_model("paper-logpolar-96")).describe_patches(patches)
    np.testing.assert_allclose(session.run(None, {"patches": patches})[0], expected, atol=1e-6)


def test_end_to_end_without_torch(tmp_path):
    script = "import sys; sys.modules['torch'] = None; from logpolar.cli import main; main()"
    words = ["export", "logpolar-96", "-o", str(tmp_path / "whole.onnx"), "--end-to-end"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    assert "image, keypoints -> descriptors" in done.stdout
    assert done.stderr == ""
    session = onnxruntime.InferenceSession(str(tmp_path / "whole.onnx"), providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == ["image", "keypoints"]


class TestRefused:
    def test_unknown_model(self, tmp_path):
        assert_one_error(export("logpolar-97", "-o", tmp_path / "a.onnx"), "logpolar-97", "logpolar-96")
        assert not list(tmp_path.iterdir())

    def test_not_a_model(self, tmp_path):
        (tmp_path / "text.safetensors").write_text("no model")
        assert_one_error(export(tmp_path / "text.safetensors", "-o", tmp_path / "a.onnx"), "text.safetensors")

    @pytest.mark.parametrize(
        ("place", "words"), [("none/a.onnx", "does not exist"), ("folder.onnx", "is a folder"), ("a.pt", ".onnx")]
    )
    def test_output(self, tmp_path, place, words):
        (tmp_path / "folder.onnx").mkdir()
        assert_one_error(export("logpolar-96", "-o", tmp_path / place), place, words)

    def test_overwriting_the_model(self, tmp_path):
        (tmp_path / "model.onnx").write_bytes(b"")
        assert_one_error(export(tmp_path / "model.onnx", "-o", tmp_path / "model.onnx"), "overwrite")

    def test_without_the_extra(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "onnx", None)
        monkeypatch.delitem(sys.modules, "logpolar.models.export")
        assert_one_error(export("logpolar-96", "-o", tmp_path / "a.onnx"), "logpolar[onnx]")
        assert not list(tmp_path.iterdir())

    def test_a_file_that_differs_is_not_written(self, tmp_path, monkeypatch):
        monkeypatch.setattr(logpolar.models.export, "largest_difference", lambda *_: float("nan"))
        assert_one_error(export("logpolar-96", "-o", tmp_path / "a.onnx"), "nothing was written")
        assert not list(tmp_path.iterdir())
