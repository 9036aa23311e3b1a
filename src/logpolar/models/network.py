"""The descriptor network: patches to descriptors of unit length (needs torch)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from logpolar.models.cards import NetworkOptions
from logpolar.settings import DESCRIPTOR_SIZE

CONTRAST_FLOOR = 1e-4  # added to a patch's contrast, so that noise in flat patches stays small


class DescriptorNetwork(nn.Module):
    """(N, rows, columns) -> (N, 128). By default the paper's HardNet: 1 334 560 parameters for 32 x 32 patches.

    Each patch is normalised to zero mean and unit contrast, followed by 3 x 3 convolutions with batch normalisation
    (without learned scale and shift) and ReLU, dropout, a convolution over the whole remaining map, batch
    normalisation, and unit length. With ``circular`` the convolutions wrap around the rows, the angles of log-polar
    patches.
    """

    def __init__(self, options: NetworkOptions) -> None:
        super().__init__()
        self.options = options
        inputs = (1, *options.channels[:-1])
        self.blocks = nn.ModuleList(
            _Block(*layer, options.circular) for layer in zip(inputs, options.channels, options.strides, strict=True)
        )
        self.dropout = nn.Dropout(options.dropout)
        left = (options.rows // options.reduction, options.columns // options.reduction)
        self.head = nn.Conv2d(options.channels[-1], DESCRIPTOR_SIZE, left, bias=False)
        self.head_norm = nn.BatchNorm2d(DESCRIPTOR_SIZE, affine=False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.orthogonal_(module.weight, gain=0.6)

    def forward(self, patches: Tensor) -> Tensor:
        values = normalise_contrast(patches)[:, None]
        for block in self.blocks:
            values = block(values)
        values = self.head_norm(self.head(self.dropout(values)))
        # At least float32: mixed precision would lose digits here.
        return unit_length(values.flatten(1).to(torch.promote_types(values.dtype, torch.float32)))


class _Block(nn.Module):
    """3 x 3 convolution, batch normalisation, ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int, circular: bool) -> None:
        super().__init__()
        self.circular = circular
        self.convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=(0 if circular else 1, 1), bias=False)
        self.norm = nn.BatchNorm2d(outputs, affine=False)

    def forward(self, values: Tensor) -> Tensor:
        if self.circular:
            values = torch.cat([values[:, :, -1:], values, values[:, :, :1]], dim=2)
        return functional.relu(self.norm(self.convolution(values)))


def normalise_contrast(patches: Tensor) -> Tensor:
    """Each patch to zero mean and unit standard deviation (divided by N - 1, as in the paper's code)."""
    # Subtract a value of the patch first: a flat patch is then exactly 0, not its mean's rounding error.
    patches = patches - patches[:, :1, :1]
    centred = patches - patches.mean(dim=(1, 2), keepdim=True)
    count = patches.shape[1] * patches.shape[2]
    deviation = (centred.square().sum(dim=(1, 2), keepdim=True) / (count - 1)).sqrt()
    return centred / (deviation + CONTRAST_FLOOR)


def unit_length(vectors: Tensor) -> Tensor:
    return vectors / (vectors.square().sum(dim=1, keepdim=True) + 1e-10).sqrt()
