"""Learned matchers on a torch device: several pairs at a time, padded to the most keypoints among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from logpolar.errors import MissingExtraError

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise MissingExtraError("matching on a GPU", "torch") from error

from logpolar.matching.learned import Assigned, Inputs, mutual
from logpolar.models.matcher_network import log_assignment
from logpolar.models.runtimes.torch_device import find_device

if TYPE_CHECKING:
    from logpolar.models.matcher_files import MatcherModel

_VALUES = 2**27
"""Probabilities in memory at a time: 512 MB in float32, a few times over."""


class TorchMatcher:
    """The network of a matcher on a device; float16 on a GPU."""

    def __init__(self, model: MatcherModel, device: str) -> None:
        self._device = find_device(device)
        self._network = model.network().to(self._device)

    def assign(self, pairs: Sequence[tuple[Inputs, ...]]) -> list[Assigned]:
        """Matches of pairs of images with at least one keypoint each; see ``learned.assign``."""
        found: list[Assigned] = []
        while len(found) < len(pairs):
            most, count = 1, 0  # as many of the next pairs as fit
            for first, second in pairs[len(found) :]:
                most = max(most, len(first[0]), len(second[0]))
                if count and (count + 1) * most**2 > _VALUES:
                    break
                count += 1
            found += self._assign(pairs[len(found) : len(found) + count])
        return found

    @torch.inference_mode()
    def _assign(self, pairs: Sequence[tuple[Inputs, ...]]) -> list[Assigned]:
        images = [pair[side] for side in (0, 1) for pair in pairs]
        descriptors, table = (self._padded([image[part] for image in images]) for part in (0, 1))
        counts = torch.tensor([len(image[0]) for image in images], device=self._device)
        mask = torch.arange(table.shape[1], device=self._device) < counts[:, None]
        with torch.autocast(self._device.type, torch.float16, enabled=self._device.type == "cuda"):
            states = self._network(descriptors, table, mask)[-1]
            vectors, matchability, _ = self._network.each_layer()[-1].head(states, descriptors)
        probability = log_assignment(vectors.float(), matchability, mask)
        best, index = (each.cpu().numpy() for each in probability.max(dim=2))
        back = probability.amax(dim=1).cpu().numpy()
        results = []
        for number, (first, second) in enumerate(pairs):
            here, there = len(first[0]), len(second[0])
            results.append(mutual(index[number, :here], best[number, :here], back[number, :there]))
        return results

    def _padded(self, values: Sequence[np.ndarray]) -> Tensor:
        padded = np.zeros((len(values), max(map(len, values)), values[0].shape[1]), np.float32)
        for row, own in zip(padded, values, strict=True):
            row[: len(own)] = own
        return torch.from_numpy(padded).to(self._device)
