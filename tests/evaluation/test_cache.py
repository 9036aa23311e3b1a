"""Descriptors that are exported once: what is stored, when it is trusted, and that scores are the same."""

from __future__ import annotations

import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest

from dataset_files import make_image, make_keypoints, make_pair, write
from function_describer import FunctionDescriber
from helpers import content_of
from logpolar.datasets.files import CorrespondenceFile
from logpolar.errors import StorageError
from logpolar.evaluation.cache import (
    CacheFile,
    DescriptorCache,
    Uncached,
    _CacheWriter,
    cache_name,
    image_digest,
    scene_identity,
)
from logpolar.evaluation.descriptors.registry import Method, open_method
from logpolar.evaluation.pairs import DescribedFile, score_described
from logpolar.keypoints import Keypoints

NAMES = ("a.png", "deep/er/b.png", "Ærø %2F 日本.png")


class Random:
    """Vectors that depend on the view and the keypoints; counts, and fails when it is told to."""

    def __init__(self, fail_at: int = 0) -> None:
        self.calls, self.fail_at = 0, fail_at

    def __call__(self, view, keypoints):
        self.calls += 1
        if self.calls == self.fail_at:
            raise RuntimeError("the power went")
        seed = int(view.sum()) + len(keypoints)
        vectors = np.random.default_rng(seed).normal(size=(len(keypoints), 16))
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def make_view(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (20, 30), np.uint8)


def open_cache(folder, describe, identity=None, settings=None, data=None):
    method = Method("some", "Some (λ=3)", identity or {"kind": "some", "lambda": 12.0}, FunctionDescriber(describe))
    return DescriptorCache(folder, method, "tests", data or {"scene": "x"}, settings or {"most": 5})


def describe_all(cache):
    return [cache.describe(name, make_view(k), make_keypoints(5 + k, k)) for k, name in enumerate(NAMES)]


class TestCache:
    def test_second_run_does_not_describe(self, tmp_path):
        describe, direct = Random(), [Random()(make_view(k), make_keypoints(5 + k, k)) for k in range(3)]
        for calls in (3, 3):
            with open_cache(tmp_path / "new" / "folder", describe) as cache:
                for found, expected in zip(describe_all(cache), direct, strict=True):
                    np.testing.assert_array_equal(found, expected)
                    assert found.dtype == np.float32
            assert describe.calls == calls
        assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == [cache.path.name]

    def test_within_a_run(self, tmp_path):
        describe = Random()
        with open_cache(tmp_path, describe) as cache:
            one, two = describe_all(cache), describe_all(cache)
        assert describe.calls == 3
        for first, second in zip(one, two, strict=True):
            np.testing.assert_array_equal(first, second)

    def test_no_folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        describe = Random()
        with open_cache(None, describe) as cache:
            describe_all(cache)
            describe_all(cache)
        assert describe.calls == 6
        assert list(tmp_path.iterdir()) == []

    def test_goes_on_after_a_crash(self, tmp_path):
        with pytest.raises(RuntimeError, match="the power went"), open_cache(tmp_path, Random(fail_at=3)) as cache:
            describe_all(cache)
        describe = Random()
        with open_cache(tmp_path, describe) as cache:
            describe_all(cache)
        assert describe.calls == 1
        with open_cache(tmp_path / "whole", Random()) as whole:
            describe_all(whole)
        one, other = content_of(cache.path), content_of(whole.path)
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])

    def test_no_keypoints(self, tmp_path):
        for _ in range(2):
            with open_cache(tmp_path, Random()) as cache:
                assert cache.describe("empty", make_view(0), make_keypoints(0)).shape == (0, 16)

    def test_layout(self, tmp_path):
        with open_cache(tmp_path, Random()) as cache:
            describe_all(cache)
        with CacheFile(cache.path) as file:
            assert "deep%2Fer%2Fb.png" in file.names()
            assert file.settings == {
                "protocol": "tests",
                "descriptor": {"kind": "some", "lambda": 12.0},
                "data": {"scene": "x"},
                "keypoints": {"most": 5},
            }
        with h5py.File(cache.path) as file:
            assert [int(file["images"][name].attrs["keypoints"]) for name in ("a.png", "deep%2Fer%2Fb.png")] == [5, 6]

    def test_only_one_process_writes(self, tmp_path):
        with open_cache(tmp_path, Random()), pytest.raises(StorageError, match="another process"):
            open_cache(tmp_path, Random()).__enter__()


class TestIdentity:
    def test_file_names(self, tmp_path):
        """All that is different has a file of its own."""
        changes = [{}, {"identity": {"kind": "other"}}, {"settings": {"most": 6}}, {"data": {"scene": "y"}}]
        names = [open_cache(tmp_path, Random(), **change).path.name for change in changes]
        assert len(set(names)) == 4
        assert all(name.startswith("tests-Some-λ=3-") and name.endswith(".h5") for name in names)
        assert cache_name("p", "../..", {}).startswith("p-descriptor-")

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"identity": {"kind": "some", "lambda": 6.0}}, "descriptor.lambda = 12.0, not 6.0"),
            ({"settings": {"most": 6}}, "keypoints.most = 5, not 6"),
            ({"data": {"scene": "y"}}, "data.scene = x, not y"),
        ],
    )
    def test_other_settings_are_refused(self, tmp_path, change, words):
        with open_cache(tmp_path, Random()) as made:
            describe_all(made)
        asked, describe = open_cache(tmp_path, Random(), **change), Random()
        shutil.copy(made.path, asked.path)
        before = content_of(asked.path)
        with pytest.raises(StorageError, match="delete it or choose") as caught, asked as cache:
            describe_all(cache)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
        assert describe.calls == 0
        assert content_of(asked.path).keys() == before.keys()

    def test_not_a_cache(self, tmp_path):
        path = open_cache(tmp_path, Random()).path
        path.write_bytes(b"nothing")
        with pytest.raises(StorageError, match="not an HDF5 file"):
            open_cache(tmp_path, Random()).__enter__()
        assert path.read_bytes() == b"nothing"

    @pytest.mark.parametrize("what", ["view", "keypoints", "count"])
    def test_changed_image_is_noticed(self, tmp_path, what):
        with open_cache(tmp_path, Random()) as cache:
            describe_all(cache)
        view, keypoints = make_view(0), make_keypoints(5, 0)
        if what == "view":
            view[3, 4] ^= 1
        else:
            keypoints = keypoints[:4] if what == "count" else keypoints.resized(1.5, 1.5)
        with open_cache(tmp_path, Random()) as cache, pytest.raises(StorageError, match=r"'a\.png'.* have changed"):
            cache.describe("a.png", view, keypoints)

    def test_digest_knows_the_shape(self):
        view, keypoints = make_view(0), make_keypoints(2)
        assert image_digest(view, keypoints) != image_digest(view.reshape(30, 20), keypoints)

    def test_damaged(self, tmp_path):
        with open_cache(tmp_path, Random()) as cache:
            describe_all(cache)
        with h5py.File(cache.path, "a") as file:
            del file["images"]["a.png"].attrs["digest"]
        with open_cache(tmp_path, Random()) as cache, pytest.raises(StorageError, match="damaged"):
            describe_all(cache)


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    path = tmp_path_factory.mktemp("scene") / "scene.h5"
    images = []
    for seed, name in enumerate(NAMES):
        random = np.random.default_rng(seed)
        inside = Keypoints.from_points(random.uniform(2, 28, (60, 2)), random.uniform(2, 6, 60), response=0.1)
        images.append(replace(make_image(name, 1, "test", seed), keypoints=inside))
    write(path, images, [make_pair(images[a], images[b], 25, a) for a, b in ((0, 1), (1, 2), (2, 0))])
    return path


class TestScenes:
    def test_scores_are_those_without(self, scene, tmp_path):
        method = open_method("rootsift")
        with CorrespondenceFile(scene) as file:
            direct = score_described(DescribedFile(file, Uncached(method.describer)))
            for _ in range(2):
                with DescriptorCache(tmp_path, method, "scenes", scene_identity(file), {}) as cache:
                    assert score_described(DescribedFile(file, cache)) == direct
        assert 0 < direct.fpr95 < 1

    def test_identity(self, scene, tmp_path):
        images = [make_image(name, 60, "test", seed) for seed, name in enumerate(NAMES)]
        changed = {
            "keypoints": [make_image(NAMES[0], 61, "test", 0), *images[1:]],
            "images": [make_image(NAMES[0], 60, "test", 9), *images[1:]],
            "names": [make_image("c.png", 60, "test", 0), *images[1:]],
        }
        found = set()
        for name, content in {"same": images, **changed}.items():
            write(tmp_path / f"{name}.h5", content, [])
            with CorrespondenceFile(tmp_path / f"{name}.h5") as file:
                found.add(scene_identity(file)["scene"])
        write(tmp_path / "settings.h5", images, [], {"source": "elsewhere"})
        for name in ("settings.h5", scene):
            with CorrespondenceFile(tmp_path / name) as file:
                found.add(scene_identity(file)["scene"])
        assert len(found) == 6


def test_names_that_are_not_text_are_damage(tmp_path):
    with _CacheWriter(tmp_path / "c.h5", {"protocol": "tests"}) as writer:
        writer.add("a", "0" * 32, np.zeros((2, 128), np.float32))
    with h5py.File(tmp_path / "c.h5", "r+") as file:
        file["images"][b"\xff"] = file["images/a"]
    with CacheFile(tmp_path / "c.h5") as file, pytest.raises(StorageError, match="names that are not text"):
        file.names()
