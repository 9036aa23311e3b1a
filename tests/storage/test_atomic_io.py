from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from logpolar.errors import ImageError, LogpolarError, StorageError
from logpolar.storage.atomic_io import (
    Lock,
    check_output,
    check_picture,
    check_place,
    check_space,
    made_within,
    replacing,
    within,
    write_whole,
)


def full_disk(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class TestNamesFromFiles:
    @pytest.mark.parametrize("name", ["a.jpg", "deep/b.jpg", "..jpg", "a..b/c", " x", "new\nline.jpg"])
    def test_inside(self, tmp_path, name):
        assert within(tmp_path, name) == tmp_path / name

    @pytest.mark.parametrize("name", ["", ".", "..", "../a", "deep/../../a", "/etc/passwd", "a\0b", "é" * 128])
    def test_outside(self, tmp_path, name):
        with pytest.raises(StorageError, match="is not the name of a file inside"):
            within(tmp_path, name)

    def test_links_may_be_read_but_not_written_through(self, tmp_path):
        (tmp_path / "folder").mkdir()
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "folder" / "link").symlink_to(tmp_path / "elsewhere")
        assert within(tmp_path / "folder", "link/a.jpg").parent.samefile(tmp_path / "elsewhere")
        with pytest.raises(StorageError, match="leads outside"):
            made_within(tmp_path / "folder", "link/a.jpg")


class TestTwoWriters:
    def test_the_second_is_told(self, tmp_path):
        with Lock(tmp_path / "a"), pytest.raises(StorageError, match="a: another process is writing"):
            Lock(tmp_path / "a")
        assert list(tmp_path.iterdir()) == []
        Lock(tmp_path / "a").release()

    def test_or_waits(self, tmp_path):
        order = []

        def second():
            with Lock(tmp_path / "a", wait=True):
                order.append("second")

        with Lock(tmp_path / "a"):
            thread = threading.Thread(target=second)
            thread.start()
            thread.join(0.1)
            order.append("first")
        thread.join()
        assert order == ["first", "second"]
        assert list(tmp_path.iterdir()) == []

    def test_writers_of_whole_files_do_not_disturb_each_other(self, tmp_path):
        contents = [bytes([number]) * 10_000 for number in range(8)]
        threads = [threading.Thread(target=write_whole, args=(tmp_path / "a", each)) for each in contents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (tmp_path / "a").read_bytes() in contents
        assert [path.name for path in tmp_path.iterdir()] == ["a"]

    def test_what_a_killed_writer_left_is_no_obstacle(self, tmp_path):
        (tmp_path / ".a.half").write_bytes(b"half of something longer")
        (tmp_path / "a.lock").touch()
        with Lock(tmp_path / "a"), replacing(tmp_path / "a") as half:
            half.write_bytes(b"new")
        assert (tmp_path / "a").read_bytes() == b"new"


def test_space_is_checked_beforehand(tmp_path):
    check_space(tmp_path / "a", 1000)
    with pytest.raises(StorageError, match=r"a: no space left on the disk \(.* MB are free, about .* MB are needed"):
        check_space(tmp_path / "a", 2**60)


class TestWriteWhole:
    def test_content(self, tmp_path):
        write_whole(tmp_path / "a.bin", b"\0one\r\n")
        assert (tmp_path / "a.bin").read_bytes() == b"\0one\r\n"

    def test_replaces_and_leaves_nothing_else(self, tmp_path):
        write_whole(tmp_path / "a", b"a longer text")
        write_whole(tmp_path / "a", b"short")
        assert (tmp_path / "a").read_bytes() == b"short"
        assert [each.name for each in tmp_path.iterdir()] == ["a"]

    def test_readers_of_the_former_file_keep_it(self, tmp_path):
        """It is replaced, not written into."""
        write_whole(tmp_path / "a", b"former")
        with (tmp_path / "a").open("rb") as file:
            write_whole(tmp_path / "a", b"latter")
            assert file.read() == b"former"

    def test_is_on_the_disk_before_it_takes_the_place(self, tmp_path, monkeypatch):
        (tmp_path / "a").write_bytes(b"former")
        seen = []

        def note(handle):
            seen.append(((tmp_path / "a").read_bytes(), (tmp_path / ".a.half").read_bytes()))

        monkeypatch.setattr(os, "fsync", note)
        write_whole(tmp_path / "a", b"latter")
        assert seen == [(b"former", b"latter")]

    @pytest.mark.parametrize("place", ["fsync", "replace"])
    def test_failure_leaves_the_former_file_and_names_it(self, tmp_path, monkeypatch, place):
        path = tmp_path / "a"
        path.write_bytes(b"former")
        monkeypatch.setattr(*((os, "fsync") if place == "fsync" else (Path, "replace")), full_disk)
        with pytest.raises(OSError, match="No space left") as caught:
            write_whole(path, b"latter")
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
        assert path.read_bytes() == b"former"
        assert [each.name for each in tmp_path.iterdir()] == ["a"]

    def test_first_file_that_fails_leaves_nothing(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "fsync", full_disk)
        with pytest.raises(OSError, match="No space left"):
            write_whole(tmp_path / "a", b"new")
        assert list(tmp_path.iterdir()) == []

    def test_folder_that_is_not_there(self, tmp_path):
        with pytest.raises(FileNotFoundError) as caught:
            write_whole(tmp_path / "none" / "a", b"new")
        assert caught.value.filename == str(tmp_path / "none" / "a")

    def test_place_of_a_folder(self, tmp_path):
        (tmp_path / "a").mkdir()
        with pytest.raises(OSError) as caught:  # which one depends on the system
            write_whole(tmp_path / "a", b"new")
        assert caught.value.filename == str(tmp_path / "a")
        assert [each.name for each in tmp_path.iterdir()] == ["a"]


class TestChecks:
    def test_pipes_are_refused_at_once(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(LogpolarError, match="is a pipe or a device"):
            check_output(tmp_path / "pipe")

    def test_place(self, tmp_path):
        (tmp_path / "file").touch()
        check_place(tmp_path / "new")
        check_place(tmp_path / "file")
        with pytest.raises(LogpolarError, match="is a folder, not a file"):
            check_place(tmp_path)
        with pytest.raises(LogpolarError, match="does not exist"):
            check_place(tmp_path / "none" / "new")
        with pytest.raises(ImageError, match="is not a folder"):
            check_place(tmp_path / "file" / "new", ImageError)

    def test_output_is_not_an_input(self, tmp_path):
        (tmp_path / "in").write_text("x")
        (tmp_path / "link").symlink_to(tmp_path / "in")
        for path in ("in", "link"):
            with pytest.raises(LogpolarError, match="would overwrite an input"):
                check_output(tmp_path / path, tmp_path / "other", tmp_path / "in")
        assert (tmp_path / "in").read_text() == "x"

    def test_output_is_not_changed_by_the_check(self, tmp_path):
        (tmp_path / "old").write_text("x")
        check_output(tmp_path / "old")
        check_output(tmp_path / "new")
        assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("old", "x")]

    def test_output_that_cannot_be_written(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Path, "open", full_disk)
        with pytest.raises(LogpolarError, match=r"new: cannot be written \(no space left on device\)"):
            check_output(tmp_path / "new")

    @pytest.mark.parametrize("name", ["a.png", "a.JPG", "a.jpeg", "a.webp"])
    def test_pictures(self, tmp_path, name):
        check_picture(tmp_path / name)

    @pytest.mark.parametrize("name", ["a", "a.gif", "png", "a.png.txt"])
    def test_endings_that_are_no_pictures(self, tmp_path, name):
        with pytest.raises(LogpolarError, match="pictures are written as"):
            check_picture(tmp_path / name)
