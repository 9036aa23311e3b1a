"""Which reduced-precision kernels crash on this processor, probed in a child process before they are used.

On some machines with AMX every oneDNN kernel that uses it (int8 and bfloat16 in OpenVINO, bfloat16 in torch) dies with
SIGILL, which Python cannot catch. A probe runs once per machine, library version and precision; its outcome is cached
in the folder ``LOGPOLAR_CACHE``, or ``logpolar`` in the system's cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import warnings
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Literal, TypeAlias

from logpolar.errors import LogpolarWarning
from logpolar.storage.documents import write_json

Library: TypeAlias = Literal["openvino", "torch"]
ReducedPrecision: TypeAlias = Literal["int8", "bfloat16"]

CAP = "ONEDNN_MAX_CPU_ISA"
"""oneDNN's environment variable for the highest instruction set, read when the library is first used."""

_CAPS = ("AVX512_CORE_FP16", "AVX512_CORE_BF16", "AVX2")
"""Tried in this order where a kernel crashes: the first two exclude AMX only."""

_PROBING = "LOGPOLAR_PROBING"
_TIMEOUT = 120


def prepare_openvino(precision: str) -> bool:
    """Make OpenVINO safe for networks of a precision; False if they must not be run.

    Call it before OpenVINO is first used: the instruction set is fixed then.
    """
    if _PROBING in os.environ:
        return True
    # With AMX the first network, even one in float32, decides for the whole process.
    everything: tuple[ReducedPrecision, ...] = ("int8", "bfloat16")
    wanted = [each for each in everything if each == precision or has_amx()]
    if all(survives("openvino", each) for each in wanted):
        return True
    cap = next((cap for cap in _CAPS if all(survives("openvino", each, cap) for each in wanted)), None)
    if cap is None or _openvino_is_loaded():
        return precision == "float32"
    os.environ[CAP] = cap
    _warn(f"OpenVINO's fastest kernels crash on this processor: using instruction set {cap} ({CAP})")
    return True


def prepare_torch_bfloat16() -> None:
    """Switch oneDNN off in torch if bfloat16 would crash on the CPU."""
    import torch

    if _PROBING not in os.environ and torch.backends.mkldnn.enabled and not survives("torch", "bfloat16"):
        torch.backends.mkldnn.set_flags(False)  # type: ignore[no-untyped-call]
        _warn("oneDNN's bfloat16 crashes on this processor: torch runs without it, slower")


def survives(library: Library, precision: ReducedPrecision, cap: str | None = None) -> bool:
    """Whether a network of that precision runs here without crashing, with the instruction set ``cap`` at most."""
    environment = {**os.environ, **({CAP: cap} if cap else {}), _PROBING: "1"}
    version = metadata.version(library)
    about = (_processor(), platform.release(), library, version, precision, environment.get(CAP, ""))
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()
    known = _read_outcomes()
    if key not in known:
        outcome, is_final = _probe(library, precision, environment)
        if not is_final:
            return outcome
        known = {**_read_outcomes(), key: outcome}
        _write_outcomes(known)
    return known[key]


def has_amx() -> bool:
    """Whether the processor reports AMX."""
    return "amx_tile" in _processor().split()


def _probe(library: Library, precision: ReducedPrecision, environment: dict[str, str]) -> tuple[bool, bool]:
    """(survived, whether that is final). Ordinary errors are left to the real run."""
    if not sys.executable or getattr(sys, "frozen", False):  # no Python to start; only AMX is known to crash
        return not has_amx() or CAP in environment, True
    command = [sys.executable, "-m", "logpolar.models.runtimes.probe", library, precision]
    try:
        code = subprocess.run(command, env=environment, capture_output=True, timeout=_TIMEOUT).returncode
    except (OSError, subprocess.TimeoutExpired):
        return False, False
    died = code < 0 or code >= 0xC0000000  # by a signal, or a Windows exception
    return not died, code not in (-signal.SIGTERM, -9)  # -9: perhaps out of memory


@cache
def _processor() -> str:
    """The processor's name and instruction sets."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    found = [next((line for line in lines if line.startswith(name)), "") for name in ("model name", "flags")]
    return " ".join(found) if any(found) else f"{platform.machine()} {platform.processor()}"


def _openvino_is_loaded() -> bool:
    """Whether OpenVINO is initialised, and would ignore another setting."""
    maps = Path("/proc/self/maps")
    return "openvino_intel_cpu_plugin" in maps.read_text() if maps.exists() else "openvino" in sys.modules


def _cache_file() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "logpolar"
    return Path(os.environ.get("LOGPOLAR_CACHE") or cache) / "processor.json"


_outcomes: dict[str, bool] = {}
"""Those of this process, for where no file can be written."""


def _read_outcomes() -> dict[str, bool]:
    stored = {}
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # RuntimeError: no home
        stored = json.loads(_cache_file().read_text())
    fits = isinstance(stored, dict) and all(isinstance(value, bool) for value in stored.values())
    return {**(stored if fits else {}), **_outcomes}


def _write_outcomes(outcomes: dict[str, bool]) -> None:
    _outcomes.update(outcomes)
    with contextlib.suppress(OSError, RuntimeError):
        file = _cache_file()
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, outcomes)


def _warn(words: str) -> None:
    warnings.warn(words, LogpolarWarning, stacklevel=3)
