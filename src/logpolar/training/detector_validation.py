"""Validation of detectors: how many keypoints are found again, and how many a descriptor matches correctly.

Views are whole images in a frame of fixed size, the second seen smaller by a factor; all detectors get the same ones.
Errors are those of ``detector_loss``. Keypoints count where the other view is known to show their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from logpolar.keypoints.detection import Detector
from logpolar.models.detector_network import DetectorNetwork, normalise_locally
from logpolar.training.detector_crops import Crops, DetectorData
from logpolar.training.detector_loss import Describe, compare_places, matched_errors, mutual_matches
from logpolar.training.detector_peaks import find_peaks

THRESHOLD = 3.0
"""Pixels within which a keypoint is found again, and a match is correct."""

FindKeypoints = Callable[[Crops, int], tuple[Tensor, Tensor]]
"""Positions (2B, K, 2) of the K strongest keypoints of crops, and (2B, K) which exist."""


@dataclass(frozen=True)
class DetectorScore:
    """Means over image pairs."""

    pairs: int
    repeatability: float  # fraction of keypoints, of both views, that are found again
    error: float  # pixels, of those
    correct: float  # mutual nearest neighbours within the threshold, number
    precision: float  # fraction of mutual nearest neighbours with known place that are correct

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def whole_views(
    data: DetectorData, source: int, side: int, zoom: float, pairs: Sequence[int], batch: int = 4
) -> Iterator[Crops]:
    """Pairs of a source as crops of whole images; seconds are smaller by ``zoom``, and larger images than ``side``
    are reduced to it first."""
    numbers = torch.tensor(pairs, dtype=torch.int64, device=data.images[source].device)
    for chunk in torch.split(numbers, batch):
        image = data.images[source][chunk].T.reshape(-1)
        sizes, count = data.sizes(image).float(), len(chunk)
        fitted = (sizes.amax(dim=1) / side).clamp(min=1)
        scale = torch.cat([fitted[:count], fitted[count:] * zoom])
        yield Crops(
            data,
            side,
            image,
            scale,
            0.5 * (scale[:, None] - 1).expand(-1, 2),
            data.transfers[source][chunk].transpose(0, 1).reshape(-1, 3, 4),
            torch.full((2 * count,), data.has_depth[source], device=image.device),
            torch.zeros(2 * count, device=image.device),
            torch.ones(2 * count, dtype=torch.bool, device=image.device),
        )


def by_network(network: DetectorNetwork) -> FindKeypoints:
    def find(crops: Crops, count: int) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            logits = network(normalise_locally(crops.render(), network.options.window)).float()
            peaks = find_peaks(logits, count, crops.on_image())
        return peaks.xy, peaks.exists

    return find


def by_detector(detect: Detector) -> FindKeypoints:
    """Keypoints of a detector on the CPU; its sizes and angles are not used."""

    def find(crops: Crops, count: int) -> tuple[Tensor, Tensor]:
        images = crops.render().cpu().numpy()
        ends = ((crops.data.sizes(crops.image) / crops.scale[:, None]).round().long()).clamp(1, crops.side).tolist()
        xy, exists = np.zeros((len(images), count, 2), np.float32), np.zeros((len(images), count), np.bool_)
        for row, (image, (width, height)) in enumerate(zip(images, ends, strict=True)):
            found = detect(np.ascontiguousarray(image[:height, :width])).strongest(count)
            xy[row, : len(found)], exists[row, : len(found)] = found.xy, True
        device = crops.scale.device
        return torch.from_numpy(xy).to(device), torch.from_numpy(exists).to(device)

    return find


def score_detector(views: Sequence[Crops], find: FindKeypoints, describe: Describe, count: int) -> DetectorScore:
    """Scores of ``count`` keypoints of each view."""
    rows = []
    with torch.no_grad():
        for crops in views:
            xy, exists = find(crops, count)
            agreement = compare_places(crops, xy, exists)
            nearest = torch.cat([agreement.error.amin(dim=2), agreement.error.amin(dim=1)])
            again = agreement.known & (nearest <= THRESHOLD)
            matches = mutual_matches(describe(crops, xy), exists)
            error = matched_errors(agreement.error, matches)
            correct, judged = error <= THRESHOLD, (matches >= 0) & agreement.known
            first = len(xy) // 2
            good = correct[:first].sum(dim=1)
            off = _sum(torch.where(again, nearest, 0.0)) / _sum(again).clamp(min=1)
            judged_first = (judged | correct)[:first].sum(dim=1).clamp(min=1)
            fraction = _sum(again) / _sum(agreement.known).clamp(min=1)
            rows.append(torch.stack([fraction, off, good, good / judged_first], dim=1).double())
    table = torch.cat(rows) if rows else torch.zeros(0, 4)
    means = table.mean(dim=0).tolist() if len(table) else [0.0] * 4
    return DetectorScore(len(table), *(round(each, 4) for each in means))


def _sum(values: Tensor) -> Tensor:
    """(2B, K) over the keypoints of both views: (B,)."""
    return values.sum(dim=1).view(2, -1).sum(dim=0)
