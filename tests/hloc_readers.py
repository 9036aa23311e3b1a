"""What hloc does with HDF5 files, in our own words: which keys it opens, and what it takes the arrays for."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np


def names_of(path: Path) -> set[str]:
    """Every group that directly holds an array is an image (or a pair)."""
    found = set()
    with h5py.File(path, "r") as file:
        file.visititems(
            lambda name, item: found.add(name.rpartition("/")[0]) if isinstance(item, h5py.Dataset) else None
        )
    return found


def keypoints_of(path: Path, name: str) -> tuple[np.ndarray, float]:
    """For a COLMAP database: positions, top-left centre (0, 0), and the attribute that says how uncertain they are."""
    with h5py.File(path, "r") as file:
        data = file[name]["keypoints"]
        return data[()], data.attrs["uncertainty"]


def matcher_input(path: Path, name: str) -> dict[str, np.ndarray]:
    """For a matcher: every array of the image becomes float32; the picture's shape comes from (width, height)."""
    with h5py.File(path, "r") as file:
        found = {key: np.asarray(value[()], np.float32) for key, value in file[name].items()}
        found["shape"] = np.array([1, *file[name]["image_size"][()][::-1]])
    return found


def matches_of(path: Path, first: str, second: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows (K, 2) and scores; a pair may be stored the other way round."""
    key, other = (f"{a.replace('/', '-')}/{b.replace('/', '-')}" for a, b in ((first, second), (second, first)))
    with h5py.File(path, "r") as file:
        turned = key not in file
        group = file[other if turned else key]
        partner, scores = group["matches0"][()], group["matching_scores0"][()]
    here = np.flatnonzero(partner != -1)
    rows = np.stack([here, partner[here]], axis=1)
    return (rows[:, ::-1] if turned else rows), scores[here]


def write_features(path: Path, name: str, xy, descriptors, size, half: bool = True, **more) -> None:
    """As its extractors do: the descriptors' columns are keypoints, float16 by default."""
    kind = np.float16 if half else np.float32
    with h5py.File(path, "a", libver="latest") as file:
        group = file.create_group(name)
        group.create_dataset("keypoints", data=np.asarray(xy, kind)).attrs["uncertainty"] = 1.5
        group.create_dataset("descriptors", data=np.asarray(descriptors, kind).T)
        group.create_dataset("scores", data=np.ones(len(xy), kind))
        group.create_dataset("image_size", data=np.array(size))
        for key, value in more.items():
            group.create_dataset(key, data=np.asarray(value, kind))


def write_matches(path: Path, first: str, second: str, partner) -> None:
    """As its matchers do: int16 and float16."""
    with h5py.File(path, "a", libver="latest") as file:
        group = file.create_group(f"{first.replace('/', '-')}/{second.replace('/', '-')}")
        group.create_dataset("matches0", data=np.asarray(partner, np.int16))
        group.create_dataset("matching_scores0", data=(np.asarray(partner) >= 0).astype(np.float16))
