from __future__ import annotations

import cv2
import numpy as np
import pytest
from PIL import Image

from logpolar.errors import ImageError, StorageError
from logpolar.images import read_image
from logpolar.images.exif import FOCAL_LENGTH, read_exif
from logpolar.images.preparation import extract_frames, prepare_photos
from logpolar.settings import MEGAPIXELS_VARIABLE

GRAY = cv2.GaussianBlur(np.random.default_rng(0).integers(0, 255, (48, 64), dtype=np.uint8), (0, 0), 2)


def test_what_colmap_reads_is_left_alone(tmp_path):
    for name in ("a.jpg", "b.tif", "notes.txt", "raw.dng", "more.dng"):
        cv2.imwrite(str(tmp_path / name), GRAY) if name[0] in "ab" else (tmp_path / name).touch()
    made = prepare_photos(tmp_path, tmp_path / "out")
    assert (made.folder, made.converted, dict(made.unread)) == (tmp_path, 0, {".txt": 1, ".dng": 2})
    assert not (tmp_path / "out").exists()


def test_other_formats_are_converted_once(tmp_path):
    photos, out = tmp_path / "photos", tmp_path / "out"
    (photos / "deep").mkdir(parents=True)
    exif = Image.Exif()
    exif.get_ifd(0x8769)[FOCAL_LENGTH] = 4.5
    Image.fromarray(GRAY).convert("RGB").save(photos / "deep" / "a.webp", exif=exif, lossless=True)
    cv2.imwrite(str(photos / "b.jp2"), GRAY)
    cv2.imwrite(str(photos / "c.png"), GRAY)
    (photos / "d.webp").write_text("no photo")
    made = prepare_photos(photos, out)
    assert (made.folder, made.converted, list(made.failed)) == (out, 2, ["d.webp"])
    assert "d.webp: not an image" in made.failed["d.webp"]
    names = ["b.jp2.jpg", "c.png", "deep/a.webp.jpg"]
    assert sorted(path.relative_to(out).as_posix() for path in out.rglob("*.*")) == [*names, "source.json"]
    for name in names:
        pixels = read_image(out / name)
        assert np.abs(pixels.reshape(48, 64, -1)[..., 0].astype(int) - GRAY).mean() < 3
    assert read_exif(out / "deep" / "a.webp.jpg")[FOCAL_LENGTH] == 4.5
    before = (out / "b.jp2.jpg").stat().st_mtime_ns
    (photos / "c.png").unlink()
    prepare_photos(photos, out)
    assert (out / "b.jp2.jpg").stat().st_mtime_ns == before
    assert not (out / "c.png").exists()


def test_sixteen_bits(tmp_path):
    (tmp_path / "photos").mkdir()
    cv2.imwrite(str(tmp_path / "photos" / "a.jp2"), GRAY.astype(np.uint16) * 257)
    prepare_photos(tmp_path / "photos", tmp_path / "out")
    found = read_image(tmp_path / "out" / "a.jp2.jpg")
    assert found.dtype == np.uint8
    assert np.abs(found.astype(int) - GRAY).mean() < 3


@pytest.fixture
def video(tmp_path):
    """20 frames at 10 a second; the third of each five is sharp."""
    path = tmp_path / "v.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
    for number in range(20):
        frame = np.full((48, 64), 10 * number, np.uint8)
        frame[::4] += 40 if number % 5 == 2 else 3
        writer.write(cv2.cvtColor(frame, cv2.COLOR_GRAY2BGR))
    writer.release()
    return path


def test_the_sharpest_frame_of_each_window(video, tmp_path):
    made = prepare_photos(video, tmp_path / "out", fps=2)
    assert (made.folder, made.frames) == (tmp_path / "out", 4)
    for number in range(4):
        frame = read_image(tmp_path / "out" / f"frame_{number:06}.jpg")
        assert abs(int(np.median(frame[2::4])) - 10 * (5 * number + 2)) < 5
    before = (tmp_path / "out" / "frame_000000.jpg").stat().st_mtime_ns
    assert extract_frames(video, tmp_path / "out", 2) == 4
    assert (tmp_path / "out" / "frame_000000.jpg").stat().st_mtime_ns == before
    assert extract_frames(video, tmp_path / "out", 5) == 10


def test_frames_of_another_time_are_removed(video, tmp_path):
    assert extract_frames(video, tmp_path / "out", 5) == 10
    assert extract_frames(video, tmp_path / "out", 2) == 4
    assert sorted(path.name for path in (tmp_path / "out").glob("*.jpg"))[-1] == "frame_000003.jpg"
    (tmp_path / "photos").mkdir()
    cv2.imwrite(str(tmp_path / "photos" / "a.webp"), GRAY)
    prepare_photos(tmp_path / "photos", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.webp.jpg", "source.json"]
    assert extract_frames(video, tmp_path / "out", 2) == 4
    assert len(list((tmp_path / "out").glob("frame_*.jpg"))) == 4


@pytest.mark.parametrize("record", ["no JSON", "[" * 1000, "[1]", "{}"])
def test_a_damaged_record_makes_the_folder_someone_elses(record, video, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "source.json").write_text(record)
    with pytest.raises(StorageError, match="out: was not made by this command"):
        prepare_photos(video, tmp_path / "out")


@pytest.mark.parametrize("source", ["photos", "proj/photos", "proj/photos/deep", "proj", "v.avi"])
def test_photos_of_the_user_stay_whatever_the_output(source, video, tmp_path):
    """Where converted photos would go there are photos already: here those to be read, there some from elsewhere."""
    for folder in ("photos", "proj/photos/deep"):
        (tmp_path / folder).mkdir(parents=True)
        for name in ("a.webp", "b.png"):
            cv2.imwrite(str(tmp_path / folder / name), GRAY)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    with pytest.raises(StorageError, match=r"photos: (was not made by|converted photos would lie)"):
        prepare_photos(tmp_path / source, tmp_path / "proj" / "photos")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


@pytest.mark.parametrize("content", [b"no video", b"", b"ffconcat version 1.0\nfile v.avi\n", b"#EXTM3U\nv.avi\n"])
def test_no_video_and_playlists_of_other_files(content, video, tmp_path):
    (tmp_path / "v.mp4").write_bytes(content)
    extract_frames(video, tmp_path / "out", 2)
    before = sorted((tmp_path / "out").iterdir())
    with pytest.raises(ImageError, match=r"v\.mp4: no frames"):
        prepare_photos(tmp_path / "v.mp4", tmp_path / "out")
    assert sorted((tmp_path / "out").iterdir()) == before


def test_frames_above_the_limit(video, tmp_path, monkeypatch):
    monkeypatch.setenv(MEGAPIXELS_VARIABLE, "0.001")
    with pytest.raises(ImageError, match=r"v\.avi: has 64 x 48 pixels, more than the limit"):
        prepare_photos(video, tmp_path / "out")
