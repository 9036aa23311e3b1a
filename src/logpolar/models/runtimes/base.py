"""Describers: image and keypoints in, descriptors out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

import numpy as np

from logpolar.distributed import ahead
from logpolar.errors import ModelError
from logpolar.keypoints import Keypoints
from logpolar.models.files import Model
from logpolar.sampling import ImagePyramid
from logpolar.sampling.patterns import Pattern
from logpolar.settings import DESCRIPTOR_SIZE
from logpolar.types import FloatArray

CHECK_COUNT = 8
"""Patches that a variant is checked with when it is opened."""

_CHECK_TOLERANCE = 0.02
"""Largest distance from the descriptors stored in a variant's file."""


class Describer(ABC):
    """Describes keypoints of an image. Every runtime of a model and every baseline is one."""

    @abstractmethod
    def describe(self, gray: FloatArray, keypoints: Keypoints) -> FloatArray:
        """Descriptors (N, D) of keypoints of a gray image in [0, 1], in their order; N = 0 gives (0, D)."""


class PatchDescriber(Describer):
    """Describes patches, in chunks of a fixed size; ``sampling`` cuts them around keypoints."""

    chunk: int
    sampling: Pattern

    def describe(self, gray: FloatArray, keypoints: Keypoints) -> FloatArray:
        """Descriptors (N, 128) of keypoints. Patches are cut in another thread while the network runs."""
        keypoints.check()  # before they are reordered: errors give the caller's index
        order = keypoints.in_bands()
        found = self._describe(ahead(ImagePyramid(gray).batches(keypoints[order], self.sampling)))
        descriptors = np.empty_like(found)
        descriptors[order] = found
        return descriptors

    def describe_patches(self, patches: FloatArray) -> FloatArray:
        """Descriptors (N, 128) of patches (N, rows, columns), each independent of the rest of the batch."""
        return self._describe([np.ascontiguousarray(patches, np.float32)])

    def _describe(self, batches: Iterable[FloatArray]) -> FloatArray:
        chunks = (batch[start : start + self.chunk] for batch in batches for start in range(0, len(batch), self.chunk))
        found = list(self._run(chunks))
        return np.concatenate(found) if found else np.zeros((0, DESCRIPTOR_SIZE), np.float32)

    @abstractmethod
    def _run(self, chunks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        """Descriptors of chunks, each of at most ``chunk`` patches."""

    def _filled(self, patches: FloatArray) -> FloatArray:
        """A chunk padded to its full size, for runtimes that need a fixed shape."""
        padding = ((0, self.chunk - len(patches)), (0, 0), (0, 0))
        return np.asarray(np.pad(patches, padding), np.float32)


def check_patches(rows: int, columns: int) -> FloatArray:
    """Patches (8, rows, columns) of waves and edges, the same on every machine, to check variants with."""
    y, x = np.meshgrid(np.arange(rows) / rows, np.arange(columns) / columns, indexing="ij")
    number = np.arange(CHECK_COUNT)[:, None, None]
    waves = np.sin((2 + number) * np.pi * (x + 2 * y) + number) + np.sin(3 * np.pi * (number * x - y))
    edges = np.sign(np.sin((1 + number) * np.pi * y + 5 * x))
    return np.asarray(0.5 + 0.1 * waves + 0.15 * (number % 2) * edges, np.float32)


def check_variant(model: Model, describer: PatchDescriber) -> None:
    """Raise ``ModelError`` if a variant's descriptors differ from those in its file: its figures would not hold.

    Sums overflow on some processors without 8 bit dot products, for example.
    """
    if model.check is None or model.card.variant is None:
        return
    found = describer.describe_patches(check_patches(model.card.network.rows, model.card.network.columns))
    if found.shape != model.check.shape:
        raise ModelError(f"model '{model.name}': damaged model file: {len(model.check)} descriptors to check it by")
    distance = float(np.linalg.norm(found - model.check, axis=1).max())
    if not distance <= _CHECK_TOLERANCE:
        raise ModelError(
            f"model '{model.name}': this processor does not compute {model.card.precision} as its file says, or the "
            f"file is damaged (off by {distance:.2g}); use '{model.card.variant.parent}' instead"
        )
