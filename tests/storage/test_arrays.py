from __future__ import annotations

import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import stored_files
from logpolar.errors import StorageError
from logpolar.features.files import FeatureFile
from logpolar.storage import arrays
from logpolar.storage.arrays import Array, check, damage, find, has, opened, read, read_group, read_numbers

KEYS = {
    "features": [f"a.jpg/{key}" for key in ("keypoints", "descriptors", "scores", "sizes", "angles", "image_size")],
    "hloc-features": [f"a.jpg/{key}" for key in ("keypoints", "descriptors", "image_size")],
    "matches": [f"a.jpg/c.jpg/{key}" for key in ("matches0", "matching_scores0")],
    "hloc-matches": [f"a.jpg/c.jpg/{key}" for key in ("matches0", "matching_scores0")],
    "cache": ["images/a"],
    "dataset": ["images/name", "images/size", "keypoints/xy", "pairs/images", "correspondences/warp", "bytes"],
}
"""Arrays of each kind of file."""


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """A file of each kind."""
    folder = tmp_path_factory.mktemp("intact")
    for kind in stored_files.KINDS:
        stored_files.write(kind, folder / f"{kind}.h5")
    return folder


@pytest.fixture
def file(tmp_path):
    with h5py.File(tmp_path / "f.h5", "w") as made:
        yield made


def external(group, key):
    group.create_dataset(key, (20, 2), "f4", external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])


def virtual(group, key):
    layout = h5py.VirtualLayout((20, 2), "f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (20, 2))
    group.create_virtual_dataset(key, layout)


def put(**how):
    return lambda group, key: group.create_dataset(key, **how)


def link(target):
    return lambda group, key: group.__setitem__(key, target)


ODD = {
    "missing": lambda group, key: None,
    "a group": lambda group, key: group.create_group(key),
    "itself": lambda group, key: group.__setitem__(key, group),
    "a soft link": link(h5py.SoftLink("/")),
    "a dangling link": link(h5py.SoftLink("/nowhere")),
    "an external link": link(h5py.ExternalLink("/etc/hostname", "/x")),
    "external": external,
    "virtual": virtual,
    "empty": put(data=h5py.Empty("f4")),
    "text": put(data="text"),
    "texts": put(data=np.array([b"a", b"bc"])),
    "compound": put(data=np.zeros(20, [("a", "f4"), ("b", "i4")])),
    "lists": put(shape=(20,), dtype=h5py.vlen_dtype(np.int32)),
    "references": put(shape=(20,), dtype=h5py.ref_dtype),
    "complex": put(data=np.ones((20, 2), complex)),
    "many dimensions": put(data=np.ones((20, 2, 1, 1, 1))),
    "huge": put(shape=(2**33, 2), chunks=(1024, 2), dtype="f4"),
    "huge in one dimension": put(shape=(2**60,), chunks=(1024,), dtype="i4"),
}
"""What to put in the place of an array."""


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("kind", stored_files.KINDS)
def test_anything_else_in_the_place_of_an_array_is_one_line(intact, tmp_path, kind, what):
    for number, key in enumerate(KEYS[kind]):
        path = tmp_path / f"{number}.h5"
        shutil.copy(intact / f"{kind}.h5", path)
        with h5py.File(path, "a") as changed:
            group, _, name = key.rpartition("/")
            del changed[key]
            ODD[what](changed[group or "/"], name)
        words = stored_files.refusal(kind, path)
        # An image or pair without the array that makes it one is not listed.
        assert words.startswith(f"{path}: ") or key.endswith(("/keypoints", "/matches0", "images/a")), key
        assert "\n" not in words and len(words) < 600


@pytest.mark.parametrize("kind", ["features", "hloc-features"])
def test_groups_nested_too_deep(intact, tmp_path, kind):
    path = tmp_path / "f.h5"
    shutil.copy(intact / f"{kind}.h5", path)
    with h5py.File(path, "a") as changed:
        changed["a/" * 200 + "keypoints"] = np.zeros((1, 2), np.float32)
    assert "nested more than 100 deep" in stored_files.refusal(kind, path)


@pytest.mark.parametrize("summary", ["[1]", "null", '{"left_out": 5}', '{"image_pairs_rejected": [1]}', "[" * 100_000])
def test_a_summary_that_is_none(intact, tmp_path, summary):
    path = tmp_path / "f.h5"
    shutil.copy(intact / "dataset.h5", path)
    with h5py.File(path, "a") as changed:
        changed["summary"][()] = summary
    assert "is damaged (the list of images: " in stored_files.refusal("dataset", path)


VALUES = {
    "features": {"keypoints": np.nan, "descriptors": np.inf, "sizes": -1, "angles": np.nan, "image_size": 0},
    "hloc-features": {"keypoints": np.inf, "descriptors": np.nan, "image_size": -3},
    "matches": {"matches0": -2, "matching_scores0": np.nan},
    "hloc-matches": {"matches0": -7, "matching_scores0": np.inf},
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_out_of_bounds(intact, tmp_path, kind):
    for key, value in VALUES[kind].items():
        path = tmp_path / f"{key}.h5"
        shutil.copy(intact / f"{kind}.h5", path)
        with h5py.File(path, "a") as changed:
            name = next(name for name in KEYS[kind] if name.endswith(f"/{key}"))
            changed[name][...] = value
        assert f"is damaged ({name}: has values that are not between" in stored_files.refusal(kind, path)


@pytest.fixture(scope="module")
def elsewhere():
    """Reads in another process: on some damaged bytes HDF5 itself crashes, which no check can prevent."""
    pools = [ProcessPoolExecutor(1, get_context("spawn"))]

    def submit(*task):
        try:
            return pools[-1].submit(stored_files.refusal, *task).result()
        except BrokenProcessPool:
            pools.append(ProcessPoolExecutor(1, get_context("spawn")))
            return None

    yield submit
    for pool in pools:
        pool.shutdown()


@pytest.mark.parametrize("kind", stored_files.KINDS)
def test_damaged_bytes_are_read_or_refused_in_one_line(intact, elsewhere, tmp_path, kind):
    data, path = (intact / f"{kind}.h5").read_bytes(), tmp_path / "damaged.h5"
    # Addresses, sizes and counts are in few places: near the signatures of HDF5's structures.
    places = [at for at in range(len(data)) if data[at : at + 4] in (b"\x89HDF", b"TREE", b"HEAP", b"SNOD", b"OHDR")]
    near = st.builds(lambda place, more: min(place + more, len(data) - 1), st.sampled_from(places), st.integers(0, 64))
    change = st.tuples(near | st.integers(0, len(data) - 1), st.binary(min_size=1, max_size=8))

    @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.lists(change, min_size=1, max_size=3), st.none() | st.integers(0, len(data)))
    def try_one(changes, end):
        damaged = bytearray(data)
        for place, value in changes:
            damaged[place : place + len(value)] = value
        path.write_bytes(damaged[:end])
        words = elsewhere(kind, path)
        event("crash" if words is None else "refused" if words else "read")
        assert "\n" not in (words or "")

    try_one()


class TestFind:
    def test_by_path(self, file):
        file["deep/er/x"] = [1]
        assert find(file, "deep/er/x").name == "/deep/er/x"
        assert find(file, "./deep//er").name == "/deep/er"
        assert find(file, "deep/none") is find(file, "deep/er/x/y") is None
        assert (has(file, "deep"), has(file, "x")) == (True, False)

    @pytest.mark.parametrize("target", [h5py.SoftLink("/deep"), h5py.ExternalLink("/dev/zero", "/x")])
    def test_links_are_not_followed(self, file, target):
        file["deep/x"] = [1]
        file["link"] = target
        with pytest.raises(ValueError, match="'link' is a link"):
            find(file, "link/x")


class TestDeclarations:
    def test_letters_are_equal_lengths(self, file, tmp_path):
        file["g/a"], file["g/b"] = np.zeros((3, 2)), np.zeros(4)
        schema, lengths = {"a": Array(("N", 2)), "b": Array(("N",)), "c": Array((), optional=True)}, {}
        with pytest.raises(StorageError, match=r"this box is damaged \(g/b: has shape \(4,\), not \(N,\) with N = 3\)"):
            read_group(file, tmp_path, "box", "g", schema, lengths)
        assert lengths == {"N": 3}
        del file["g/b"]
        file["g/b"] = np.zeros(3)
        assert list(read_group(file, tmp_path, "box", "g", schema, {})) == ["a", "b"]

    def test_rows(self, file):
        file["x"] = np.arange(10)
        assert read(file["x"], Array(("N",)), slice(2, 4)).tolist() == [2, 3]

    def test_texts(self, file):
        file.create_dataset("x", data=["ä", "b"], dtype=h5py.string_dtype())
        check(file["x"], Array(("N",), "T", None), {})
        assert read(file["x"], Array(("N",), "T", None)).tolist() == ["ä", "b"]

    def test_the_size_is_limited_by_rows_and_chunks(self, file, monkeypatch):
        file.create_dataset("x", data=np.zeros(1000, np.float32), chunks=(100,), compression="gzip")
        monkeypatch.setattr(arrays, "MAX_BYTES", 400)
        assert len(read(file["x"], Array(("N",)), slice(0, 100))) == 100
        with pytest.raises(ValueError, match="would take"):
            read(file["x"], Array(("N",)), slice(0, 101))
        monkeypatch.setattr(arrays, "MAX_BYTES", 396)
        with pytest.raises(ValueError, match="would take"):  # a chunk is unpacked whole
            read(file["x"], Array(("N",)), slice(0, 1))

    def test_a_dimension_is_not_zero(self, file):
        file["x"] = np.zeros((0, 5))
        check(file["x"], Array(("N", "D")), {})
        with pytest.raises(ValueError, match="shape"):
            check(file["x"], Array(("D", "N")), {})

    def test_numbers_of_any_shape(self, file, tmp_path):
        file["x"], file["y"] = np.ones((2, 1, 3)), "text"
        assert read_numbers(file, tmp_path, "box", "x").shape == (2, 1, 3)
        for key in ("y", "z"):
            with pytest.raises(StorageError, match=f"damaged \\({key}: "):
                read_numbers(file, tmp_path, "box", key)


class TestOpening:
    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
    def test_a_pipe_is_refused(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(StorageError, match="is a pipe or a device"), opened(tmp_path / "pipe"):
            pass

    def test_errors_inside_are_damage_in_one_line(self, tmp_path, file):
        file.flush()
        for error in (RuntimeError("a\nb"), MemoryError(), OSError("x" * 2000), RecursionError()):
            with pytest.raises(StorageError) as caught, damage(tmp_path / "f.h5", "box", "its lid"):
                raise error
            assert str(caught.value).startswith(f"{tmp_path / 'f.h5'}: this box is damaged (its lid:")
            assert "\n" not in str(caught.value) and len(str(caught.value)) < 600

    def test_all_images_have_descriptors_of_one_length(self, intact, tmp_path):
        shutil.copy(intact / "features.h5", tmp_path / "f.h5")
        with h5py.File(tmp_path / "f.h5", "a") as changed:
            del changed["c.jpg/descriptors"]
            changed["c.jpg/descriptors"] = np.zeros((64, 20), np.float32)
        with FeatureFile(tmp_path / "f.h5") as features:
            features.read("a.jpg")
            with pytest.raises(StorageError, match=r"c\.jpg/descriptors: has shape \(64, 20\), not .* D = 128"):
                features.read("c.jpg")
            features.read("deep/b.jpg")
