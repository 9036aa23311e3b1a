"""Feature files written by hloc.

hloc's extractors store ``keypoints`` (N, 2), ``descriptors`` (D, N), ``scores`` and ``image_size``, by default in
float16, which moves keypoints by up to half a pixel at x = 1500. Only its DoG adds ``scales`` (sigma, half our size)
and ``oris`` (degrees, our angle); without them features can be matched but not redescribed. hloc can read our own
files, see ``logpolar.features.files``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.errors import StorageError
from logpolar.features.files import HLOC_SCHEMA, FeatureFile
from logpolar.keypoints import Keypoints
from logpolar.storage.arrays import find, has, opened


class HlocFeatureFile(FeatureFile):
    """Reads a feature file of hloc, without our header.

    A missing scale or orientation is filled in as by ``Keypoints.from_points``; see ``missing``.
    """

    schema = HLOC_SCHEMA

    def _read_settings(self) -> dict[str, Any]:
        self._names = super().names()
        if not self._names:
            raise StorageError(f"{self.path}: not a feature file of logpolar or hloc: it holds no keypoints")
        return {"written_by": "hloc"}

    def names(self) -> list[str]:
        return list(self._names)

    @property
    def missing(self) -> list[str]:
        """What the first image's keypoints lack: "size", "angle", both or nothing."""
        with self._damage(name := self._names[0]):
            group = find(self._file, name)
            return [ours for theirs, ours in (("scales", "size"), ("oris", "angle")) if not has(group, theirs)]

    def _keypoints(self, found: Mapping[str, NDArray[Any]]) -> Keypoints:
        scale = 2 * np.asarray(found["scales"], np.float32) if "scales" in found else None
        return Keypoints.from_points(found["keypoints"], scale, found.get("oris"), found.get("scores"))


def is_foreign(path: str | Path) -> bool:
    """Whether an HDF5 file lacks our header."""
    with opened(Path(path)) as file:
        return "format" not in file.attrs
