"""Look-up with torch, on CPU or GPU: the pyramids of many images of any size in one flat tensor.

The same convention as ``numpy_lookup``; ``tests/sampling/test_torch_lookup.py`` holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import torch
from torch import Tensor

from logpolar.sampling.patterns import Pattern, SamplePoints, fill_outside, inside, pyramid_level, reflect


class TorchPyramids:
    """Gaussian pyramids of many gray images, packed one after another without padding.

    ``dtype`` is how pixels are stored (float16 halves the memory); values come out in it, but in float32 at least.
    Positions are computed in the keypoints' type: in float64 they are those of ``numpy_lookup``; in float32 a sample
    at the very edge of an image may fall to the other side of it. Gradients flow to the images and to the keypoints.
    """

    def __init__(
        self,
        images: Sequence[Tensor],
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        depth = max((_depth(image) for image in images), default=1)
        table: list[list[tuple[int, int, int]]] = []  # for each image and level: first pixel, width, height
        pieces, offset = [], 0
        for image in images:
            rows = []
            levels = _gaussian_pyramid(image, depth)
            for height, width in (pixels.shape for pixels in levels):
                rows.append((offset, width, height))
                offset += height * width
            pieces.append(torch.cat([pixels.reshape(-1) for pixels in levels]).to(dtype))
            table.append(rows)
        self._pixels = (torch.cat(pieces) if pieces else torch.zeros(0, dtype=dtype)).to(device)
        self._values = torch.promote_types(dtype, torch.float32)
        self._table = torch.tensor(table, dtype=torch.int64, device=self._pixels.device).reshape(-1, depth, 3)

    @classmethod
    def stacked(cls, images: Tensor) -> TorchPyramids:
        """Of images (N, height, width), on their device and in their type: all at once."""
        made = cls([])
        levels = _gaussian_pyramid(images, _depth(images[0]))
        sizes = torch.tensor([level.shape[:0:-1] for level in levels], device=images.device)  # (levels, 2)
        counts = sizes.prod(dim=1)
        starts = (len(images) * (counts.cumsum(0) - counts))[None] + torch.arange(len(images), device=images.device)[
            :, None
        ] * counts
        made._pixels = torch.cat([level.reshape(-1) for level in levels]).to(images.dtype)
        made._values = torch.promote_types(images.dtype, torch.float32)
        made._table = torch.cat([starts[..., None], sizes.expand(len(images), -1, -1)], dim=-1)
        return made

    def __len__(self) -> int:
        return len(self._table)

    def sample(self, image: Tensor, xy: Tensor, size: Tensor, angle: Tensor, pattern: Pattern) -> Tensor:
        """Patches (N, rows, columns); keypoint n is taken from image number ``image[n]``."""
        points = pattern.locate(xy, size, angle)
        patches = self.look_up(image, points, pattern.antialias)
        return fill_outside(patches, self._inside(image, points)) if pattern.outside == "mean" else patches

    def validity(self, image: Tensor, xy: Tensor, size: Tensor, angle: Tensor, pattern: Pattern) -> Tensor:
        """Mask (N, rows, columns) of the samples that lie on the image rather than beyond its edge."""
        return self._inside(image, pattern.locate(xy, size, angle))

    def _inside(self, image: Tensor, points: SamplePoints) -> Tensor:
        width, height = (self._table[image, 0, column][:, None, None] for column in (1, 2))
        mask: Tensor = inside(points, width, height)
        return mask

    def sizes(self, image: Tensor) -> Tensor:
        """(N, 2): width and height of images."""
        return self._table[image, 0, 1:]

    def look_up(self, image: Tensor, points: SamplePoints, antialias: bool = True) -> Tensor:
        """Values (N, rows, columns) at any points; n-th ones are taken from image number ``image[n]``."""
        width, height = (self._table[image, 0, column].to(points.x.dtype)[:, None, None] for column in (1, 2))
        x, y = reflect(points.x, width).to(self._values), reflect(points.y, height).to(self._values)
        if not antialias:
            return self._bilinear(self._table[image, 0][:, None, None], x, y)
        top = self._table.shape[1] - 1
        level = pyramid_level(points.spacing).clamp(0, top)
        lower = level.floor()
        fine = self._at_level(image, lower, x, y)
        coarse = self._at_level(image, (lower + 1).clamp(max=top), x, y)
        return torch.lerp(fine, coarse, (level - lower).to(self._values)[:, None, :])

    def _at_level(self, image: Tensor, level: Tensor, x: Tensor, y: Tensor) -> Tensor:
        place = self._table[image[:, None], level.long()][:, None]
        scale = torch.exp2(-level).to(self._values)[:, None]
        return self._bilinear(place, x * scale, y * scale)

    def _bilinear(self, place: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Values at (x, y) of the level that ``place`` = (offset, width, height) describes, edges continued."""
        offset, width, height = place.unbind(-1)
        x, y = torch.minimum(x, (width - 1).to(x.dtype)), torch.minimum(y, (height - 1).to(y.dtype))
        left, upper = x.long(), y.long()
        right, lower = torch.minimum(left + 1, width - 1), torch.minimum(upper + 1, height - 1)
        weight_x, weight_y = x - left, y - upper
        row_above, row_below = offset + upper * width, offset + lower * width

        def pixel(index: Tensor) -> Tensor:
            return self._pixels[index].to(x.dtype)

        above = torch.lerp(pixel(row_above + left), pixel(row_above + right), weight_x)
        below = torch.lerp(pixel(row_below + left), pixel(row_below + right), weight_x)
        return torch.lerp(above, below, weight_y)


def _depth(image: Tensor) -> int:
    """Number of levels, the last of one pixel."""
    return (max(image.shape) - 1).bit_length() + 1


def _gaussian_pyramid(image: Tensor, depth: int) -> list[Tensor]:
    """Levels of an image (height, width) or of many (N, height, width)."""
    levels = [image if image.dtype == torch.float64 else image.to(torch.float32)]
    plain = image.device.type == "cpu" and not image.requires_grad and image.ndim == 2
    halve = _halve_on_cpu if plain else _halve
    while len(levels) < depth:
        levels.append(halve(levels[-1]))
    return levels


def _halve_on_cpu(image: Tensor) -> Tensor:
    """``cv2.pyrDown``: about a hundred times faster than many small torch operations."""
    return torch.from_numpy(np.atleast_2d(cv2.pyrDown(image.numpy())))


def _halve(image: Tensor) -> Tensor:
    """What ``cv2.pyrDown`` does: the filter (1 4 6 4 1) / 16 both ways, then every second pixel from the first on."""
    for axis in (-2, -1):
        length = image.shape[axis]
        ends = torch.tensor([-2, -1, length, length + 1], device=image.device, dtype=torch.float32)
        outer = image.index_select(axis, reflect(ends, length).long())
        padded = torch.cat([outer.narrow(axis, 0, 2), image, outer.narrow(axis, 2, 2)], dim=axis)
        # Sums of slices rather than a convolution, which would round to TF32 and tune itself to every image's shape.
        taps = [padded.narrow(axis, k, length) for k in range(5)]
        a, b, c, d, e = (tap[..., ::2, :] if axis == -2 else tap[..., ::2] for tap in taps)
        image = (a + e + 4 * (b + d) + 6 * c) / 16
    return image
