from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("arguments", [("openvino", "int8"), ("openvino", "bfloat16"), ("torch", "bfloat16")])
def test_the_probe_itself_runs(arguments):
    """Ordinary errors of a probe would be taken for survival."""
    command = [sys.executable, "-m", "logpolar.models.runtimes.probe", *arguments]
    done = subprocess.run(command, env={**os.environ, "LOGPOLAR_PROBING": "1"}, capture_output=True, text=True)
    assert done.returncode < 1, done.stderr  # a processor with the fault ends it by a signal
