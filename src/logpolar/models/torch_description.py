"""Describing with torch: pyramids, keypoints and descriptors stay on the device, on which all the work is done."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from logpolar.errors import LogpolarError
from logpolar.models import Model
from logpolar.sampling.patterns import Pattern
from logpolar.sampling.torch_lookup import TorchPyramids
from logpolar.settings import DESCRIPTOR_SIZE, DevicePrecision

PatchNetwork = Callable[[Tensor], Tensor]
"""Patches (N, rows, columns) to (N, D)."""


class TorchDescriber:
    """Descriptors of keypoints of any number of images, in chunks of a fixed size that go across images.

    ``network``: patches (N, rows, columns) to (N, D), in evaluation mode, on the device.
    ``fuse`` compiles the cutting of patches into one kernel: some seconds at the first call, then 20 times faster.
    """

    def __init__(self, network: PatchNetwork, pattern: Pattern, chunk: int = 1024, fuse: bool = False) -> None:
        self._network, self.chunk = network, chunk

        def cut(pyramids: TorchPyramids, image: Tensor, keypoints: Tensor) -> Tensor:
            keypoints = keypoints.double()  # as on the CPU, or samples on an image's edge would be off it now and then
            return pyramids.sample(image, keypoints[:, :2], keypoints[:, 2], keypoints[:, 3], pattern)

        self._cut = torch.compile(cut) if fuse else cut

    def describe(self, pyramids: TorchPyramids, image: Tensor, keypoints: Tensor) -> Tensor:
        """(N, D) of ``keypoints`` (N, 4: x, y, size, angle); keypoint n is taken from image number ``image[n]``."""
        count = len(keypoints)
        if count == 0:
            return keypoints.new_zeros((0, DESCRIPTOR_SIZE))
        # Filled up with the first keypoint: shapes that change would make a GPU tune itself anew.
        missing = -count % self.chunk
        image = torch.cat([image, image[:1].expand(missing)])
        keypoints = torch.cat([keypoints, keypoints[:1].expand(missing, -1)])
        parts = zip(torch.split(image, self.chunk), torch.split(keypoints, self.chunk), strict=True)
        with torch.inference_mode():
            return torch.cat([self._network(self._cut(pyramids, *part)) for part in parts])[:count]


def network_on(model: Model, device: torch.device | str, precision: DevicePrecision = "float32") -> PatchNetwork:
    """The model's network as it describes on a device.

    float16 differs from float32 by at most 0.005 in any of the 128 numbers; it is for GPUs, and needs Triton, which
    torch for CUDA brings along.
    """
    network = model.network().to(device)
    if precision == "float32":
        return full_float32(network)
    try:
        from logpolar.models.triton_network import TritonNetwork
    except ImportError as error:
        raise LogpolarError("float16 on a GPU needs Triton: pip install triton, or use another runtime") from error
    return TritonNetwork(network)


def full_float32(network: PatchNetwork) -> PatchNetwork:
    """Without TF32, which torch allows by default on GPUs: it would show in the third digit."""

    def exact(patches: Tensor) -> Tensor:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            return network(patches)

    return exact
