"""Opening a model on a device: ``open_describer``.

| device | runtime | precision |
|---|---|---|
| cpu | onnxruntime (default) | the model's: float32 or int8 |
| cpu | openvino | the model's, or bfloat16 |
| cpu | torch | float32 |
| cuda, cuda:N | torch | float16 through Triton (default), or float32 |
"""

from __future__ import annotations

import warnings
from pathlib import Path

from logpolar.errors import LogpolarError, LogpolarWarning, MissingExtraError, ModelError
from logpolar.models.cards import ModelPrecision
from logpolar.models.files import Model, load_model
from logpolar.models.runtimes.base import Describer, PatchDescriber
from logpolar.models.runtimes.onnxruntime_cpu import OnnxruntimeDescriber
from logpolar.settings import PRECISIONS, RUNTIMES, Precision, RuntimeName

__all__ = ["Describer", "PatchDescriber", "open_describer"]


def open_describer(
    model: Model | str | Path,
    *,
    device: str = "cpu",
    precision: Precision = "auto",
    runtime: RuntimeName = "auto",
    threads: int = 0,
) -> PatchDescriber:
    """Open a model: a loaded one, a shipped model's name or the path of a model file.

    ``device``: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
    ``precision``: ``"auto"`` is the model's own on a CPU and float16 on a GPU; see the table above for the others.
    ``runtime``: what runs the network on a CPU; ``"auto"`` is onnxruntime, or OpenVINO for bfloat16.
    ``threads``: of the CPU, 0 for all cores; in torch it applies to the whole process.

    Raises ``LogpolarError``, in one line, for a device, precision or runtime that is not available.
    """
    for kind, value, known in (("precision", precision, PRECISIONS), ("runtime", runtime, RUNTIMES)):
        if value not in known:
            raise LogpolarError(f"unknown {kind} '{value}' (known: {', '.join(known)})")
    model = model if isinstance(model, Model) else load_model(model)
    if device != "cpu":
        return _on_gpu(model, device, precision, runtime)
    chosen = _cpu_precision(model, precision)
    if runtime == "auto":
        runtime = "openvino" if chosen == "bfloat16" else "onnxruntime"
    if chosen == "bfloat16" and runtime != "openvino":
        raise ModelError(
            f"model '{model.name}': {runtime} has no bfloat16 on a CPU; choose the runtime openvino "
            "(pip install 'logpolar[openvino]')"
        )
    if runtime == "torch":
        return _in_torch(model, "cpu", threads=threads)
    if runtime == "openvino":
        from logpolar.models.runtimes.openvino_cpu import OpenVinoDescriber, UnsafeKernelError

        try:
            return OpenVinoDescriber(model, threads=threads, precision=chosen)
        except UnsafeKernelError as error:
            warnings.warn(f"{error}: using onnxruntime, slower", LogpolarWarning, stacklevel=2)
    return OnnxruntimeDescriber(model, threads=threads)


def _cpu_precision(model: Model, precision: Precision) -> ModelPrecision:
    own = model.card.precision
    if precision == "auto" or precision == own:
        return own
    if precision == "float16":
        raise LogpolarError("float16 needs a GPU; choose the device cuda, or another precision")
    if own == "int8":
        raise ModelError(f"model '{model.name}' runs in int8 only, not in {precision}")
    return precision


def _on_gpu(model: Model, device: str, precision: Precision, runtime: RuntimeName) -> PatchDescriber:
    if precision == "bfloat16":
        raise LogpolarError(f"precision bfloat16 is for the CPU; device '{device}' has float16 and float32")
    if runtime not in ("auto", "torch"):
        raise LogpolarError(f"runtime {runtime} is for the CPU; device '{device}' has torch")
    return _in_torch(model, device, half=precision != "float32")


def _in_torch(model: Model, device: str, half: bool = False, threads: int = 0) -> PatchDescriber:
    try:
        import torch

        from logpolar.models.runtimes.torch_device import TorchDescriber, find_device, network_on
    except ImportError as error:
        raise MissingExtraError("the torch runtime", "torch") from error
    found = find_device(device)
    if threads:
        torch.set_num_threads(threads)
    return TorchDescriber(network_on(model, found, half), model.sampling, found)
