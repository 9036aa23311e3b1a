"""Nearest neighbours on a torch device, many pairs at a time: what matching uses on a GPU.

Dot products are computed in float16, which is enough to find the few candidates of each row and column; these are
compared in float32. The error of a float16 product of unit vectors is at most ``_ERROR``: 2^-11 for rounding each of
the two, and as much for rounding the product. So the nearest and the second nearest neighbour, in float32, are among
the entries that lie within twice that of the second largest, and the result is that of float32 alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from logpolar.errors import MissingExtraError

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise MissingExtraError("matching on a GPU", "torch") from error

from logpolar.matching.nearest import Neighbours
from logpolar.models.runtimes.torch_device import find_device as find_device
from logpolar.types import FloatArray

_ERROR = 3 * 2.0**-11
_LARGEST = 64.0
"""Product of two vectors' lengths above which float16 is not used: its largest number is 65504."""

_BLOCK_VALUES = 2**28
"""Dot products in memory at a time: 512 MB in float16, with as much again for masks."""

_CANDIDATES = 8
"""Per row and column; descriptors with more equally near neighbours than that are compared in float32 altogether."""

_MEMORY_FRACTION = 0.5
"""Of a GPU's free memory, for descriptors that are kept there."""

_CPU_MEMORY = 2**30


@dataclass(frozen=True, eq=False)
class Uploaded:
    """Descriptors (N, D) of an image on a device, in float32 and float16, and the length of the longest."""

    full: Tensor
    half: Tensor
    longest: float

    @classmethod
    def of(cls, descriptors: Any, device: str) -> Uploaded:
        full = torch.as_tensor(descriptors, dtype=torch.float32, device=find_device(device)).contiguous()
        longest = float(full.norm(dim=1).max()) if len(full) else 0.0
        return cls(full, full.half(), longest)

    def __len__(self) -> int:
        return len(self.full)

    @property
    def size(self) -> int:
        """In bytes."""
        return 6 * self.full.numel()


PairOnDevice: TypeAlias = tuple[Uploaded, Uploaded]


class UploadedImages:
    """Descriptors by name of image, uploaded when they are first used and kept while memory lasts."""

    def __init__(self, read: Callable[[str], FloatArray], device: str, memory: int | None = None) -> None:
        self._read, self._device, self._kept = read, device, OrderedDict[str, Uploaded]()
        self._memory = _free_memory(device) if memory is None else memory
        self.uploads = 0

    def __getitem__(self, name: str) -> Uploaded:
        if name not in self._kept:
            self._kept[name] = Uploaded.of(self._read(name), self._device)
            self.uploads += 1
            while len(self._kept) > 1 and sum(each.size for each in self._kept.values()) > self._memory:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        return self._kept[name]


def _free_memory(device: str) -> int:
    place = find_device(device)
    return int(_MEMORY_FRACTION * torch.cuda.mem_get_info(place)[0]) if place.type == "cuda" else _CPU_MEMORY


def nearest_on_device(first: Any, second: Any, device: str) -> Neighbours:
    """Nearest neighbours among descriptors (N, D) and (M, D), arrays or tensors, neither of them empty."""
    pair = Uploaded.of(first, device), Uploaded.of(second, device)
    return next(nearest_of_pairs([pair]))


def nearest_of_pairs(pairs: Iterable[PairOnDevice]) -> Iterator[Neighbours]:
    """Nearest neighbours of each pair, none of them empty, in batches that fill the device."""
    batch: list[PairOnDevice] = []
    for pair in pairs:
        if batch and not _fits([*batch, pair]):
            yield from _nearest_batch(batch)
            batch = []
        batch.append(pair)
    if batch:
        yield from _nearest_batch(batch)


def _fits(batch: Sequence[PairOnDevice]) -> bool:
    rows, columns = (max(len(pair[side]) for pair in batch) for side in range(2))
    return len(batch) * rows * columns <= _BLOCK_VALUES


def _nearest_batch(batch: Sequence[PairOnDevice]) -> Iterator[Neighbours]:
    length = max(first.longest * second.longest for first, second in batch)
    with torch.inference_mode():
        found = _nearest_half(batch, length) if _fits(batch) and length <= _LARGEST else None
        if found is None:
            yield from (_nearest_full(first.full, second.full) for first, second in batch)
            return
    yield from found


def _nearest_half(batch: Sequence[PairOnDevice], length: float) -> list[Neighbours] | None:
    """By candidates from float16; None if there are too many of them."""
    rows, columns = (max(len(pair[side]) for pair in batch) for side in range(2))
    products = torch.bmm(_padded([first for first, _ in batch]), _padded([second for _, second in batch]).mT)
    for number, (first, second) in enumerate(batch):  # padding is nobody's neighbour
        products[number, len(first) :], products[number, :, len(second) :] = -torch.inf, -torch.inf
    second_best = products.topk(min(2, columns), dim=2).values[:, :, -1]
    margin = 2.5 * _ERROR * max(length, 1.0)  # more than 2: the thresholds are rounded to float16, too
    near = products >= (second_best.float() - margin).half()[:, :, None]
    near |= products >= (products.amax(dim=1).float() - margin).half()[:, None, :]
    near &= products > -torch.inf
    pair, row, column = near.nonzero(as_tuple=True)
    if len(pair) > _CANDIDATES * len(batch) * (rows + columns):
        return None
    del products, near
    dot = _dot_products(batch, pair, row, column)
    count, place, back = len(batch), pair * rows + row, pair * columns + column
    nothing = dot.new_full((count * max(rows, columns),), -torch.inf)
    best = nothing[: count * rows].scatter_reduce(0, place, dot, "amax")
    back_best = nothing[: count * columns].scatter_reduce(0, back, dot, "amax")
    # The first of equal neighbours.
    where = torch.where(dot == best[place], column, columns)
    index = where.new_full((count * rows,), columns).scatter_reduce(0, place, where, "amin")
    others = torch.where(column == index[place], -torch.inf, dot)
    runner_up = nothing[: count * rows].scatter_reduce(0, place, others, "amax")
    table = [each.view(count, -1).cpu().numpy() for each in (index, best, runner_up, back_best)]
    return [
        Neighbours(
            *(each[number, : len(pair)] for each, pair in zip(table, (first, first, first, second), strict=True))
        )
        for number, (first, second) in enumerate(batch)
    ]


def _padded(sets: Sequence[Uploaded]) -> Tensor:
    """(B, N, D) in float16, N the largest number of descriptors."""
    if len(sets) == 1:
        return sets[0].half[None]
    return torch.nn.utils.rnn.pad_sequence([each.half for each in sets], batch_first=True)


def _dot_products(batch: Sequence[PairOnDevice], pair: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """In float32, of candidates (K,), which are sorted by pair."""
    counts = torch.bincount(pair, minlength=len(batch)).tolist()
    parts = zip(batch, torch.split(row, counts), torch.split(column, counts), strict=True)
    return torch.cat([(first.full[i] * second.full[j]).sum(dim=1) for (first, second), i, j in parts])


def _nearest_full(first: Tensor, second: Tensor) -> Neighbours:
    """In float32, in blocks of bounded memory."""
    rows = max(_BLOCK_VALUES // 4 // len(second), 1)
    back_best = torch.full((len(second),), -torch.inf, device=second.device)
    index, best, runner_up = [], [], []
    for start in range(0, len(first), rows):
        block = first[start : start + rows] @ second.T
        torch.maximum(back_best, block.amax(dim=0), out=back_best)
        largest = block.amax(dim=1)
        # torch.max may return any of equal values: the first is wanted.
        where = (block == largest[:, None]).to(torch.uint8).argmax(dim=1)
        block.scatter_(1, where[:, None], -torch.inf)
        index.append(where)
        best.append(largest)
        runner_up.append(block.amax(dim=1))
    return Neighbours(*(each.cpu().numpy() for each in (*map(torch.cat, (index, best, runner_up)), back_best)))
