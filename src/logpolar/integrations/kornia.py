"""kornia: the descriptor as a module that takes images and local affine frames (LAFs).

Convention:
    - A LAF is [A | xy]; xy is in pixels, the centre of the top-left pixel is (0, 0): the same as ours.
    - scale: the keypoint's size, a diameter, is ``sizes_per_scale`` * sqrt |det A|.
    - orientation: the direction of A's first column, clockwise on screen. kornia's sign is the opposite: a LAF made
      by ``laf_from_center_scale_ori(xy, scale, orientation)`` has the angle -orientation.
    - Affine frames are treated as circles of the same area; their shape is ignored: see ``keypoints.frame_circle``.

``LogPolarDescriptor`` needs torch only; kornia is needed for ``LocalFeature`` and detectors around it.
"""

from __future__ import annotations

from pathlib import Path

from logpolar.errors import ImageError, KeypointError, MissingExtraError
from logpolar.keypoints.keypoints import MAX_SIZE, frame_circle
from logpolar.models import Model, load_model
from logpolar.settings import DEFAULT_MODEL, DESCRIPTOR_SIZE

try:
    import torch
    from torch import Tensor, nn

    from logpolar.sampling.torch_lookup import TorchPyramids
except ImportError as missing:
    raise MissingExtraError("LogPolarDescriptor", "kornia") from missing

_CHUNK = 1024
"""Frames processed at a time, to bound memory; gradients keep all of them."""

_RED, _GREEN, _BLUE = 0.299, 0.587, 0.114


class LogPolarDescriptor(nn.Module):
    """Images and LAFs to descriptors, a drop-in replacement for ``kornia.feature.LAFDescriptor``.

    >>> descriptor = LogPolarDescriptor("logpolar-96")                                      # doctest: +SKIP
    >>> kornia.feature.LocalFeature(detector, descriptor)(images)                           # doctest: +SKIP

    ``model``: a shipped model's name, the path of a model file, or a loaded ``Model``.
    ``sizes_per_scale``: keypoint sizes in one LAF scale. 1/6, as ``Keypoints.to_lafs`` and kornia_moons write them;
    1/3 converts the 6 sigma of kornia's ``ScaleSpaceDetector`` into the 2 sigma that are SIFT's sizes.

    It starts in evaluation mode. Gradients flow to the images, the frames and the weights.
    """

    def __init__(self, model: str | Path | Model = DEFAULT_MODEL, sizes_per_scale: float = 1 / 6) -> None:
        super().__init__()
        if not sizes_per_scale > 0:
            raise ValueError(f"sizes_per_scale must be positive, not {sizes_per_scale}")
        loaded = model if isinstance(model, Model) else load_model(model)
        self.sampling = loaded.sampling
        self.sizes_per_scale = sizes_per_scale
        self.network = loaded.network()
        self.eval()

    def forward(self, img: Tensor, lafs: Tensor) -> Tensor:
        """Descriptors (B, N, 128) of ``img`` (B, 1 or 3, H, W), gray or RGB in [0, 1], and ``lafs`` (B, N, 2, 3).

        Frames without a valid size or position (NaN, or the zeros kornia's detectors pad with) get the descriptor 0.
        """
        gray = _to_gray(img)
        if lafs.ndim != 4 or lafs.shape[2:] != (2, 3) or len(lafs) != len(gray):
            raise KeypointError(
                f"{len(gray)} images need LAFs of shape ({len(gray)}, N, 2, 3), not {tuple(lafs.shape)}"
            )
        frames = lafs.reshape(-1, 2, 3).to(torch.promote_types(lafs.dtype, torch.float32))
        if len(frames) == 0:
            return frames.new_zeros(*lafs.shape[:2], DESCRIPTOR_SIZE)
        pyramids = TorchPyramids(list(gray), dtype=gray.dtype)
        image = torch.arange(len(gray), device=lafs.device).repeat_interleave(lafs.shape[1])
        parts = [slice(start, start + _CHUNK) for start in range(0, len(frames), _CHUNK)]
        descriptors = torch.cat([self._describe(pyramids, image[part], frames[part]) for part in parts])
        return descriptors.reshape(*lafs.shape[:2], DESCRIPTOR_SIZE)

    def _describe(self, pyramids: TorchPyramids, image: Tensor, frames: Tensor) -> Tensor:
        usable = self._usable(frames)[:, None]
        # An invalid frame would make all gradients NaN, even though its descriptor is not used.
        frames = torch.where(usable[:, :, None], frames, torch.eye(2, 3, device=frames.device, dtype=frames.dtype))
        scale, angle = frame_circle(frames, torch)
        patches = pyramids.sample(image, frames[:, :, 2], scale * self.sizes_per_scale, angle, self.sampling)
        descriptors: Tensor = self.network(patches.to(self.network.head.weight.dtype))
        return torch.where(usable, descriptors, 0)

    def _usable(self, frames: Tensor) -> Tensor:
        size: Tensor = frame_circle(frames, torch)[0] * self.sizes_per_scale
        return frames.isfinite().all(dim=(1, 2)) & (size > 0) & (size <= MAX_SIZE)


def _to_gray(img: Tensor) -> Tensor:
    """(B, H, W) of gray or RGB (B, 1 or 3, H, W)."""
    if img.ndim != 4 or img.shape[1] not in (1, 3) or 0 in img.shape[2:] or not img.is_floating_point():
        raise ImageError(f"images must be floats (B, 1 or 3, H, W), not {img.dtype} of shape {tuple(img.shape)}")
    img = img.to(torch.promote_types(img.dtype, torch.float32))
    if img.shape[1] == 1:
        return img[:, 0].contiguous()
    return _RED * img[:, 0] + _GREEN * img[:, 1] + _BLUE * img[:, 2]
