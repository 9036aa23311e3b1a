"""The detector network: a gray image to a logit for every pixel (needs torch)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from logpolar.models.cards import DetectorOptions

CONTRAST_FLOOR = 0.02
"""Added to the local contrast, in units of the full intensity range, so that noise in flat regions stays small."""


class DetectorNetwork(nn.Module):
    """(N, height, width), multiples of 8, intensities normalised by ``normalise_locally`` -> logits of the same shape.

    Three 3 x 3 convolutions of stride 2 with further ones between them lead to an eighth of the resolution; two
    sub-pixel convolutions lead back to half of it, each added to what was there on the way down, and a third, to one
    channel, to the full one. So nothing but the scores themselves is computed at full resolution. Every convolution
    but the last has batch normalisation and ReLU; ``folded`` leaves them out.
    """

    def __init__(self, options: DetectorOptions) -> None:
        super().__init__()
        self.options = options
        self.convolutions = nn.ModuleDict()
        self.norms = nn.ModuleDict()
        for name, layer in options.layers.items():
            (outputs, inputs, size, _), last = layer.shape, name == "head"
            self.convolutions[name] = nn.Conv2d(inputs, outputs, size, layer.stride, padding=size // 2, bias=last)
            if not last:
                self.norms[name] = nn.BatchNorm2d(outputs)
        nn.init.constant_(self.convolutions["head"].bias, -3.0)  # type: ignore[arg-type] # few pixels are keypoints

    def forward(self, images: Tensor) -> Tensor:
        values, levels = images[:, None], []
        for level, count in enumerate(self.options.blocks):
            values = functional.relu(self._convolve(f"down{level}", values))
            for number in range(count):
                values = functional.relu(self._convolve(f"block{level}_{number}", values))
            levels.append(values)
        for level in (1, 0):
            values = levels[level] + functional.pixel_shuffle(self._convolve(f"up{level}", values), 2)
            values = functional.relu(self._convolve(f"merge{level}", functional.relu(values)))
        return functional.pixel_shuffle(self._convolve("head", values).to(torch.float32), 2)[:, 0]

    def _convolve(self, name: str, values: Tensor) -> Tensor:
        values = self.convolutions[name](values)
        return self.norms[name](values) if name in self.norms else values

    def unfold(self, folded: Mapping[str, Tensor], images: Tensor) -> None:
        """Take over folded weights: batch normalisation is set so that it changes nothing on ``images``.

        In training it then changes little on others.
        """

        def keep(norm: nn.Module, inputs: tuple[Tensor, ...], bias: Tensor) -> None:
            assert isinstance(norm, nn.BatchNorm2d)
            assert norm.running_mean is not None and norm.running_var is not None
            variance, mean = torch.var_mean(inputs[0], dim=(0, 2, 3), correction=0)
            norm.running_mean.copy_(mean)
            norm.running_var.copy_(variance)
            norm.weight.copy_((variance + norm.eps).sqrt())
            norm.bias.copy_(bias + mean)

        was_training, hooks = self.training, []
        with torch.no_grad():
            for name, convolution in self.convolutions.items():
                assert isinstance(convolution, nn.Conv2d)
                convolution.weight.copy_(folded[f"{name}.weight"])
                bias = folded[f"{name}.bias"].to(convolution.weight.device)
                if name in self.norms:
                    hooks.append(self.norms[name].register_forward_pre_hook(partial(keep, bias=bias)))
                else:
                    assert convolution.bias is not None
                    convolution.bias.copy_(bias)
            self.eval()(images)
        for hook in hooks:
            hook.remove()
        self.train(was_training)

    def folded(self) -> dict[str, Tensor]:
        """Weights ``NAME.weight`` and ``NAME.bias`` of the convolutions with their batch normalisation folded in."""
        found: dict[str, Tensor] = {}
        for name, convolution in self.convolutions.items():
            assert isinstance(convolution, nn.Conv2d)
            weight, bias = convolution.weight.detach(), convolution.bias
            if name in self.norms:
                norm = self.norms[name]
                assert isinstance(norm, nn.BatchNorm2d)
                assert norm.running_mean is not None and norm.running_var is not None
                scale = norm.weight.detach() * (norm.running_var + norm.eps).rsqrt()
                bias = norm.bias.detach() - norm.running_mean * scale
                weight = weight * scale[:, None, None, None]
            assert bias is not None
            found |= {f"{name}.weight": weight, f"{name}.bias": bias.detach()}
        return found


def normalise_locally(images: Tensor, window: int) -> Tensor:
    """Gray images (N, height, width) in [0, 1] to zero mean and unit contrast over squares of 2 window + 1 pixels.

    Beyond the image squares are reflected, the edge pixel not repeated; ``detectors.normalise_locally`` does the same
    in numpy. With a window of 0 images are only centred: 2 (value - 0.5).
    """
    if window == 0:
        return 2 * images - 1
    centred = images - 0.5  # for the sake of digits
    both = torch.stack([centred, centred.square()], dim=1)
    for axis in (2, 3):
        place = torch.arange(-window, both.shape[axis] + window, device=images.device)
        last = both.shape[axis] - 1
        place = last - (last - place.abs() % (2 * last)).abs() if last else torch.zeros_like(place)
        sums = both.index_select(axis, place).to(torch.float64).cumsum(axis)
        sums = functional.pad(sums, (1, 0) if axis == 3 else (0, 0, 1, 0))
        length = both.shape[axis]
        both = (sums.narrow(axis, 2 * window + 1, length) - sums.narrow(axis, 0, length)) / (2 * window + 1)
        both = both.to(images.dtype)
    mean, square = both.unbind(1)
    deviation = (square - mean.square()).clamp(min=0).sqrt()
    return (centred - mean) / (deviation + CONTRAST_FLOOR)
