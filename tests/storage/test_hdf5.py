"""What every file of ours has in common; what feature files show of it already is in test_storage.py."""

from __future__ import annotations

import _thread
import json
import os
import time
from pathlib import Path

import h5py
import pytest

from logpolar.errors import StorageError
from logpolar.storage import hdf5
from logpolar.storage.hdf5 import FileKind, Hdf5File, Hdf5Writer

SETTINGS = {"source": "tests", "rules": {"count": 3, "deep": {"share": 0.5}}}


class Diary(Hdf5File):
    kind = FileKind("test-diary", 3, "diary")

    def entries(self) -> list[int]:
        return self._file["entries"][()].tolist() if "entries" in self._file else []


class DiaryWriter(Hdf5Writer):
    """Appends: an addition that was made twice, or not at all, shows."""

    reader = Diary
    found = None

    def _resume(self, file: Diary) -> None:
        self.found = file.entries()

    def add(self, entry: int) -> None:
        self._add(lambda file: append(file, entry))


def append(file, entry: int) -> None:
    if "entries" not in file:
        file.create_dataset("entries", (0,), int, maxshape=(None,))
    file["entries"].resize((len(file["entries"]) + 1,))
    file["entries"][-1] = entry


def write(path: Path, entries=range(3), settings=SETTINGS) -> None:
    with DiaryWriter(path, settings) as writer:
        for entry in entries:
            writer.add(entry)


def entries_in(path: Path) -> list[int]:
    with Diary(path) as file:
        return file.entries()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "diary.h5"


class TestHeader:
    def test_says_what_the_file_is(self, path):
        write(path)
        with h5py.File(path) as file:
            assert file.attrs["format"] == "test-diary"
            assert file.attrs["version"] == 3
            assert json.loads(file.attrs["settings"]) == SETTINGS

    def test_is_there_before_anything_is_added(self, path):
        write(path, [])
        with Diary(path) as file:
            assert (file.settings, file.entries()) == (SETTINGS, [])

    def test_refusals_are_in_the_words_of_the_kind(self, path):
        with h5py.File(path, "w") as file:
            file.attrs.update(format="test-letters", version=3, settings="{}")
        with pytest.raises(StorageError, match=r"diary\.h5: exists, but is not a logpolar diary"):
            Diary(path)

    @pytest.mark.parametrize("version", [2, 4, "3", None])
    def test_any_other_version_is_refused(self, path, version):
        write(path)
        with h5py.File(path, "a") as file:
            if version is None:
                del file.attrs["version"]
            else:
                file.attrs["version"] = version
        with pytest.raises(StorageError, match=f"diary version {version}, but this logpolar reads version 3"):
            Diary(path)

    @pytest.mark.parametrize("settings", ["[1]", "7", "{", b"\xff"])
    def test_settings_that_are_none_are_damage(self, path, settings):
        write(path)
        with h5py.File(path, "a") as file:
            file.attrs["settings"] = settings
        with pytest.raises(StorageError, match="the header of this diary is damaged"):
            Diary(path)

    def test_a_refused_file_is_closed(self, path):
        write(path)
        with h5py.File(path, "a") as file:
            file.attrs["version"] = 4
        with pytest.raises(StorageError) as refusal:
            Diary(path)
        with h5py.File(path, "a") as file:  # HDF5 would not open for writing what is open for reading
            file.attrs["version"] = 3
        assert refusal.traceback  # which keeps the reader alive
        assert entries_in(path) == [0, 1, 2]


class TestReading:
    def test_is_over_when_the_block_ends(self, path):
        write(path)
        with Diary(path) as file:
            assert file.entries() == [0, 1, 2]
        with h5py.File(path, "a"):  # HDF5 would not open for writing what is open for reading
            pass
        file.close()  # once more does no harm

    def test_no_name_is_one_line(self):
        with pytest.raises(StorageError, match="is a folder"):
            DiaryWriter("", SETTINGS)

    def test_a_folder_is_no_file(self, tmp_path):
        with pytest.raises(StorageError, match="is a folder"):
            Diary(tmp_path)


class TestAdditions:
    def test_each_is_in_the_file_once_and_in_order(self, path):
        with DiaryWriter(path, SETTINGS) as writer:
            for entry in range(6):
                writer.add(entry)
                assert entries_in(path) == list(range(entry + 1))

    def test_also_where_the_former_file_is_being_read(self, path):
        write(path, range(2))
        with DiaryWriter(path, SETTINGS) as writer:
            writer.add(2)
            with Diary(path) as reader:
                for entry in (3, 4, 5):
                    writer.add(entry)
                assert reader.entries() == [0, 1, 2]
            writer.add(6)
        assert entries_in(path) == list(range(7))

    def test_also_without_hard_links(self, path, monkeypatch):
        def no_links(self, target):
            raise OSError("not supported")

        monkeypatch.setattr(Path, "hardlink_to", no_links)
        write(path, range(4))
        assert entries_in(path) == [0, 1, 2, 3]

    def test_also_over_several_runs(self, path):
        for run in range(3):
            with DiaryWriter(path, SETTINGS) as writer:
                assert writer.found == (list(range(2 * run)) if run else None)
                writer.add(2 * run)
                writer.add(2 * run + 1)
        assert entries_in(path) == list(range(6))

    def test_are_on_the_disk_before_they_take_the_files_place(self, path, monkeypatch):
        write(path)
        events, flush, replace = [], hdf5.flush, Path.replace

        def note_flush(place):
            events.append(f"flush {place.name}")
            flush(place)

        def note_replace(self, target):
            events.append(f"{self.name} -> {target.name}")
            return replace(self, target)

        monkeypatch.setattr(hdf5, "flush", note_flush)
        monkeypatch.setattr(Path, "replace", note_replace)
        with DiaryWriter(path, SETTINGS) as writer:
            writer.add(3)
        assert events[:2] == ["flush diary.h5.spare", "diary.h5.spare -> diary.h5"]
        assert events[-1] == f"flush {path.parent.name}" or os.name != "posix"

    def test_one_that_fails_leaves_the_file_as_it_was(self, path):
        def fail(file):
            append(file, 99)
            raise RuntimeError("out of ideas")

        with DiaryWriter(path, SETTINGS) as writer:
            writer.add(0)
            writer.add(1)
            with pytest.raises(RuntimeError, match="out of ideas"):
                writer._add(fail)
            assert entries_in(path) == [0, 1]
        assert entries_in(path) == [0, 1]
        assert names_in(path.parent) == ["diary.h5"]

    def test_one_that_fails_does_not_spoil_the_next(self, path):
        def fail(file):
            append(file, 99)
            raise RuntimeError("out of ideas")

        with DiaryWriter(path, SETTINGS) as writer:
            writer.add(0)
            writer.add(1)
            with pytest.raises(RuntimeError):
                writer._add(fail)
            writer.add(2)
        assert entries_in(path) == [0, 1, 2]

    def test_damage_of_an_earlier_file_that_only_a_change_meets_is_one_line(self, path):
        write(path)
        with (
            DiaryWriter(path, SETTINGS) as writer,
            pytest.raises(StorageError, match=r"diary\.h5: this diary is damaged \(its structure: .*already exists"),
        ):
            writer._add(lambda file: file.create_group("entries"))
        assert entries_in(path) == [0, 1, 2]

    def test_a_full_disk_is_an_error_in_words(self, path, monkeypatch):
        def full(place):
            raise OSError(28, "No space left on device")

        with DiaryWriter(path, SETTINGS) as writer:
            writer.add(0)
            monkeypatch.setattr(hdf5, "flush", full)
            with pytest.raises(StorageError, match=r"diary\.h5: cannot be written .*no space left"):
                writer.add(1)
        assert entries_in(path) == [0]


class TestWritersThatGo:
    def test_a_second_one_may_follow(self, path):
        with DiaryWriter(path, SETTINGS), pytest.raises(StorageError, match="another process"):
            DiaryWriter(path, SETTINGS)
        with DiaryWriter(path, SETTINGS):
            pass

    def test_an_error_inside_the_block_leaves_nothing_but_the_file(self, path):
        with pytest.raises(KeyboardInterrupt), DiaryWriter(path, SETTINGS) as writer:
            writer.add(0)
            writer.add(1)
            raise KeyboardInterrupt
        assert names_in(path.parent) == ["diary.h5"]
        assert entries_in(path) == [0, 1]

    def test_an_error_before_the_first_addition_leaves_no_empty_file(self, path):
        """Which would refuse other settings."""
        with pytest.raises(KeyboardInterrupt), DiaryWriter(path, SETTINGS):
            raise KeyboardInterrupt
        assert names_in(path.parent) == []
        with DiaryWriter(path, SETTINGS):
            pass
        with pytest.raises(KeyboardInterrupt), DiaryWriter(path, SETTINGS):
            raise KeyboardInterrupt
        assert names_in(path.parent) == [path.name]  # of an earlier run

    def test_an_addition_in_its_place_stays_whatever_comes_then(self, path, monkeypatch):
        with pytest.raises(KeyboardInterrupt), DiaryWriter(path, SETTINGS) as writer:
            swap = writer._swap
            monkeypatch.setattr(writer, "_swap", lambda: (swap(), _thread.interrupt_main(), time.sleep(60)))
            writer.add(0)
        assert entries_in(path) == [0]

    def test_a_start_that_fails_leaves_nothing(self, path, monkeypatch):
        def full(place):
            raise OSError(28, "No space left on device")

        writer = DiaryWriter(path, SETTINGS)
        with monkeypatch.context() as patch:
            patch.setattr(hdf5, "flush", full)
            with pytest.raises(StorageError, match="cannot be written"):
                writer.__enter__()
        assert names_in(path.parent) == []
        write(path)

    def test_what_a_dead_one_left_is_no_obstacle(self, path):
        """Its lock, which the system has opened, a spare copy that is behind, and half of something else."""
        write(path, range(2))
        behind = path.read_bytes()
        write(path, [2])
        for ending, content in ((".lock", b""), (".spare", behind), (".former", b"half a file")):
            path.with_name(path.name + ending).write_bytes(content)
        with DiaryWriter(path, SETTINGS) as writer:
            assert writer.found == [0, 1, 2]
            writer.add(3)
        assert entries_in(path) == [0, 1, 2, 3]
        assert names_in(path.parent) == ["diary.h5"]


class TestSettings:
    def test_order_does_not_matter(self, path):
        write(path)
        write(path, [3], {"rules": {"deep": {"share": 0.5}, "count": 3}, "source": "tests"})
        assert entries_in(path) == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({**SETTINGS, "rules": {"count": 3, "deep": {"share": 0.25}}}, r"rules\.deep\.share = 0\.5, not 0\.25"),
            ({"source": "tests"}, r"rules\.count = 3, not None"),
            ({**SETTINGS, "seed": 1}, r"seed = None, not 1"),
        ],
    )
    def test_the_one_that_differs_is_named(self, path, settings, words):
        write(path)
        with pytest.raises(StorageError, match=words):
            DiaryWriter(path, settings)
        assert entries_in(path) == [0, 1, 2]


class TestOverwriting:
    def test_the_old_file_stays_until_the_new_one_is_complete(self, path):
        write(path, range(3))
        with DiaryWriter(path, {"other": 1}, overwrite=True) as writer:
            writer.add(7)
            assert entries_in(path) == [0, 1, 2]
        assert entries_in(path) == [7]
        assert names_in(path.parent) == [path.name]

    def test_an_error_leaves_it(self, path):
        write(path, range(3))
        with pytest.raises(KeyboardInterrupt), DiaryWriter(path, SETTINGS, overwrite=True) as writer:
            writer.add(7)
            raise KeyboardInterrupt
        assert entries_in(path) == [0, 1, 2]
        assert names_in(path.parent) == [path.name]

    def test_nothing_to_write_and_then_an_error_leave_it(self, path):
        write(path)
        with pytest.raises(KeyboardInterrupt), DiaryWriter(path, SETTINGS, overwrite=True) as writer:
            writer.discard()
            raise KeyboardInterrupt
        assert entries_in(path) == [0, 1, 2]

    def test_nothing_to_write_leaves_it(self, path):
        write(path, range(3))
        with DiaryWriter(path, SETTINGS, overwrite=True) as writer:
            writer.discard()
        assert entries_in(path) == [0, 1, 2]
        assert names_in(path.parent) == [path.name]

    def test_starts_anew_with_other_settings(self, path):
        write(path)
        with DiaryWriter(path, {"source": "else"}, overwrite=True) as writer:
            assert writer.found is None
            writer.add(7)
        with Diary(path) as file:
            assert (file.settings, file.entries()) == ({"source": "else"}, [7])

    def test_another_kind_of_ours_is_left_alone(self, path):
        with h5py.File(path, "w") as file:
            file.attrs.update(format="test-letters", version=3, settings="{}")
        with pytest.raises(StorageError, match="not a logpolar diary"):
            DiaryWriter(path, SETTINGS, overwrite=True)
        with h5py.File(path) as file:
            assert file.attrs["format"] == "test-letters"
        assert names_in(path.parent) == ["diary.h5"]
