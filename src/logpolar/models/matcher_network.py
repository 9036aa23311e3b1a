"""The network of learned matchers: states of keypoints that attend to their own image and to the other (needs torch).

Convention of the rotary position: channels c and c + w / 2 of a head of width w are a point that is turned by a phase,
linear in what is known of the keypoint, so that a product of query and key depends on differences alone: of x, y,
ln size and angle within an image, of ln size and angle between the images. Multiples of angles are whole numbers.

Three kinds of attention: within an image, across to the other, and *lookup*, whose weights come from the descriptors
alone. Looked up are the keypoints of the other image that look alike, so that a state learns early where its match may
be; those of its neighbours then tell whether that agrees. With the descriptors also in the logits of the matches, a
network starts as nearest neighbours, and learns what to add.

The last channel of each head is the mask: 0 for keypoints, far below 0 for the keys of padding. The kernels of
``scaled_dot_product_attention`` that need no memory for weights take no mask of their own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from logpolar.models.matcher_cards import POSITION_OCTAVES, TABLE_COLUMNS, MatcherOptions

_MASKED = -100.0
"""Logit of the keys of padding. Finite: an image without any keypoints must not make NaN of the other."""

_NEVER = -1e4
"""Logit of matches with padding."""

_SHARPNESS = 20.0
"""First factor of descriptors' products in logits: neighbours at a cosine of .8 outweigh a thousand others."""

_MASK_CHANNELS = 8
"""Channels that hold the mask of a lookup; as many as the kernels want the width to be a multiple of."""

Turn = tuple[Tensor, Tensor]
"""Cosine and sine (B, heads, N, head width / 2) of the phases."""


class MatcherNetwork(nn.Module):
    """States of both images after each layer; ``Layer.head`` makes matches of them.

    Images come stacked: pair p is rows p and p + B of 2 B rows.
    """

    def __init__(self, options: MatcherOptions, dropout: float = 0.0, blind: float = 0.0) -> None:
        """``dropout``: in training, of what each layer adds to the states.

        ``blind``: in training, fraction of pairs whose first states hold no descriptors, only where keypoints are: what
        is learned of geometry and of likeness holds for any content.
        """
        super().__init__()
        self.options, self.blind = options, blind
        self.encoder = Encoder(options)
        self.layers = nn.ModuleList(Layer(options, dropout) for _ in range(options.layers))

    def each_layer(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def forward(self, descriptors: Tensor, table: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        """States (2 B, N, width) after each layer, from descriptors (2 B, N, D) and ``keypoint_table`` (2 B, N, 6).

        ``mask`` (2 B, N): False for padding, whose states mean nothing.
        """
        states, own, across = self.encoder(self._seen(descriptors), table)
        others = swap(across[0]), swap(across[1])
        other_mask = None if mask is None else swap(mask)
        looks = descriptors, swap(descriptors)
        found = []
        for layer in self.each_layer():
            states = layer.within(states, own, states, own, mask)
            states = layer.between(states, across, swap(states), others, looks, other_mask)
            found.append(states)
        return found

    def _seen(self, descriptors: Tensor) -> Tensor:
        if not (self.training and self.blind):
            return descriptors
        seen = torch.rand(len(descriptors) // 2, 1, 1, device=descriptors.device) >= self.blind
        return descriptors * torch.cat([seen, seen])


class Encoder(nn.Module):
    """Descriptors and keypoints to the first states, and the phases for both kinds of attention."""

    multiples: Tensor  # of the angles in the phases

    def __init__(self, options: MatcherOptions) -> None:
        super().__init__()
        self.heads = options.heads
        self.descriptor = nn.Linear(options.inputs, options.width)
        self.shape = nn.Linear(5, options.width)
        self.position = nn.Linear(4 * POSITION_OCTAVES, options.width)
        nn.init.orthogonal_(self.descriptor.weight, gain=math.sqrt(options.width))  # angles between descriptors stay
        nn.init.zeros_(self.descriptor.bias)
        for linear in (self.shape, self.position):
            nn.init.normal_(linear.weight, std=0.1)
            nn.init.zeros_(linear.bias)
        half = options.head_width // 2 - 1  # the last pair holds the mask and is not turned
        frequency = torch.logspace(0, 1.7, half).repeat(options.heads)  # 1 to 50 radians per half of the image
        self.place = nn.Parameter(torch.randn(2, options.heads * half) * frequency)
        self.size = nn.Parameter(torch.randn(2, options.heads * half))
        multiples = torch.arange(options.heads * half) % 4  # 0, 1, 2, 0: see the convention
        self.register_buffer("multiples", torch.where(multiples == 3, 0, multiples).float(), persistent=False)

    def forward(self, descriptors: Tensor, table: Tensor) -> tuple[Tensor, Turn, Turn]:
        x, y, size, angle, known = torch.split(table.float(), [1, 1, 1, 1, TABLE_COLUMNS - 4], dim=-1)
        shape = torch.cat([size, angle.cos() * known[..., 1:], angle.sin() * known[..., 1:], known], dim=-1)
        # Sums of states stay in float32, whatever precision the products have; so do phases, which are large numbers.
        states = self.descriptor(descriptors.to(self.descriptor.weight.dtype)).float() + self.shape(shape)
        states = states + self.position(position_waves(table[..., :2].float()))
        phase = angle * self.multiples
        own = x * self.place[0] + y * self.place[1] + size * self.size[0] + phase
        return states, self._turn(own), self._turn(size * self.size[1] + phase)

    def _turn(self, phases: Tensor) -> Turn:
        count = phases.shape[1]
        phases = phases.reshape(len(phases), count, self.heads, -1).transpose(1, 2)
        still = phases.new_zeros((phases.shape[0], self.heads, count, 1))
        phases = torch.cat([phases, still], dim=-1)
        return phases.cos(), phases.sin()


class Attention(nn.Module):
    """Pre-normalised attention with rotary phases, added to the states."""

    def __init__(self, options: MatcherOptions, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.width, self.dropout = options.heads, options.width, dropout
        self.norm = nn.LayerNorm(options.width)
        self.query_key_value = nn.Linear(options.width, 3 * options.width)
        self.out = nn.Linear(options.width, options.width)
        nn.init.normal_(self.out.weight, std=0.5 / math.sqrt(options.width * 2 * options.layers))
        nn.init.zeros_(self.out.bias)

    def forward(self, states: Tensor, turn: Turn, keys: Tensor, key_turn: Turn, mask: Tensor | None = None) -> Tensor:
        """New states (B, N, width) that attended to ``keys`` (B, M, width); ``mask`` (B, M) is of the keys."""
        width = self.width
        weight, bias = self.query_key_value.weight, self.query_key_value.bias
        query = functional.linear(self.norm(states), weight[:width], bias[:width])
        key_value = functional.linear(self.norm(keys), weight[width:], bias[width:])
        key, value = (self._split(each) for each in key_value.chunk(2, dim=-1))
        query = _masked(_turned(self._split(query), turn), math.sqrt(width // self.heads))
        if mask is None:
            key = _masked(_turned(key, key_turn), 0.0)
        else:
            key = _masked(_turned(key, key_turn), torch.where(mask, 0.0, _MASKED)[:, None, :, None])
        found = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return states + functional.dropout(self.out(found), self.dropout, self.training)

    def _split(self, values: Tensor) -> Tensor:
        return values.reshape(*values.shape[:2], self.heads, -1).transpose(1, 2)


class Lookup(nn.Module):
    """States of the other image's keypoints, weighted by the likeness of the descriptors, added to the states."""

    def __init__(self, options: MatcherOptions, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm = nn.LayerNorm(options.width)
        self.value = nn.Linear(options.width, options.inputs)
        self.out = nn.Linear(options.inputs, options.width)
        self.sharpness = nn.Parameter(torch.tensor([_SHARPNESS]))
        nn.init.normal_(self.out.weight, std=0.5 / math.sqrt(options.inputs * 2 * options.layers))
        nn.init.zeros_(self.out.bias)

    def forward(self, states: Tensor, keys: Tensor, looks: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """``looks``: descriptors of the states (B, N, D) and of the keys (B, M, D)."""
        value = self.value(self.norm(keys))
        query, key = (look.to(value.dtype) for look in looks)
        hidden = key.new_zeros(key.shape[:2]) if mask is None else torch.where(mask, 0.0, _MASKED).to(key.dtype)
        query = functional.pad(query * self.sharpness.to(value.dtype), (0, _MASK_CHANNELS), value=1.0)
        key = torch.cat([key, hidden[..., None].expand(-1, -1, _MASK_CHANNELS)], dim=-1)
        value = functional.pad(value, (0, _MASK_CHANNELS))
        found = functional.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None], scale=1.0)
        found = self.out(found[:, 0, :, :-_MASK_CHANNELS])
        return states + functional.dropout(found, self.dropout, self.training)


class Layer(nn.Module):
    """Attention within an image, to the other, and to what looks alike there; then each state by itself."""

    def __init__(self, options: MatcherOptions, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.within = Attention(options, dropout)
        self.across = Attention(options, dropout)
        self.lookup = Lookup(options, dropout)
        self.norm = nn.LayerNorm(options.width)
        self.widen = nn.Linear(options.width, options.expansion * options.width)
        self.narrow = nn.Linear(options.expansion * options.width, options.width)
        nn.init.normal_(self.narrow.weight, std=0.5 / math.sqrt(options.expansion * options.width * 2 * options.layers))
        nn.init.zeros_(self.narrow.bias)
        self.head = Head(options)

    def between(
        self,
        states: Tensor,
        turn: Turn,
        others: Tensor,
        other_turn: Turn,
        looks: tuple[Tensor, Tensor],
        mask: Tensor | None,
    ) -> Tensor:
        states = self.lookup(self.across(states, turn, others, other_turn, mask), others, looks, mask)
        changed = self.narrow(functional.gelu(self.widen(self.norm(states))))
        return states + functional.dropout(changed, self.dropout, self.training)


class Head(nn.Module):
    """What matches are made of: vectors whose products are logits, and logits of matchability and confidence.

    Confidence: whether a keypoint's match will be the same after the last layer; it decides on the early exit.
    """

    def __init__(self, options: MatcherOptions) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(options.width)
        self.project = nn.Linear(options.width, options.width)
        self.sharpness = nn.Parameter(torch.tensor([math.sqrt(_SHARPNESS)]))
        self.matchability = nn.Linear(options.width, 1)
        self.confidence = nn.Linear(options.width, 1)
        nn.init.eye_(self.project.weight)  # starts as the nearest neighbour of the descriptors
        nn.init.zeros_(self.project.bias)
        for linear in (self.matchability, self.confidence):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, states: Tensor, descriptors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Vectors (B, N, width + D), matchability and confidence (B, N), the last without gradient to the states."""
        values = self.norm(states)
        learned = self.project(values) / values.shape[-1] ** 0.25
        vectors = torch.cat([learned, (descriptors * self.sharpness).to(learned.dtype)], dim=-1)
        return vectors, self.matchability(values)[..., 0], self.confidence(values.detach())[..., 0]


def log_assignment(vectors: Tensor, matchability: Tensor, mask: Tensor) -> Tensor:
    """Log P (B, N, N) of stacked images (2 B, N, width), by the convention of ``matching.learned.assign``.

    About ``_NEVER`` for padding.
    """
    first, second = vectors.chunk(2)
    mask_first, mask_second = mask.chunk(2)
    both = mask_first[:, :, None] & mask_second[:, None, :]
    logits = torch.where(both, (first @ second.transpose(1, 2)).float(), _NEVER)
    chances = functional.logsigmoid(matchability.float())
    here, there = chances.chunk(2)
    found = 2 * logits - logits.logsumexp(2, keepdim=True) - logits.logsumexp(1, keepdim=True)
    return torch.where(both, found + here[:, :, None] + there[:, None, :], _NEVER)


def position_waves(xy: Tensor) -> Tensor:
    """Positions (..., 2) as cosines, then sines, of x and y times pi / 2, pi, 2 pi, ... (..., 4 octaves)."""
    octaves = 2.0 ** torch.arange(POSITION_OCTAVES, device=xy.device) * (math.pi / 2)
    phases = (xy[..., None] * octaves).flatten(-2)
    return torch.cat([phases.cos(), phases.sin()], dim=-1)


def swap(values: Tensor) -> Tensor:
    """The other image's row for each row of a stacked batch."""
    return torch.cat(values.chunk(2)[::-1])


def _turned(values: Tensor, turn: Turn) -> Tensor:
    cosine, sine = (each.to(values.dtype) for each in turn)
    x, y = values.chunk(2, dim=-1)
    return torch.cat([x * cosine - y * sine, x * sine + y * cosine], dim=-1)


def _masked(values: Tensor, last: float | Tensor) -> Tensor:
    """With the last channel replaced."""
    filling = values.new_zeros((*values.shape[:-1], 1)) + last
    return torch.cat([values[..., :-1], filling.to(values.dtype)], dim=-1)
