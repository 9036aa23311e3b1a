"""The descriptor network on an NVIDIA GPU in half precision, with convolutions in Triton.

Libraries have no convolution with circular rows: they copy every layer's input into a padded one. These kernels wrap
the row index instead, and apply bias and ReLU before writing.

Layouts: values (N, rows, columns, channels), weights (3, 3, channels in, channels out), both float16, sums float32.
Batch normalisation is folded into weights and biases. Channels are padded with zeros to powers of two, at least 16, as
Triton's blocks need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from logpolar.models.network import CONTRAST_FLOOR, DescriptorNetwork, unit_length

_TAPS = tl.constexpr(16)  # of the first layer's 3 x 3 window, padded to the least that matrix units take


@triton.jit  # type: ignore[untyped-decorator]
def _first_layer(
    patches: tl.tensor,
    weights: tl.tensor,
    biases: tl.tensor,
    output: tl.tensor,
    floor: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    padded: tl.constexpr,
    stride: tl.constexpr,
    circular: tl.constexpr,
    channels: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Contrast normalisation of a patch and convolution of its one channel, for ``block`` output pixels."""
    patch = patches + tl.program_id(0) * height * width
    place = tl.arange(0, padded)
    within = place < height * width
    origin = tl.load(patch)
    values = tl.where(within, tl.load(patch + place, mask=within, other=0.0) - origin, 0.0)
    mean = tl.sum(values) / (height * width)
    centred = tl.where(within, values - mean, 0.0)
    contrast = tl.sqrt(tl.sum(centred * centred) / (height * width - 1)) + floor

    columns: tl.constexpr = (width - 1) // stride + 1
    pixels: tl.constexpr = ((height - 1) // stride + 1) * columns
    pixel = tl.program_id(1) * block + tl.arange(0, block)
    tap = tl.arange(0, _TAPS)
    row = (pixel // columns * stride)[:, None] + (tap // 3 - 1)[None, :]
    column = (pixel % columns * stride)[:, None] + (tap % 3 - 1)[None, :]
    seen = (tap < 9)[None, :] & (pixel < pixels)[:, None] & (column >= 0) & (column < width)
    if circular:
        row = (row + height) % height
    else:
        seen = seen & (row >= 0) & (row < height)
    window = tl.load(patch + row * width + column, mask=seen, other=0.0)
    window = tl.where(seen, (window - origin - mean) / contrast, 0.0).to(tl.float16)
    channel = tl.arange(0, channels)
    sums = tl.dot(window, tl.load(weights + tap[:, None] * channels + channel[None, :]))
    sums = tl.maximum(sums + tl.load(biases + channel)[None, :], 0.0)
    target = output + (tl.program_id(0) * pixels + pixel)[:, None] * channels + channel[None, :]
    tl.store(target, sums.to(tl.float16), mask=(pixel < pixels)[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _layer(
    values: tl.tensor,
    weights: tl.tensor,
    biases: tl.tensor,
    output: tl.tensor,
    pixels: tl.tensor,
    height: tl.constexpr,
    width: tl.constexpr,
    stride: tl.constexpr,
    circular: tl.constexpr,
    inputs: tl.constexpr,
    outputs: tl.constexpr,
    block: tl.constexpr,
    out_block: tl.constexpr,
) -> None:
    """``block`` output pixels of the batch and ``out_block`` channels: nine matrix products."""
    rows: tl.constexpr = (height - 1) // stride + 1
    columns: tl.constexpr = (width - 1) // stride + 1
    pixel = tl.program_id(0) * block + tl.arange(0, block)
    across = pixel % columns * stride
    down = pixel // columns % rows * stride
    patch = pixel // (rows * columns)
    source = tl.arange(0, inputs)
    target = tl.program_id(1) * out_block + tl.arange(0, out_block)
    sums = tl.zeros((block, out_block), tl.float32)
    for i in tl.static_range(3):
        row = down + (i - 1)
        seen_row = pixel < pixels
        if circular:
            row = (row + height) % height
        else:
            seen_row = seen_row & (row >= 0) & (row < height)
        for j in tl.static_range(3):
            column = across + (j - 1)
            seen = seen_row & (column >= 0) & (column < width)
            start = ((patch * height + row) * width + column) * inputs
            window = tl.load(values + start[:, None] + source[None, :], mask=seen[:, None], other=0.0)
            kernel = tl.load(weights + ((i * 3 + j) * inputs + source)[:, None] * outputs + target[None, :])
            sums = tl.dot(window, kernel, sums)
    sums = tl.maximum(sums + tl.load(biases + target)[None, :], 0.0)
    place = output + pixel[:, None] * outputs + target[None, :]
    tl.store(place, sums.to(tl.float16), mask=(pixel < pixels)[:, None])


@dataclass(frozen=True, eq=False)
class _Layer:
    weights: Tensor
    biases: Tensor
    stride: int
    circular: bool


class TritonNetwork:
    """A ``DescriptorNetwork`` on a CUDA device, in float16: (N <= MAX_BATCH, rows, columns) -> (N, 128) float32."""

    MAX_BATCH = 16384  # offsets into the largest layer fit 31 bits

    def __init__(self, network: DescriptorNetwork) -> None:
        self._layers = [
            _Layer(*_fold(block.convolution, block.norm, number > 0), block.convolution.stride[0], block.circular)
            for number, block in enumerate(list[Any](network.blocks))
        ]
        first = self._layers[0].weights.reshape(9, -1)
        padding = first.new_zeros(_TAPS.value - 9, first.shape[1])
        self._first = torch.cat([first, padding]).contiguous()
        head, self._head_bias = _fold(network.head, network.head_norm)
        self._head = head.flatten(0, 2)

    def __call__(self, patches: Tensor) -> Tensor:
        if len(patches) > self.MAX_BATCH:
            raise ValueError(f"{len(patches)} patches are more than {self.MAX_BATCH}")
        values = self._run_first(patches.float().contiguous())
        for layer in self._layers[1:]:
            values = _run(layer, values)
        sums = torch.mm(values.flatten(1), self._head)
        return unit_length(sums.float() + self._head_bias)

    def _run_first(self, patches: Tensor) -> Tensor:
        layer, (count, height, width) = self._layers[0], patches.shape
        rows, columns, channels = *_reduced(height, width, layer.stride), len(layer.biases)
        output = torch.empty(count, rows, columns, channels, dtype=torch.float16, device=patches.device)
        tensors = patches, self._first, layer.biases, output
        padded, block = triton.next_power_of_2(height * width), 128
        _first_layer[(count, triton.cdiv(rows * columns, block))](
            *tensors, CONTRAST_FLOOR, height, width, padded, layer.stride, layer.circular, channels, block
        )
        return output


def _fold(convolution: Any, norm: Any, pad_inputs: bool = True) -> tuple[Tensor, Tensor]:
    """Convolution with folded batch normalisation: weights (rows, columns, in, out) and biases, channels padded."""
    scale = norm.running_var.add(norm.eps).rsqrt()
    weights = (convolution.weight * scale[:, None, None, None]).permute(2, 3, 1, 0)
    biases = -norm.running_mean * scale
    inputs, outputs = weights.shape[2:]
    more = _channels(outputs) - outputs
    weights = functional.pad(weights, (0, more, 0, _channels(inputs) - inputs if pad_inputs else 0))
    return weights.half().contiguous(), functional.pad(biases, (0, more)).float().contiguous()


def _channels(count: int) -> int:
    """The padded number of channels."""
    return max(int(triton.next_power_of_2(count)), 16)


def _run(layer: _Layer, values: Tensor) -> Tensor:
    count, height, width, inputs = values.shape
    rows, columns, outputs = *_reduced(height, width, layer.stride), len(layer.biases)
    output = torch.empty(count, rows, columns, outputs, dtype=torch.float16, device=values.device)
    tensors = values, layer.weights, layer.biases, output
    pixels, block, out_block, warps = count * rows * columns, 128, min(outputs, 128), 4 if inputs <= 64 else 8
    _layer[(triton.cdiv(pixels, block), outputs // out_block)](
        *tensors,
        pixels,
        height,
        width,
        layer.stride,
        layer.circular,
        inputs,
        outputs,
        block,
        out_block,
        num_warps=warps,
    )
    return output


def _reduced(height: int, width: int, stride: int) -> tuple[int, int]:
    return (height - 1) // stride + 1, (width - 1) // stride + 1
