"""Crashing kernels are simulated by a child process that kills itself: no machine can be counted on to have them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from logpolar.models import load_model
from logpolar.models.describers import open_describer
from logpolar.models.runtimes import processor
from logpolar.models.runtimes.onnxruntime_cpu import OnnxruntimeDescriber
from logpolar.models.runtimes.openvino_cpu import OpenVinoDescriber

ILLEGAL = -4
WITH_AMX = "model name : Xeon flags : avx512f amx_tile amx_int8"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A processor with AMX, a cache of its own; ``run(dies)`` decides which probes die, and all probes are recorded."""
    monkeypatch.setenv("LOGPOLAR_CACHE", str(tmp_path))
    monkeypatch.delenv(processor.CAP, raising=False)
    monkeypatch.setattr(processor, "_outcomes", {})
    monkeypatch.setattr(processor, "_processor", lambda: WITH_AMX)
    monkeypatch.setattr(processor, "_openvino_is_loaded", lambda: False)
    probes = []

    def run(dies):
        def child(command, env, **_):
            probes.append((*command[-2:], env.get(processor.CAP)))
            return subprocess.CompletedProcess(command, ILLEGAL if dies(*probes[-1]) else 0)

        monkeypatch.setattr(subprocess, "run", child)
        return probes

    yield run
    os.environ.pop(processor.CAP, None)


def with_amx(library, precision, cap):
    return cap is None


class TestPrepareOpenVino:
    def test_a_sound_processor_is_left_alone(self, machine, recwarn):
        probes = machine(lambda *_: False)
        assert processor.prepare_openvino("int8")
        assert processor.CAP not in os.environ
        assert probes == [("openvino", "int8", None), ("openvino", "bfloat16", None)]
        assert not recwarn

    def test_amx_that_dies_is_switched_off(self, machine):
        machine(with_amx)
        with pytest.warns(UserWarning, match=r"^OpenVINO's fastest .* AVX512_CORE_FP16 [^\n]*$"):
            assert processor.prepare_openvino("float32")  # in float32 too: the first network decides for the process
        assert os.environ[processor.CAP] == "AVX512_CORE_FP16"

    def test_a_precision_that_needs_less_decides(self, machine):
        machine(lambda _, precision, cap: cap is None or (precision == "bfloat16" and cap == "AVX512_CORE_FP16"))
        with pytest.warns(UserWarning, match="AVX512_CORE_BF16"):
            assert processor.prepare_openvino("int8")

    def test_it_is_said_and_probed_once(self, machine, recwarn):
        probes = machine(with_amx)
        processor.prepare_openvino("int8")
        count = len(probes)
        processor.prepare_openvino("int8")
        processor.prepare_openvino("bfloat16")
        assert len(recwarn) == 1
        assert len(probes) == count

    def test_the_next_process_does_not_probe(self, machine, monkeypatch):
        probes = machine(lambda *_: False)
        processor.prepare_openvino("int8")
        monkeypatch.setattr(processor, "_outcomes", {})
        processor.prepare_openvino("int8")
        assert len(probes) == 2

    def test_no_cache_folder(self, machine, monkeypatch, tmp_path):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("LOGPOLAR_CACHE", str(tmp_path / "file"))
        probes = machine(lambda *_: False)
        assert processor.prepare_openvino("int8")
        assert processor.prepare_openvino("int8")
        assert len(probes) == 2

    @pytest.mark.parametrize("content", ["", "[]", '{"a": 3}', "\x00"])
    def test_a_damaged_cache_is_made_anew(self, machine, tmp_path, content):
        (tmp_path / "processor.json").write_text(content)
        probes = machine(lambda *_: False)
        assert processor.prepare_openvino("int8")
        assert len(probes) == 2

    def test_too_late_for_another_instruction_set(self, machine, monkeypatch):
        machine(with_amx)
        monkeypatch.setattr(processor, "_openvino_is_loaded", lambda: True)
        assert not processor.prepare_openvino("int8")
        assert not processor.prepare_openvino("bfloat16")
        assert processor.prepare_openvino("float32")
        assert processor.CAP not in os.environ

    def test_without_amx_float32_is_not_probed(self, machine, monkeypatch):
        monkeypatch.setattr(processor, "_processor", lambda: "model name : EPYC flags : avx2")
        probes = machine(lambda *_: False)
        assert processor.prepare_openvino("float32")
        assert probes == []
        assert processor.prepare_openvino("int8")
        assert probes == [("openvino", "int8", None)]

    def test_a_probe_that_was_killed_from_outside_is_not_remembered(self, machine, monkeypatch):
        probes = machine(lambda *_: True)
        monkeypatch.setattr(sys.modules[__name__], "ILLEGAL", -9)
        assert not processor.prepare_openvino("int8")
        count = len(probes)
        assert not processor.prepare_openvino("int8")
        assert len(probes) == 2 * count


class TestDescribers:
    """With a child that really dies, and nothing that helps."""

    @pytest.fixture
    def doomed(self, machine, monkeypatch):
        real = subprocess.run
        code = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
        monkeypatch.setattr(subprocess, "run", lambda _, **options: real([sys.executable, "-c", code], **options))

    def test_int8_goes_to_onnxruntime(self, doomed):
        model = load_model("logpolar-96-small-int8")
        with pytest.warns(UserWarning, match=r"logpolar-96-small-int8.*onnxruntime"):
            describer = open_describer(model, runtime="openvino")
        assert isinstance(describer, OnnxruntimeDescriber)

    def test_bfloat16_goes_to_float32(self, doomed, safe_instruction_set, monkeypatch):
        if safe_instruction_set:  # as below
            monkeypatch.setenv(processor.CAP, safe_instruction_set)
        with pytest.warns(UserWarning, match=r"^OpenVINO crashes on this processor in bfloat16: .* float32, slower$"):
            describer = open_describer(load_model("logpolar-96-small"), runtime="openvino", precision="bfloat16")
        assert isinstance(describer, OpenVinoDescriber)

    def test_float32_is_run(self, doomed, safe_instruction_set, monkeypatch):
        if safe_instruction_set:  # OpenVINO may be loaded here for the first time, and stays as it is loaded
            monkeypatch.setenv(processor.CAP, safe_instruction_set)
        assert isinstance(open_describer(load_model("logpolar-96-small"), runtime="openvino"), OpenVinoDescriber)

    def test_torch_goes_without_onednn(self, doomed):
        enabled = torch.backends.mkldnn.enabled
        try:
            with pytest.warns(UserWarning, match="oneDNN"):
                processor.prepare_torch_bfloat16()
            assert not torch.backends.mkldnn.enabled
        finally:
            torch.backends.mkldnn.set_flags(enabled)
