from __future__ import annotations

import subprocess
import sys


def test_reading_feature_files_loads_no_models():
    code = """import sys, logpolar.features.files
loaded = [name for name in ("onnxruntime", "safetensors", "torch", "logpolar.models") if name in sys.modules]
sys.exit(", ".join(loaded) or 0)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
