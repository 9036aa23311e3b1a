"""What happens to patches between the image and the network while training."""

from __future__ import annotations

import torch
from torch import Tensor

from logpolar.training.options import AugmentationOptions


def change_patches(patches: Tensor, per_image: int, options: AugmentationOptions, generator: torch.Generator) -> Tensor:
    """Another camera and another hour: gamma and noise, one strength for each image, and things in the way.

    ``patches`` (N, rows, columns) in [0, 1]; ``per_image`` patches in a row come from one image.
    """
    count, rows, columns = patches.shape
    images = count // per_image

    def draw(kind: str, *shape: int) -> Tensor:
        values: Tensor = getattr(torch, kind)(*shape, generator=generator, device=patches.device)
        return values

    if options.gamma:
        gamma = torch.exp(options.gamma * draw("randn", images)).repeat_interleave(per_image)
        patches = patches.clamp(min=1e-4) ** gamma[:, None, None]
    if options.noise:
        strength = (options.noise * draw("rand", images)).repeat_interleave(per_image)
        patches = patches + strength[:, None, None] * draw("randn", count, rows, columns)
    if options.occlusion:
        # A log-polar patch is far away at its right: what stands there is what another photo need not show.
        start = columns * (1 - 0.5 * draw("rand", count))
        hidden = (torch.arange(columns, device=patches.device) >= start[:, None]) & (
            draw("rand", count)[:, None] < options.occlusion
        )
        other = patches[(torch.arange(count, device=patches.device) + per_image + 1) % count]
        patches = torch.where(hidden[:, None, :], other, patches)
    return patches
