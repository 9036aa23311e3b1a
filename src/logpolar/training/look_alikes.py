"""Look-alikes: correspondences of an image pair that a model would confuse, found once, before training."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from logpolar.models import Model
from logpolar.models.runtimes.torch_device import TorchDescriber, network_on
from logpolar.training.batches import too_close
from logpolar.training.data import TrainingData
from logpolar.training.options import BatchOptions

_COUNT = 8  # of each correspondence
_BLOCK = 1024  # correspondences compared at a time with all of their image pair: bounds memory
_NEVER = -2.0  # below any cosine


def find_look_alikes(data: TrainingData, options: BatchOptions, model: Model) -> Tensor:
    """(C, 8): for each correspondence the rows of those whose second keypoints ``model`` finds most like its first one.

    They are of the same image pair, and not too close to be negatives. Fewer than 8 are repeated; a correspondence
    without any is its own.
    """
    device = data.first.device
    describer = TorchDescriber(network_on(model, device, half=device.type == "cuda"), model.sampling, device)
    first, second = (_describe(data, side, describer) for side in (0, 1))
    found = torch.empty(len(first), _COUNT, dtype=torch.int64, device=device)
    for start, end in np.concatenate([table.rows for table in data.sources]).tolist():
        others = slice(start, end)
        for begin in range(start, end, _BLOCK):
            rows = slice(begin, min(begin + _BLOCK, end))
            excluded = too_close(data.first[rows], data.first[others], options)
            excluded |= too_close(data.second[rows], data.second[others], options)
            likeness = (first[rows] @ second[others].T).masked_fill(excluded, _NEVER)
            own = torch.arange(rows.start - start, rows.stop - start, device=device)
            found[rows] = start + _best(likeness, own)
    return found


def _describe(data: TrainingData, side: int, describer: TorchDescriber) -> Tensor:
    """(C, 128) of all first (0) or second (1) keypoints, as they are stored."""
    keypoints, image = (data.first, data.second)[side], np.zeros(data.first.shape[0], np.int64)
    for table in data.sources:
        for number, (start, end) in zip(table.images[:, side], table.rows, strict=True):
            image[start:end] = number
    numbers = torch.from_numpy(image).to(keypoints.device)
    return describer.describe_on_device(data.pyramids, numbers, keypoints).float()


def _best(likeness: Tensor, own: Tensor) -> Tensor:
    """(N, 8): columns of the largest entries of each row that count, repeated as necessary; else the row's ``own``."""
    best = likeness.topk(min(_COUNT, likeness.shape[1]), dim=1)
    count = (best.values > _NEVER).sum(dim=1, keepdim=True)
    place = torch.arange(_COUNT, device=likeness.device) % count.clamp(min=1)
    return torch.where(count > 0, best.indices.gather(1, place), own[:, None])
