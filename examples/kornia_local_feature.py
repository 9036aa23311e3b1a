"""kornia: the shipped photo and a quarter turn of it, kornia's detector and matcher, our descriptor (extra kornia)."""

from __future__ import annotations

import torch
from kornia import feature

from logpolar.images import downscale, to_gray
from logpolar.integrations.kornia import LogPolarDescriptor
from logpolar.viewing.demo import demo_pair

photo = torch.from_numpy(downscale(to_gray(demo_pair().first), 256))[None, None]
turned = photo.rot90(1, (2, 3))

detector = feature.MultiResolutionDetector(feature.CornerGFTT(), num_features=120, ori_module=feature.LAFOrienter(19))
features = feature.LocalFeature(detector, LogPolarDescriptor("logpolar-96"))


def extract(image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.inference_mode():
        lafs, _, descriptors = features(image)
    filled = feature.laf_is_filled(lafs)[0]  # the detector fills up with frames of zeros
    return lafs[0][filled], descriptors[0][filled]


(first, first_descriptors), (second, second_descriptors) = extract(photo), extract(turned)
_, matches = feature.match_smnn(first_descriptors, second_descriptors, 0.9)

start, end = first[matches[:, 0], :, 2], second[matches[:, 1], :, 2]
truth = torch.stack([start[:, 1], photo.shape[3] - 1 - start[:, 0]], dim=1)
right = int(((truth - end).norm(dim=1) <= 3).sum())
print(f"kornia: {right} of {len(matches)} matches are right")
