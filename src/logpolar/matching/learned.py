"""A learned matcher: attention between the keypoints of two images decides which of them match.

Runs on onnxruntime, in blocks of rows: memory grows with the number of keypoints, not with its square; on a GPU in
torch, float16, several pairs at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from logpolar.errors import LogpolarError, ModelError, in_one_line
from logpolar.features.features import Features
from logpolar.matching.nearest import Matches
from logpolar.matching.options import NEAREST, MatchingOptions
from logpolar.models import load_model, shipped_models
from logpolar.models.matcher_cards import keypoint_table
from logpolar.models.matcher_files import PIECES, MatcherModel, load_matcher
from logpolar.models.runtimes.onnxruntime_cpu import open_session
from logpolar.types import FloatArray

if TYPE_CHECKING:
    from logpolar.matching.torch_learned import TorchMatcher

Inputs = tuple[FloatArray, FloatArray]
"""Descriptors (N, D) and ``keypoint_table`` (N, 6) of an image."""

Assigned = tuple[NDArray[np.intp], NDArray[np.intp], FloatArray]
"""Rows of matches in both images, and their probabilities."""

Options = TypeVar("Options", bound=MatchingOptions)

DEFAULT_THRESHOLD = 0.5
"""Least confidence of a match, chosen on validation scenes."""

MAX_KEYPOINTS = 8192
"""Of more keypoints in an image only the strongest are matched."""

_BLOCK_BYTES = 64 * 2**20
"""Memory for the weights of attention, and for a block of the matrix of logits."""

_EXIT_FRACTION = 0.98
"""Layers end when this fraction of the keypoints is confident of its match; at .95 pairs with few matches lose some."""

_EXIT_CONFIDENCE = 0.9


@dataclass(frozen=True, eq=False)
class _Image:
    """States of one image's keypoints and what stays the same for all layers."""

    states: FloatArray
    descriptors: FloatArray
    own: tuple[FloatArray, FloatArray]
    across: tuple[FloatArray, FloatArray]


_DIMENSIONS = {"encode": 3, "within": 2, "across": 1}
"""Of the last output of a piece."""

_Rows = dict[str, FloatArray]
"""Inputs of a piece, by name; a row for every keypoint of an image."""

_KEYS = {"states": "keys"}
"""Names of inputs of the image that is attended to; of all others, it is ``key_`` and the name."""


def _rows(states: FloatArray, turn: tuple[FloatArray, FloatArray]) -> _Rows:
    return {"states": states, "cosine": turn[0], "sine": turn[1]}


class LearnedMatcher:
    """Matches features of the descriptor model that the matcher was trained for.

    >>> matches = LearnedMatcher().match(first, second)      # doctest: +SKIP

    ``matcher``: ``"learned"``, the shipped one, or a file. ``threshold``: least confidence of a match. ``early_exit``
    leaves out layers when nothing will change any more. ``threads``: 0 for all cores. ``device``: ``"cpu"``, or
    ``"cuda"`` or ``"cuda:N"`` (extra ``torch``), which runs all layers in float16.
    """

    def __init__(
        self,
        matcher: MatcherModel | str | Path = "learned",
        *,
        threshold: float = DEFAULT_THRESHOLD,
        early_exit: bool = True,
        threads: int = 0,
        device: str = "cpu",
    ) -> None:
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold must lie between 0 and 1, not {threshold}")
        self.model = matcher if isinstance(matcher, MatcherModel) else load_matcher(matcher)
        self.threshold, self.early_exit = threshold, early_exit
        self.layers_run = 0  # of the last pair
        self._torch: TorchMatcher | None = None
        if device != "cpu":
            from logpolar.matching.torch_learned import TorchMatcher

            self._torch = TorchMatcher(self.model, device)
            return
        self.model.check_graphs()
        what = f"matcher '{self.model.card.name}'"  # weights are inputs: one graph runs every layer
        self._sessions = {piece: open_session(what, self.model.graphs[piece], {}, threads) for piece in PIECES}

    def fits(self, digest: str) -> bool:
        """Whether features are of the descriptor model that the card names, or of a shipped variant of it."""
        return self.model.card.descriptor_hash in ("", digest, _parents().get(digest))

    def check_descriptors(self, name: str, digest: str) -> None:
        """Raise ``ModelError`` unless they do."""
        card = self.model.card
        if not self.fits(digest):
            raise ModelError(
                f"matcher '{card.name}' is for descriptors of '{card.descriptor}', not of this '{name}'; "
                "extract with that model, or match by nearest neighbours"
            )

    def match(self, first: Features, second: Features) -> Matches:
        """Matches in the order of the first image's keypoints; ``confidence`` is their probability.

        Of images with more than ``MAX_KEYPOINTS`` keypoints the strongest are used. No keypoints, no matches.
        """
        return self.match_batch([(first, second)])[0]

    def match_batch(self, pairs: Sequence[tuple[Features, Features]]) -> list[Matches]:
        """Matches of pairs of images, see ``match``; on a GPU they are computed together."""
        for features in (features for pair in pairs for features in pair):
            self._check(features)
        rows = [(_strongest(first), _strongest(second)) for first, second in pairs]
        full = [n for n, (here, there) in enumerate(rows) if len(here) and len(there)]
        given = [tuple(self._inputs(*each) for each in zip(pairs[n], rows[n], strict=True)) for n in full]
        assigned = self._torch.assign(given) if self._torch else [self._assign(*images) for images in given]
        empty = np.zeros(0, np.float32)
        matches = [Matches(np.zeros((0, 2), np.int32), empty, empty) for _ in pairs]
        for n, (here, there, confidence) in zip(full, assigned, strict=True):
            keep = confidence >= self.threshold
            indices = np.stack([rows[n][0][here[keep]], rows[n][1][there[keep]]], axis=1).astype(np.int32)
            ends = pairs[n][0].descriptors[indices[:, 0]], pairs[n][1].descriptors[indices[:, 1]]
            distances = np.linalg.norm(ends[0] - ends[1], axis=1).astype(np.float32)
            matches[n] = Matches(indices, distances, confidence[keep])
        return matches

    def _check(self, features: Features) -> None:
        width = self.model.card.network.inputs
        if features.descriptors.ndim != 2 or features.descriptors.shape[1] != width:
            raise ModelError(
                f"matcher '{self.model.card.name}' takes descriptors of {width} numbers, "
                f"not of shape {features.descriptors.shape}"
            )
        features.keypoints.check()
        if not np.isfinite(features.descriptors).all():
            raise LogpolarError("some descriptors are not finite; extract the features again")

    def _inputs(self, features: Features, rows: NDArray[np.intp]) -> Inputs:
        table = keypoint_table(features.keypoints[rows], features.image_size)
        return np.asarray(features.descriptors[rows], np.float32), table

    def _assign(self, first: Inputs, second: Inputs) -> Assigned:
        found = self._results([self._encode(*first), self._encode(*second)])
        return assign(*found[0][:2], *found[1][:2])

    def _encode(self, descriptors: FloatArray, table: FloatArray) -> _Image:
        states, *turns = self._run("encode", {"descriptors": descriptors, "table": table}, 0)
        return _Image(states, descriptors, (turns[0], turns[1]), (turns[2], turns[3]))

    def _results(self, images: list[_Image]) -> list[tuple[FloatArray, FloatArray, FloatArray]]:
        """Vectors, matchability and confidence of both images, after the last layer that is needed."""
        layers = self.model.card.network.layers
        for layer in range(layers):
            states = [
                self._attend("within", layer, _rows(image.states, image.own), _rows(image.states, image.own))[0]
                for image in images
            ]
            between = [
                _rows(own, image.across) | {"descriptors": image.descriptors}
                for own, image in zip(states, images, strict=True)
            ]
            found = [self._attend("across", layer, between[n], between[1 - n]) for n in (0, 1)]
            images = [replace(image, states=new[0]) for new, image in zip(found, images, strict=True)]
            self.layers_run = layer + 1
            sure = np.concatenate([new[3] for new in found]) > np.log(_EXIT_CONFIDENCE / (1 - _EXIT_CONFIDENCE))
            if self.early_exit and sure.mean() >= _EXIT_FRACTION:
                break
        return [(vectors, matchability, confidence) for _, vectors, matchability, confidence in found]

    def _attend(self, piece: str, layer: int, own: _Rows, others: _Rows) -> list[FloatArray]:
        count = max(_BLOCK_BYTES // (4 * self.model.card.network.heads * len(others["states"])), 1)
        given = {_KEYS.get(name, f"key_{name}"): values for name, values in others.items()}
        blocks = []
        for start in range(0, len(own["states"]), count):
            block = {name: values[start : start + count] for name, values in own.items()}
            blocks.append(self._run(piece, given | block, layer))
        return [np.concatenate(each) for each in zip(*blocks, strict=True)]

    def _run(self, piece: str, given: dict[str, FloatArray], layer: int) -> list[FloatArray]:
        session, weights = self._sessions[piece], self.model.piece_weights(piece, layer)
        rows = len(given["descriptors" if piece == "encode" else "states"])
        try:
            found: list[FloatArray] = session.run(None, {**given, **weights})
            if any(len(values) != rows for values in found) or found[-1].ndim != _DIMENSIONS[piece]:
                raise ValueError(f"results of shape {', '.join(str(values.shape) for values in found)}")
        except Exception as error:  # onnxruntime's errors share no base class
            name = self.model.card.name
            raise ModelError(f"matcher '{name}': damaged weights or graph '{piece}' ({in_one_line(error)})") from error
        return found


@lru_cache(maxsize=2)
def open_matcher(name: str, device: str = "cpu") -> LearnedMatcher:
    """A matcher by its name or file; opened once in a process."""
    return LearnedMatcher(name, device=device)


def check_features(options: MatchingOptions, settings: Mapping[str, Any]) -> None:
    """Raise ``ModelError`` if a learned matcher is for other descriptors than the settings of features name."""
    if options.learned:
        open_matcher(options.matcher).check_descriptors(*_named(settings))


def matching_of_looks(options: Options, looks: Sequence[Mapping[str, Any]]) -> list[Options]:
    """The options for the features of each look: nearest neighbours where a learned matcher is for other descriptors.

    Raises ``ModelError`` if it is for none of them.
    """
    if not options.learned:
        return [options for _ in looks]
    fits = [open_matcher(options.matcher).fits(_named(settings)[1]) for settings in looks]
    if not any(fits):
        check_features(options, looks[-1])
    return [options if each else replace(options, matcher=NEAREST) for each in fits]


def _named(settings: Mapping[str, Any]) -> tuple[str, str]:
    """Name and hash of the descriptor model in the settings of features."""
    method = settings.get("descriptor") or {}  # of an evaluation
    method = method.get("descriptor", method)  # of a pair with a detector
    name, digest = settings.get("model") or method.get("kind", "unknown"), settings.get("model_hash")
    return str(name), str(digest or method.get("sha256", ""))


@lru_cache(maxsize=1)
def _parents() -> dict[str, str]:
    """Hashes of shipped variants, such as int8 ones, and of the models that they were made from."""
    models = map(load_model, shipped_models())
    return {model.digest: model.card.variant.parent_hash for model in models if model.card.variant}


def assign(first: FloatArray, first_logits: FloatArray, second: FloatArray, second_logits: FloatArray) -> Assigned:
    """Rows of both images that are each other's most probable match, and the probability.

    Convention: P(i, j) = softmax of row i at j, times softmax of column j at i, of the products of vectors (N, width)
    and (M, width), times the sigmoids of both matchability logits.
    """
    rows = max(_BLOCK_BYTES // (4 * len(second)), 1)
    parts = [slice(start, start + rows) for start in range(0, len(first), rows)]
    columns = np.full(len(second), -np.inf, np.float32)
    by_row = np.empty(len(first), np.float32)
    for part in parts:
        block = first[part] @ second.T
        by_row[part] = _log_sum(block, 1)
        columns = np.logaddexp(columns, _log_sum(block, 0))
    by_row = _log_sigmoid(first_logits) - by_row
    by_column = _log_sigmoid(second_logits) - columns
    best, index = np.empty(len(first), np.float32), np.empty(len(first), np.intp)
    back = np.full(len(second), -np.inf, np.float32)
    for part in parts:
        block = 2 * (first[part] @ second.T) + by_row[part, None] + by_column
        index[part] = block.argmax(axis=1)
        best[part] = block[np.arange(len(block)), index[part]]
        np.maximum(back, block.max(axis=0), out=back)
    return mutual(index, best, back)


def mutual(index: NDArray[np.intp], best: FloatArray, back: FloatArray) -> Assigned:
    """Rows whose best column ``index`` (N,), of log probability ``best`` (N,), has no better row (``back``, (M,))."""
    here = np.flatnonzero(best >= back[index])
    _, firsts = np.unique(index[here], return_index=True)  # of identical keypoints the first row
    here = here[np.sort(firsts)]
    return here, index[here], np.exp(np.minimum(best[here], 0))


def _log_sum(block: FloatArray, axis: int) -> FloatArray:
    most = block.max(axis=axis, keepdims=True)
    return np.asarray(np.log(np.exp(block - most).sum(axis=axis)) + most.squeeze(axis), np.float32)


def _log_sigmoid(logits: FloatArray) -> FloatArray:
    return np.asarray(-np.logaddexp(0, -logits), np.float32)


def _strongest(features: Features) -> NDArray[np.intp]:
    """Rows of the strongest keypoints, in their order."""
    order = np.argsort(-features.keypoints.response, kind="stable")[:MAX_KEYPOINTS]
    return np.sort(order)
