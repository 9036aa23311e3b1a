from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image as PillowImage

from damaged_bytes import one_line, try_damaged
from logpolar.errors import ImageError
from logpolar.images import (
    decode_gray,
    downscale,
    encode_gray,
    read_downscaled,
    read_gray,
    read_image,
    reading,
    to_bytes,
    to_gray,
)


def write(path: Path, image: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image)
    return path


class TestReading:
    def test_png_comes_back_as_it_was_written(self, tmp_path, small):
        np.testing.assert_array_equal(read_image(write(tmp_path / "photo.png", small)), small)

    def test_sixteen_bit_stays_sixteen_bit(self, tmp_path, small):
        deep = small.astype(np.uint16) * 257
        image = read_image(write(tmp_path / "deep.png", deep))
        assert image.dtype == np.uint16
        np.testing.assert_array_equal(image, deep)

    def test_alpha_is_read_and_then_ignored(self, tmp_path, small):
        alpha = np.arange(small.shape[0] * small.shape[1]).reshape(small.shape[:2]) % 256
        path = write(tmp_path / "alpha.png", np.dstack([small, alpha.astype(np.uint8)]))
        assert read_image(path).shape == (*small.shape[:2], 4)
        np.testing.assert_array_equal(read_gray(path), to_gray(small))

    def test_float_tiff_in_unit_range_keeps_its_values(self, tmp_path, small):
        gray = to_gray(small) * np.float32(0.5)
        PillowImage.fromarray(gray).save(tmp_path / "float.tif")
        np.testing.assert_array_equal(read_gray(tmp_path / "float.tif"), gray)

    def test_cmyk_jpeg_looks_like_the_photo(self, tmp_path, small):
        PillowImage.fromarray(small[:, :, ::-1]).convert("CMYK").save(tmp_path / "cmyk.jpg", quality=95)
        assert np.abs(read_gray(tmp_path / "cmyk.jpg") - to_gray(small)).mean() < 0.05

    def test_palette_image_looks_like_the_photo(self, tmp_path, small):
        PillowImage.fromarray(small[:, :, ::-1]).convert("P").save(tmp_path / "palette.png")
        assert np.abs(read_gray(tmp_path / "palette.png") - to_gray(small)).mean() < 0.05

    def test_exif_orientation_is_not_applied(self, tmp_path, small):
        picture = PillowImage.fromarray(small[:, :, ::-1])
        exif = picture.getexif()
        exif[0x0112] = 6
        picture.save(tmp_path / "turned.jpg", exif=exif)
        assert read_image(tmp_path / "turned.jpg").shape == small.shape

    def test_errors_name_the_file_and_the_reason(self, tmp_path):
        for name, content, reason in (
            ("missing.jpg", None, "no such file"),
            ("empty.jpg", b"", "empty"),
            ("text.jpg", b"this is no image", "not an image"),
        ):
            if content is not None:
                (tmp_path / name).write_bytes(content)
            with pytest.raises(ImageError, match=rf"{name}.*{reason}"):
                read_image(tmp_path / name)

    def test_folder_in_place_of_a_file(self, tmp_path):
        with pytest.raises(ImageError, match="is a folder"):
            read_image(tmp_path)

    @pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
    def test_truncated_jpeg_is_refused_without_a_word_of_the_decoder(self, tmp_path, small, capfd, share):
        data = write(tmp_path / "whole.jpg", small).read_bytes()
        cut = tmp_path / "cut.jpg"
        cut.write_bytes(data[: int(share * len(data))])
        with pytest.raises(ImageError, match=r"cut\.jpg: not an image, or a damaged one"):
            read_image(cut)
        assert capfd.readouterr().err == ""

    def test_nan_in_a_file_is_counted_and_the_file_named(self, tmp_path):
        gray = np.zeros((4, 5), np.float32)
        gray[1, 2] = np.nan
        PillowImage.fromarray(gray).save(tmp_path / "hole.tif")
        with pytest.raises(ImageError, match=r"hole\.tif: 1 of 20 values are NaN"):
            read_gray(tmp_path / "hole.tif")

    def test_log_level_of_opencv_is_left_as_it_was(self, tmp_path):
        before = cv2.utils.logging.getLogLevel()
        (tmp_path / "text.jpg").write_text("no image")
        with pytest.raises(ImageError):
            read_image(tmp_path / "text.jpg")
        assert cv2.utils.logging.getLogLevel() == before


class TestGray:
    def test_eight_bit_is_divided_by_255(self):
        np.testing.assert_allclose(to_gray(np.array([[0, 51, 255]], np.uint8)), [[0, 0.2, 1]], atol=1e-6)

    @pytest.mark.parametrize(
        ("largest", "full"), [(1023, 1023), (1024, 4095), (4095, 4095), (16000, 16383), (60000, 65535)]
    )
    def test_sixteen_bit_range_is_the_smallest_that_fits(self, largest, full):
        gray = to_gray(np.array([[0, largest]], np.uint16))
        np.testing.assert_allclose(gray, [[0, largest / full]], atol=1e-6)

    def test_float_in_unit_range_is_kept(self):
        np.testing.assert_array_equal(to_gray(np.array([[0.25, 0.5]])), np.array([[0.25, 0.5]], np.float32))

    def test_other_float_is_stretched(self):
        np.testing.assert_allclose(to_gray(np.array([[-10.0, 0, 30]])), [[0, 0.25, 1]])

    def test_constant_float_outside_unit_range_is_black(self):
        assert to_gray(np.full((2, 2), 7.0)).tolist() == [[0, 0], [0, 0]]

    def test_bool_is_black_and_white(self):
        assert to_gray(np.array([[True, False]])).tolist() == [[1, 0]]

    def test_single_channel_and_gray_agree(self, small):
        gray = small[:, :, 1]
        np.testing.assert_array_equal(to_gray(gray[:, :, None]), to_gray(gray))

    def test_colour_is_weighted_as_bgr(self):
        blue, red = (to_gray(np.array([[colour]], np.uint8))[0, 0] for colour in ([255, 0, 0], [0, 0, 255]))
        assert (round(float(blue), 2), round(float(red), 2)) == (0.11, 0.3)

    def test_colour_is_weighted_as_rgb_if_told_so(self, small):
        np.testing.assert_array_equal(to_gray(small[:, :, ::-1], color="rgb"), to_gray(small))
        alpha = np.dstack([small[:, :, ::-1], small[:, :, 0]])
        np.testing.assert_array_equal(to_gray(alpha, color="rgb"), to_gray(small))

    def test_unknown_channel_order_is_refused(self, small):
        with pytest.raises(ValueError, match="'bgr' or 'rgb', not 'gbr'"):
            to_gray(small, color="gbr")

    @pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "CMYK"])
    def test_pil_images_are_rgb_without_being_told(self, small, mode):
        picture = PillowImage.fromarray(small[:, :, ::-1]).convert(mode)
        tolerance = 0.05 if mode == "P" else 0.002
        assert np.abs(to_gray(picture) - to_gray(small)).mean() < tolerance

    @pytest.mark.parametrize("mode", ["1", "L", "LA", "F"])
    def test_gray_pil_images(self, small, mode):
        picture = PillowImage.fromarray(small[:, :, 0]).convert(mode)
        expected = np.asarray(picture.convert("L"), np.float32) / 255
        if mode == "F":
            expected = (expected - expected.min()) / np.ptp(expected)
        np.testing.assert_allclose(to_gray(picture), expected, atol=1e-6)

    def test_result_is_contiguous_float32(self, photo):
        gray = to_gray(photo[::2, ::3])
        assert gray.dtype == np.float32
        assert gray.flags.c_contiguous

    @pytest.mark.parametrize(
        ("image", "reason"),
        [
            (np.zeros((0, 4), np.uint8), "no pixels"),
            (np.zeros(5, np.uint8), "shape"),
            (np.zeros((4, 4, 2), np.uint8), "shape"),
            (np.zeros((4, 4), np.int32), "int32"),
            (np.array([[0, np.inf]]), "infinite"),
        ],
    )
    def test_other_arrays_are_refused(self, image, reason):
        with pytest.raises(ImageError, match=reason):
            to_gray(image)

    def test_bytes_are_the_inverse(self, small):
        gray = small[:, :, 0]
        np.testing.assert_array_equal(to_bytes(to_gray(gray)), gray)


class TestEncoding:
    """8 bit gray images as they are kept inside other files."""

    @pytest.fixture
    def pixels(self, small):
        return to_bytes(to_gray(small))

    def test_quality_100_is_a_png_without_loss(self, pixels):
        data = encode_gray(pixels, 100)
        assert data.startswith(b"\x89PNG")
        np.testing.assert_array_equal(decode_gray(data), pixels)

    @pytest.mark.parametrize("quality", [1, 50, 99])
    def test_any_other_is_a_jpeg(self, pixels, quality):
        data = encode_gray(pixels, quality)
        assert data.startswith(b"\xff\xd8")
        assert decode_gray(data).shape == pixels.shape

    def test_quality_is_that_of_the_jpeg(self, pixels):
        low, high = (encode_gray(pixels, quality) for quality in (40, 95))
        errors = [np.abs(decode_gray(data).astype(float) - pixels).mean() for data in (low, high)]
        assert len(low) < len(high) / 2
        assert errors[1] < errors[0] / 2
        assert errors[1] < 2

    def test_both_kinds_of_bytes_are_decoded(self, pixels):
        data = encode_gray(pixels, 100)
        np.testing.assert_array_equal(decode_gray(np.frombuffer(data, np.uint8)), decode_gray(data))

    @pytest.mark.parametrize("ending", [".png", ".jpg"])
    def test_colour_becomes_gray(self, small, ending):
        gray = decode_gray(cv2.imencode(ending, small, [cv2.IMWRITE_JPEG_QUALITY, 98])[1])
        assert gray.dtype == np.uint8
        assert gray.shape == small.shape[:2]
        assert np.abs(gray.astype(float) - to_bytes(to_gray(small))).mean() < 2

    def test_exif_orientation_is_not_applied(self, tmp_path, small):
        picture = PillowImage.fromarray(small[:, :, ::-1])
        exif = picture.getexif()
        exif[0x0112] = 6
        picture.save(tmp_path / "turned.jpg", exif=exif)
        assert decode_gray((tmp_path / "turned.jpg").read_bytes()).shape == small.shape[:2]

    @pytest.mark.parametrize(
        "data",
        [
            b"this is no image",
            b"\xff\xd8\xff",
            b"",
        ],
    )
    def test_garbage_is_refused(self, data):
        with pytest.raises(ImageError, match="not an image"):
            decode_gray(data)

    @pytest.mark.parametrize("quality", [90, 100])
    def test_half_an_image_is_refused_without_a_word_of_the_decoder(self, pixels, quality, capfd):
        data = encode_gray(pixels, quality)
        with pytest.raises(ImageError, match="damaged"):
            decode_gray(data[: len(data) // 2])
        assert capfd.readouterr().err == ""


def test_the_range_of_16_bit_colour_is_that_of_its_channels():
    blue = np.full((1, 1, 3), (4000, 0, 0), np.uint16)  # 12 bit; its gray value alone would pass for 10 bit
    assert to_gray(blue)[0, 0] == pytest.approx(0.114 * 4000 / 4095, abs=2e-3)


def test_values_too_large_for_float32_are_refused_without_a_warning(recwarn):
    with pytest.raises(ImageError, match="infinite"):
        to_gray(np.full((2, 2), 1e300))
    assert not recwarn.list


def test_threads_that_decode_leave_stderr_alone(tmp_path, photo, capfd):
    path = tmp_path / "cut.png"
    path.write_bytes(cv2.imencode(".png", photo)[1].tobytes()[:9000])

    def read(_):
        with pytest.raises(ImageError):
            read_image(path)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(60)))
    os.write(2, b"still here")
    assert capfd.readouterr().err == "still here"


class TestLargeImages:
    """As if every image were large."""

    @pytest.fixture
    def photo_of(self, monkeypatch, tmp_path):
        monkeypatch.setattr(reading, "_LARGE", 1000)
        monkeypatch.setattr(reading, "_STRIP", 7)

        def make(ending, kind=np.uint8, height=120):
            smooth = cv2.GaussianBlur(np.random.default_rng(0).random((height, 200)), (0, 0), 3)
            values = (smooth - smooth.min()) / np.ptp(smooth)
            pixels = values.astype(kind) if kind is np.float32 else (np.iinfo(kind).max * values).astype(kind)
            path = tmp_path / f"a{ending}"
            cv2.imwrite(str(path), pixels if ending == ".jpg" else cv2.merge([pixels] * 3))
            return path

        return make

    @pytest.mark.parametrize(
        ("ending", "kind"), [(".png", np.uint8), (".png", np.uint16), (".tif", np.float32), (".jpg", np.uint8)]
    )
    def test_the_same_up_to_rounding(self, photo_of, ending, kind):
        path = photo_of(ending, kind)
        small, size = read_downscaled(path, 90)
        assert size == (200, 120)
        expected = downscale(to_gray(read_image(path)), 90)
        assert small.shape == expected.shape == (54, 90)
        assert np.abs(small - expected).max() < (0.03 if ending == ".jpg" else 0.003)

    def test_sizes_that_a_jpeg_cannot_be_reduced_by(self, photo_of):
        small, size = read_downscaled(photo_of(".jpg", height=121), 20)
        assert size == (200, 121)
        assert small.shape == (12, 20)

    @pytest.mark.parametrize("large", [0, 10**6])
    @pytest.mark.parametrize(
        ("max_size", "factor", "side"),
        [(None, 0.25, 50), (40, 0.25, 40), (90, 0.25, 50), (90, 2.0, 90), (None, 1, 200)],
    )
    def test_no_larger_than_a_fraction(self, photo_of, monkeypatch, large, max_size, factor, side):
        monkeypatch.setattr(reading, "_LARGE", large)
        small, size = read_downscaled(photo_of(".png"), max_size, factor)
        assert size == (200, 120)
        assert max(small.shape) == side

    def test_without_downscaling(self, photo_of):
        path = photo_of(".png")
        np.testing.assert_allclose(read_gray(path), to_gray(read_image(path)), atol=0.003)

    @pytest.mark.parametrize("read", [read_image, read_gray])
    def test_more_pixels_than_the_limit(self, photo_of, monkeypatch, read):
        path = photo_of(".png")
        monkeypatch.setenv("LOGPOLAR_MAX_MEGAPIXELS", "0.02")
        with pytest.raises(ImageError, match=r"a\.png: has 200 x 120 pixels, more than the limit of 0\.02 megapixels"):
            read(path)
        monkeypatch.setenv("LOGPOLAR_MAX_MEGAPIXELS", "0.024")
        read(path)
        monkeypatch.setenv("LOGPOLAR_MAX_MEGAPIXELS", "many")
        with pytest.raises(ImageError, match="must be a number of megapixels"):
            read(path)

    def test_a_header_that_announces_too_much(self, tmp_path):
        data = bytearray(cv2.imencode(".png", np.zeros((8, 8), np.uint8))[1].tobytes())
        data[16:24] = b"\0\1\0\0" * 2
        with pytest.raises(ImageError, match="65536 x 65536 pixels, more than the limit"):
            decode_gray(bytes(data))


@pytest.mark.parametrize("ending", [".jpg", ".png", ".tif", ".webp"])
def test_damaged_bytes_are_an_image_or_an_error_in_one_line(tmp_path, monkeypatch, ending):
    monkeypatch.setenv("LOGPOLAR_MAX_MEGAPIXELS", "1")
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)

    def attempt(data):
        path = tmp_path / f"a{ending}"
        path.write_bytes(data)
        try:
            gray, size = read_downscaled(path, 20)
        except ImageError as error:
            assert one_line(error)
        else:
            assert max(gray.shape) <= 20
            assert min(size) > 0

    try_damaged(cv2.imencode(ending, pixels)[1].tobytes(), attempt)


def test_the_limit_holds_where_the_size_comes_late(tmp_path, monkeypatch):
    """The directory of a TIFF file may follow its pixels."""
    path = tmp_path / "a.tif"
    cv2.imwrite(str(path), np.zeros((1100, 1000), np.uint8), [cv2.IMWRITE_TIFF_COMPRESSION, 1])
    monkeypatch.setenv("LOGPOLAR_MAX_MEGAPIXELS", "1")
    with pytest.raises(ImageError, match="1000 x 1100 pixels, more than the limit"):
        read_image(path)
