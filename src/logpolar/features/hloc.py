"""Feature files written by hloc.

hloc's extractors store ``keypoints`` (N, 2), ``descriptors`` (D, N), ``scores`` and ``image_size``, by default in
float16, which moves keypoints by up to half a pixel at x = 1500. Only its DoG adds ``scales`` (sigma, half our size)
and ``oris`` (degrees, our angle); without them features can be matched but not redescribed. hloc can read our own
files, see ``logpolar.features.files``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from logpolar.errors import StorageError
from logpolar.features.features import Features
from logpolar.features.files import FeatureFile
from logpolar.keypoints import Keypoints


class HlocFeatureFile(FeatureFile):
    """Reads a feature file of hloc, without our header.

    A missing scale or orientation is filled in as by ``Keypoints.from_points``; see ``missing``.
    """

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
        group = self._file[self._names[0]]
        return [ours for theirs, ours in (("scales", "size"), ("oris", "angle")) if theirs not in group]

    def read(self, name: str) -> Features:
        group = self._group(name)
        for key in ("descriptors", "image_size"):
            if key not in group:
                raise StorageError(f"{self.path}: features of '{name}' have no {key}")
        xy, descriptors = group["keypoints"][()], np.asarray(group["descriptors"][()], np.float32)
        if xy.ndim != 2 or xy.shape[1] != 2 or descriptors.ndim != 2 or descriptors.shape[1] != len(xy):
            shapes = f"keypoints {xy.shape} and descriptors {descriptors.shape}"
            raise StorageError(f"{self.path}: {shapes} of '{name}' do not fit; hloc has (N, 2) and (D, N)")
        scale, angle, score = (group[key][()] if key in group else None for key in ("scales", "oris", "scores"))
        keypoints = Keypoints.from_points(
            xy, None if scale is None else 2 * np.asarray(scale, np.float32), angle, score
        )
        return Features(keypoints, np.ascontiguousarray(descriptors.T), self.image_size(name))


def open_features(path: str | Path) -> FeatureFile:
    """Open a feature file of ours or, without our header, of hloc."""
    return HlocFeatureFile(path) if is_foreign(path) else FeatureFile(path)


def is_foreign(path: str | Path) -> bool:
    """Whether an HDF5 file lacks our header. False for unreadable files: opening them raises an error."""
    try:
        with h5py.File(path, "r") as file:
            return "format" not in file.attrs
    except OSError:
        return False
