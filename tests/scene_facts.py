"""A reconstruction that was never computed: cameras on an arc before random points, some photos left out."""

from __future__ import annotations

import numpy as np

from logpolar.sfm.facts import Facts, Lens, PairFacts, PhotoFacts, SceneModel

HOSTILE = [
    "</script><script>alert(1)</script>.png",
    "\"quoted\" & 'single'.png",
    "two\nlines.png",
    "zw\u00f6lf \u2028 \u202e \U0001f4f7.png",
    "<img src=x onerror=alert(1)>.png",
]
"""Names that would break a page which takes them for markup."""


def look_from(centre: np.ndarray) -> np.ndarray:
    """[rotation | translation] of an upright camera at a place that looks at the origin; y is down."""
    forward = -centre / np.linalg.norm(centre)
    right = np.cross([0.0, 1.0, 0.0], forward)
    right /= np.linalg.norm(right)
    rotation = np.stack([right, np.cross(forward, right), forward])
    return np.concatenate([rotation, -(rotation @ centre)[:, None]], axis=1)


def make_facts(cameras: int = 8, points: int = 400, apart: float = 0.3, names: list[str] | None = None) -> Facts:
    """``cameras`` photos in a model, one that could not be read and one without inliers; each point in 4 photos."""
    random = np.random.default_rng(0)
    angle = apart * (np.arange(cameras) - (cameras - 1) / 2)
    centres = np.stack([5 * np.sin(angle), np.full(cameras, -1.0), -5 * np.cos(angle)], axis=1)
    seen = random.permuted(np.tile(np.arange(cameras), (points, 1)), axis=1)[:, :4] if points else np.zeros((0, 4), int)
    observed = [np.flatnonzero((seen == camera).any(axis=1)) for camera in range(cameras)]
    shared = np.array([[len(np.intersect1d(a, b)) for b in observed] for a in observed])
    rows = np.argwhere(np.triu(np.ones_like(shared), 1))
    common = shared[tuple(rows.T)]
    weak = np.array([[0, cameras + 1]])
    pairs = PairFacts(
        np.concatenate([rows, weak]), *(np.append(common, value) for value in (40, 0)), np.append(common, 0)
    )
    model = SceneModel(
        0,
        random.normal(size=(points, 3)),
        random.integers(0, 256, (points, 3), np.uint8),
        np.full(points, 4),
        np.arange(cameras),
        np.array([look_from(centre) for centre in centres]),
        observed,
    )
    names = (names or []) + [f"{n}.png" for n in range(cameras + 2)]
    photos = [PhotoFacts(names[n], 500, 1, 0, len(observed[n]), 0.5 + 0.1 * n) for n in range(cameras)]
    photos += [PhotoFacts("bad.png", unreadable="bad.png: not an image"), PhotoFacts("lost.png", 300, 1)]
    lens = Lens(1, "SIMPLE_RADIAL", 640, 480, 600.0, (600.0, 320.0, 240.0, 0.01))
    return Facts(photos, {1: lens}, pairs, [model])
