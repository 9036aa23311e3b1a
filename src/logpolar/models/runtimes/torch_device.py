"""torch on a CPU or a GPU (extra ``torch``). On a GPU pyramids, patches and descriptors never leave the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from logpolar.errors import LogpolarError
from logpolar.keypoints import Keypoints
from logpolar.models.files import Model
from logpolar.models.runtimes.base import PatchDescriber
from logpolar.sampling.patterns import Pattern
from logpolar.sampling.torch_lookup import TorchPyramids
from logpolar.settings import DESCRIPTOR_SIZE
from logpolar.types import FloatArray

PatchNetwork = Callable[[Tensor], Tensor]
"""Patches (N, rows, columns) to (N, D)."""

_CPU_CHUNK, _GPU_CHUNK = 256, 2048


class TorchDescriber(PatchDescriber):
    """Any network of patches on a torch device, always without TF32, which would show in the third digit.

    ``network``: patches (N, rows, columns) to (N, D), in evaluation mode, on the device.
    ``fuse`` compiles the cutting of patches into one kernel: some seconds at the first call, then 20 times faster.
    """

    def __init__(
        self,
        network: PatchNetwork,
        sampling: Pattern,
        device: torch.device | str = "cpu",
        chunk: int | None = None,
        fuse: bool = False,
    ) -> None:
        self._network, self.sampling, self._device = network, sampling, torch.device(device)
        self.chunk = chunk or (_CPU_CHUNK if self._device.type == "cpu" else _GPU_CHUNK)
        self._cut = torch.compile(self._sample) if fuse else self._sample

    def describe(self, gray: FloatArray, keypoints: Keypoints) -> FloatArray:
        if self._device.type == "cpu":
            return super().describe(gray, keypoints)  # numpy's look-up is faster there
        keypoints.check()  # an index out of range would abort the GPU's context
        pyramids = TorchPyramids([torch.from_numpy(np.ascontiguousarray(gray)).to(self._device)])
        table = torch.from_numpy(keypoints.table).to(self._device)
        image = torch.zeros(len(table), dtype=torch.int64, device=self._device)
        return np.asarray(self.describe_on_device(pyramids, image, table).cpu().numpy(), np.float32)

    def describe_on_device(self, pyramids: TorchPyramids, image: Tensor, keypoints: Tensor) -> Tensor:
        """(N, D) of ``keypoints`` (N, 4: x, y, size, angle) of many images; keypoint n is in image ``image[n]``."""
        count = len(keypoints)
        if count == 0:
            return keypoints.new_zeros((0, DESCRIPTOR_SIZE))
        # Padded with the first keypoint: a GPU would tune itself again for every new shape.
        missing = -count % self.chunk
        image = torch.cat([image, image[:1].expand(missing)])
        keypoints = torch.cat([keypoints, keypoints[:1].expand(missing, -1)])
        chunks = zip(torch.split(image, self.chunk), torch.split(keypoints, self.chunk), strict=True)
        with torch.inference_mode():
            return torch.cat([self._apply(self._cut(pyramids, *chunk)) for chunk in chunks])[:count]

    def _sample(self, pyramids: TorchPyramids, image: Tensor, keypoints: Tensor) -> Tensor:
        keypoints = keypoints.double()  # as on the CPU, so that samples on an image's edge fall on the same side
        return pyramids.sample(image, keypoints[:, :2], keypoints[:, 2], keypoints[:, 3], self.sampling)

    def _apply(self, patches: Tensor) -> Tensor:
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            return self._network(patches)

    def _run(self, chunks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        for patches in chunks:
            filled = patches if self._device.type == "cpu" else self._filled(patches)
            found = self._apply(torch.from_numpy(filled).to(self._device))
            yield np.asarray(found.cpu().numpy()[: len(patches)], np.float32)


def find_device(name: str) -> torch.device:
    """torch's device ``cpu``, ``cuda`` or ``cuda:N``; raises ``LogpolarError`` if there is none of that name."""
    kind, _, number = name.partition(":")
    if name != "cpu" and (kind != "cuda" or not (number.isdecimal() or name == kind)):
        raise LogpolarError(f"unknown device '{name}' (known: cpu, cuda, cuda:0, cuda:1, ...)")
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cuda" and int(number or 0) >= available:
        found = f"only {available} CUDA device{'s' * (available > 1)}" if available else "no CUDA device"
        raise LogpolarError(f"no device '{name}': torch finds {found}")
    return torch.device(name)


def network_on(model: Model, device: torch.device, half: bool) -> PatchNetwork:
    """The model's network on a device, in float32 or, with ``half``, in float16 through Triton (GPUs only).

    float16 differs from float32 by at most 0.005 in any of the 128 numbers.
    """
    network = model.network().to(device)
    if not half:
        return network
    try:
        from logpolar.models.runtimes.triton_network import TritonNetwork
    except ImportError as error:
        raise LogpolarError("float16 on a GPU needs Triton: pip install triton, or choose precision float32") from error
    return TritonNetwork(network)
