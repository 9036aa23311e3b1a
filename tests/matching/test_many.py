from __future__ import annotations

import numpy as np
import pytest

from logpolar.errors import LogpolarError
from logpolar.features.features import Features
from logpolar.keypoints import Keypoints
from logpolar.matching import many
from logpolar.matching.many import match_many
from logpolar.matching.nearest import match_features
from logpolar.matching.options import MatchingOptions


@pytest.fixture(scope="module")
def images():
    """Noisy, shuffled copies of 60 features at places that a similarity relates, and an image without any."""
    random = np.random.default_rng(0)
    base, xy = random.normal(size=(60, 32)), random.uniform(0, 100, (60, 2))
    made = {"empty": Features(Keypoints.empty(), np.zeros((0, 32), np.float32), (100, 100))}
    for name in ("a", "b", "c"):
        order = random.permutation(60)[: 60 - 5 * len(made)]
        vectors = (base + 0.5 * random.normal(size=base.shape))[order]
        unit = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        made[name] = Features(Keypoints.from_points(2 * xy[order], 4.0, 10.0), unit, (200, 200))
    return made


PAIRS = [("a", "b"), ("a", "empty"), ("b", "c"), ("c", "a"), ("empty", "empty")]


@pytest.mark.parametrize("filter", ["none", "consensus"])
def test_as_pair_by_pair(images, filter, monkeypatch):
    """On a device, here the CPU by torch, and without."""
    options, reads = MatchingOptions(filter=filter), []
    expected = {pair: match_features(images[pair[0]], images[pair[1]], options) for pair in PAIRS}

    def read(name):
        reads.append(name)
        return images[name]

    for found in (dict(match_many(read, PAIRS, options)), dict(many._on_device(read, PAIRS, options, "cpu"))):
        assert found.keys() == expected.keys()
        for pair, matches in expected.items():
            assert found[pair].indices.tolist() == matches.indices.tolist()
            np.testing.assert_allclose(found[pair].distances, matches.distances, atol=1e-5)
    assert len(expected["a", "b"]) > 20
    assert sorted(reads) == sorted(2 * [*images])  # each image once a run


def test_unknown_device(images):
    with pytest.raises(LogpolarError, match="unknown device 'tpu'"):
        list(match_many(images.get, PAIRS, device="tpu"))
