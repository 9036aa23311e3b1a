"""Views for training a matcher, made on the device: images warped at random, with keypoints and descriptors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from logpolar.models.detector_network import DetectorNetwork, normalise_locally
from logpolar.models.files import DetectorModel, Model
from logpolar.models.runtimes.torch_device import TorchDescriber, network_on
from logpolar.sampling.patterns import SamplePoints
from logpolar.sampling.torch_lookup import TorchPyramids
from logpolar.settings import DESCRIPTOR_SIZE
from logpolar.training.detector_peaks import find_peaks
from logpolar.training.matcher_options import ViewsOptions
from logpolar.training.matcher_sources import Sources

_LARGEST = 0.6
"""Least pixels of an image for a pixel of a view: enlarged further, views have no detail."""

_EDGE = 4
"""Pixels: keypoints closer than this to the edge of an image within a view are left out."""


@dataclass(frozen=True, eq=False)
class Views:
    """V views with K places for keypoints each, on the device; those without a keypoint are not ``used``."""

    xy: Tensor  # (V, K, 2)
    depth: Tensor  # (V, K)
    projection: Tensor  # (V, 3, 4) float64
    used: Tensor  # (V, K)
    descriptors: Tensor  # (V, K, 128) float16

    def __len__(self) -> int:
        return len(self.xy)

    @classmethod
    def none(cls, count: int, options: ViewsOptions, device: torch.device) -> Views:
        """Views to be stored later."""
        places = options.keypoints
        return cls(
            torch.zeros(count, places, 2, device=device),
            torch.full((count, places), float("nan"), device=device),
            torch.zeros(count, 3, 4, dtype=torch.float64, device=device),
            torch.zeros(count, places, dtype=torch.bool, device=device),
            torch.zeros(count, places, DESCRIPTOR_SIZE, dtype=torch.float16, device=device),
        )

    def store(self, numbers: Tensor, views: Views) -> None:
        """Replace views by others, in place."""
        for name in ("xy", "depth", "projection", "used", "descriptors"):
            getattr(self, name)[numbers] = getattr(views, name)


class ViewMaker:
    """Makes views of images in batches."""

    def __init__(
        self, sources: Sources, options: ViewsOptions, detector: DetectorModel, model: Model, fuse: bool = False
    ) -> None:
        device = sources.device
        self._sources, self._options, self._detector = sources, options, detector.card
        self._half = device.type == "cuda"
        self._network: DetectorNetwork = detector.network().to(device)
        self._describer = TorchDescriber(network_on(model, device, self._half), model.sampling, device, fuse=fuse)

    @torch.inference_mode()
    def make(self, image: Tensor, plain: Tensor, generator: torch.Generator) -> Views:
        """A view of each image (V,); ``plain`` (V,): the whole image, as it is."""
        warp = random_warps(self._sources.pyramids.sizes(image), plain, self._options, generator)
        pixels, clean = self._render(image, warp, plain, generator)
        normalised = normalise_locally(pixels, self._detector.network.window)
        with torch.autocast(pixels.device.type, torch.float16, enabled=self._half):
            scores = self._network(normalised).float()
        peaks = find_peaks(scores, self._options.keypoints, clean)
        used, xy = peaks.exists & (peaks.logit >= self._detector.min_score), peaks.xy
        homogeneous = functional.pad(xy.double(), (0, 1), value=1.0) @ warp.transpose(1, 2)
        original = homogeneous[..., :2] / homogeneous[..., 2:]
        # d (x, y, 1) = d warp (x', y', 1) / w: the depth in the view is d / w.
        depth = self._sources.depth_at(image, original.float()) / homogeneous[..., 2].float()
        projection = torch.linalg.inv(warp) @ self._sources.projections[image]
        return Views(xy, depth, projection, used, self._describe(pixels, xy))

    def _render(self, image: Tensor, warp: Tensor, plain: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Pixels (V, size, size) of images, perhaps under other conditions, and another image behind them.

        Also which pixels are away from the edge between the two, where keypoints would mean nothing.
        """
        sources, count, side = self._sources, len(image), self._options.size
        lots = torch.rand(3, count, generator=generator, device=image.device)
        copy = 1 + (lots[0] * sources.copies).long() if sources.copies else torch.zeros_like(image)
        seen = image + torch.where((lots[1] < self._options.altered) & ~plain, copy * len(sources), 0)
        steps = torch.arange(side, device=image.device, dtype=torch.float32)
        grid = torch.stack([*torch.meshgrid(steps, steps, indexing="xy"), torch.ones(side, side).to(steps)])
        x, y, w = (warp.float() @ grid.reshape(1, 3, -1)).reshape(count, 3, side, side).unbind(1)
        x, y = x / w, y / w
        view = sources.pyramids.look_up(seen, SamplePoints(x, y, _scale(warp, side)[:, None]))
        behind = (lots[2] * len(sources)).long()
        factor = (sources.pyramids.sizes(behind) - 1) / (side - 1)
        across, down = (factor[:, axis, None, None] * grid[axis] for axis in (0, 1))
        others = sources.pyramids.look_up(behind, SamplePoints(across, down, factor.amax(dim=1, keepdim=True)))
        inside = sources.contain(image, torch.stack([x, y], dim=-1))
        window = 2 * _EDGE + 1
        around = functional.avg_pool2d(inside.float()[:, None], window, 1, _EDGE, count_include_pad=False)[:, 0]
        return torch.where(inside, view, others), (around == 0) | (around == 1)

    def _describe(self, pixels: Tensor, xy: Tensor) -> Tensor:
        """(V, K, 128) of upright keypoints of the detector's size."""
        count, places = xy.shape[:2]
        pyramids = TorchPyramids.stacked(pixels.half() if self._half else pixels)
        owner = torch.arange(count, device=xy.device).repeat_interleave(places)
        shape = torch.tensor([self._detector.size, 0.0], device=xy.device).expand(count * places, -1)
        found = self._describer.describe_on_device(pyramids, owner, torch.cat([xy.reshape(-1, 2), shape], dim=1))
        return found.reshape(count, places, -1).half()


def random_warps(sizes: Tensor, plain: Tensor, options: ViewsOptions, generator: torch.Generator) -> Tensor:
    """Homographies (V, 3, 3) from square views to images of sizes (V, 2), in float64.

    A view shows an image from ``max_zoom`` times larger than it fits to as much smaller, tilted and turned a little;
    a *plain* one the whole image.
    """
    count, side, device = len(sizes), options.size, sizes.device
    extent = sizes.double()

    def uniform(*shape: int) -> Tensor:
        return 2 * torch.rand(count, *shape, generator=generator, device=device).double() - 1

    zoom = (uniform() * torch.tensor(options.max_zoom).log().item()).exp()
    scale = (extent.amin(dim=1) / side * zoom).clamp(min=_LARGEST)
    whole = extent.amax(dim=1) / side
    scale = torch.where(plain, whole, scale)
    room = (extent - scale[:, None] * side).clamp(min=0) / 2 + 0.1 * torch.minimum(extent, scale[:, None] * side)
    varied = (~plain).double()
    centre = (extent - 1) / 2 + varied[:, None] * uniform(2) * room
    angle = varied * uniform() * torch.tensor(options.max_turn).deg2rad()
    tilt = varied[:, None, None] * uniform(4, 2) * options.max_tilt
    corners = torch.tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]], device=device).double()
    tilted = _from_square(corners + tilt)
    cosine, sine = scale * side / 2 * angle.cos(), scale * side / 2 * angle.sin()
    last = torch.tensor([0.0, 0.0, 1.0], device=device).double().expand(count, 3)
    place = torch.stack(
        [torch.stack([cosine, -sine, centre[:, 0]], 1), torch.stack([sine, cosine, centre[:, 1]], 1), last], dim=1
    )
    half = side / 2
    square = torch.tensor([[1 / half, 0, 0.5 / half - 1], [0, 1 / half, 0.5 / half - 1], [0, 0, 1]], device=device)
    return place @ tilted @ square.double()


def _from_square(corners: Tensor) -> Tensor:
    """Homographies (V, 3, 3) that send (-1, -1), (1, -1), (1, 1), (-1, 1) to corners (V, 4, 2)."""
    x, y = torch.tensor([[-1, 1, 1, -1], [-1, -1, 1, 1]], device=corners.device).double()
    u, v = corners.unbind(-1)
    zero, one = torch.zeros_like(u), torch.ones_like(u)
    x, y = x.expand_as(u), y.expand_as(u)
    rows = [
        torch.stack([x, y, one, zero, zero, zero, -u * x, -u * y], dim=-1),
        torch.stack([zero, zero, zero, x, y, one, -v * x, -v * y], dim=-1),
    ]
    solved = torch.linalg.solve(torch.cat(rows, dim=1), torch.cat([u, v], dim=1))
    return functional.pad(solved, (0, 1), value=1.0).reshape(-1, 3, 3)


def _scale(warp: Tensor, side: int) -> Tensor:
    """(V,): pixels of the image for a pixel of the view, in its middle."""
    middle = torch.tensor([(side - 1) / 2, (side - 1) / 2, 1.0], device=warp.device).double()
    x, y, w = (warp @ middle).unbind(-1)
    across, down = ((warp[:, :2, axis] - torch.stack([x, y], 1) / w[:, None] * warp[:, 2:, axis]) for axis in (0, 1))
    area = (across[:, 0] * down[:, 1] - across[:, 1] * down[:, 0]) / w.square()
    return area.abs().sqrt().float()
