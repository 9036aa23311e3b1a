"""What others offer for the same work, used as well as we know how."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np

from logpolar.features.sift import sift_octave
from logpolar.keypoints import Keypoints
from logpolar.sampling.patterns import LogPolar
from logpolar.types import FloatArray
from speed_subjects.measuring import Work

KORNIA_CHUNK = 128
"""Patches of kornia's HardNet at a time: as fast as any of 64, 128, 256, 512 and all."""


def kornia_lafs(keypoints: Keypoints) -> Any:
    """Kornia's frames with the support of 12 sizes that HardNet is trained for."""
    import torch
    from kornia.feature import laf_from_center_scale_ori

    xy, size, angle = (torch.from_numpy(values)[None] for values in (keypoints.xy, keypoints.size, keypoints.angle))
    return laf_from_center_scale_ori(xy, 6 * size[..., None, None], -angle[..., None])


def kornia_patches(gray: FloatArray, keypoints: Keypoints) -> Work:
    import torch
    from kornia.feature import extract_patches_from_pyramid

    image, lafs = torch.from_numpy(gray)[None, None], kornia_lafs(keypoints)

    def work() -> object:
        with torch.inference_mode():
            return extract_patches_from_pyramid(image, lafs, 32)

    return work


def kornia_network(count: int, chunk: int) -> Work:
    """HardNet on random patches, with random weights, which take as long as any."""
    import torch
    from kornia.feature import HardNet

    network = HardNet(pretrained=False).eval()
    patches = torch.rand(count, 1, 32, 32)

    def work() -> object:
        with torch.inference_mode():
            return torch.cat([network(part) for part in patches.split(chunk)])

    return work


def kornia_description(gray: FloatArray, keypoints: Keypoints, chunk: int) -> Work:
    """Patches from kornia's pyramid, then HardNet."""
    import torch
    from kornia.feature import HardNet, extract_patches_from_pyramid

    network = HardNet(pretrained=False).eval()
    image, lafs = torch.from_numpy(gray)[None, None], kornia_lafs(keypoints)

    def work() -> object:
        with torch.inference_mode():
            patches = extract_patches_from_pyramid(image, lafs, 32)[0]
            return torch.cat([network(part) for part in patches.split(chunk)])

    return work


def kornia_module(gray: FloatArray, keypoints: Keypoints) -> Work:
    """The same as kornia packs it: ``LAFDescriptor``, all patches at once."""
    import torch
    from kornia.feature import HardNet, LAFDescriptor

    module = LAFDescriptor(HardNet(pretrained=False).eval(), patch_size=32)
    image, lafs = torch.from_numpy(gray)[None, None], kornia_lafs(keypoints)

    def work() -> object:
        with torch.inference_mode():
            return module(image, lafs)

    return work


def opencv_sift(picture: np.ndarray, keypoints: Keypoints) -> Work:
    """OpenCV's SIFT descriptors of given keypoints."""
    points = keypoints.to_opencv()
    for point, octave in zip(points, sift_octave(keypoints.size).tolist(), strict=True):
        point.octave = octave
    feature = cv2.SIFT.create(enable_precise_upscale=True)
    return lambda: feature.compute(picture, points)


def loop_sampler(gray: FloatArray, keypoints: Keypoints, pattern: LogPolar) -> Work:
    """Log-polar patches one keypoint after the other, plain bilinear, by torch's ``grid_sample``."""
    import torch
    from torch.nn.functional import grid_sample

    image = torch.from_numpy(gray)[None, None]
    height, width = gray.shape
    turns = torch.arange(pattern.rows) * (2 * torch.pi / pattern.rows)
    shares = torch.arange(pattern.columns) / (pattern.columns - 1)

    def work() -> object:
        patches = []
        for (x, y), size, angle in zip(keypoints.xy, keypoints.size, keypoints.angle, strict=True):
            radius = max(pattern.lambda_ / 2 * float(size), 1.001) ** shares
            direction = turns + float(np.deg2rad(angle))
            at_x = float(x) + radius[None] * torch.cos(direction)[:, None]
            at_y = float(y) + radius[None] * torch.sin(direction)[:, None]
            grid = torch.stack([2 * at_x / (width - 1) - 1, 2 * at_y / (height - 1) - 1], dim=-1)
            patches.append(grid_sample(image, grid[None].float(), align_corners=True))
        return torch.cat(patches)

    return work
