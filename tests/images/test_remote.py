from __future__ import annotations

import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cv2
import numpy as np
import pytest

from logpolar.errors import ImageError
from logpolar.images import read_downscaled, remote
from logpolar.images.remote import FetchedImage, RemoteImage, fetched, find_sources, is_url


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(remote, "_FIRST_WAIT", 0.001)


@pytest.fixture(scope="module")
def photos() -> dict[str, bytes]:
    """Three encoded images of one gray value each."""
    made = {
        name: np.full((8, 12), value, np.uint8) for name, value in (("a.png", 40), ("b.png", 80), ("deep/c.png", 120))
    }
    return {name: cv2.imencode(".png", pixels)[1].tobytes() for name, pixels in made.items()}


def make_tar(path: Path, photos: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as file:
        for name, data in {**photos, "a.json": b"{}"}.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            file.addfile(about, io.BytesIO(data))
    return path


class TestTar:
    def test_images_are_ranges_of_bytes(self, tmp_path, photos):
        make_tar(tmp_path / "0001.tar", photos)
        found = find_sources([tmp_path / "0001.tar"])
        assert list(found) == ["0001/a.png", "0001/b.png", "0001/deep/c.png"]
        assert [image.read() for image in found.values()] == list(photos.values())
        gray, size = read_downscaled(found["0001/b.png"], None)
        assert size == (12, 8) and np.allclose(gray, 80 / 255)

    def test_globs_and_files_beside_them(self, tmp_path, photos):
        for number in (1, 2):
            make_tar(tmp_path / f"{number}.tar", photos)
        (tmp_path / "x.png").write_bytes(photos["a.png"])
        found = find_sources([tmp_path / "x.png", tmp_path / "*.tar"])
        assert len(found) == 7 and found["x.png"] == tmp_path / "x.png"

    @pytest.mark.parametrize("content", [b"", b"no tar" * 200])
    def test_that_is_none_is_an_error(self, tmp_path, content):
        (tmp_path / "x.tar").write_bytes(content)
        with pytest.raises(ImageError, match=r"x\.tar: (cannot be read \(not a tar file|no images)"):
            find_sources([tmp_path / "x.tar"])

    def test_compressed_cut_off_or_missing(self, tmp_path, photos):
        with pytest.raises(ImageError, match=r"not a tar file, a compressed or a damaged one"):
            find_sources([make_tar(tmp_path / "x.tar", photos, "w:gz")])
        with pytest.raises(ImageError, match=r"none\.tar: cannot be read"):
            find_sources([tmp_path / "none.tar"])
        image = find_sources([make_tar(tmp_path / "y.tar", photos)])["y/deep/c.png"]
        (tmp_path / "y.tar").write_bytes((tmp_path / "y.tar").read_bytes()[: image.start + 10])
        (found,) = fetched([image])
        with pytest.raises(ImageError, match=r"y\.tar: deep/c\.png: cannot be read \(OSError: 10 of \d+ bytes"):
            found.read()


@pytest.fixture(scope="module")
def server(photos):
    """A file server on loopback; ``server.faults`` are the answers to give first: a status, or "cut"."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.do_GET(body=False)

        def do_GET(self, body=True):
            name = self.path.lstrip("/")
            fault = server.faults.pop(0) if server.faults and body else None
            data = server.files.get(name)
            if isinstance(fault, int) or data is None:
                self.send_error(fault or 404)
                return
            status, span = 200, self.headers.get("Range")
            if span:
                first, last = span.removeprefix("bytes=").split("-")
                data, status = data[int(first) : int(last) + 1], 206
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Accept-Ranges", "bytes")
            self.end_headers()
            if body:
                self.wfile.write(data[: len(data) // 2] if fault == "cut" else data)
                self.close_connection = fault == "cut"

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.faults, server.url = [], f"http://127.0.0.1:{server.server_port}"
    links = "".join(f'<a href="{name}">{name}</a>' for name in photos)
    server.files = {**photos, "folder/": links.encode(), **{f"folder/{name}": data for name, data in photos.items()}}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.mark.usefixtures("server")
class TestHttp:
    @pytest.fixture(autouse=True)
    def needs_the_extra(self):
        pytest.importorskip("fsspec", reason="needs the extra 'remote'")
        pytest.importorskip("aiohttp", reason="needs the extra 'remote'")

    def test_images_folders_and_tars(self, server, photos, tmp_path):
        server.files["0001.tar"] = make_tar(tmp_path / "0001.tar", photos).read_bytes()
        assert find_sources([f"{server.url}/a.png"])["a.png"].read() == photos["a.png"]
        folder = find_sources([f"{server.url}/folder/"])
        assert {name: image.read() for name, image in folder.items()} == photos
        tar = find_sources([f"{server.url}/0001.tar"])
        assert {name.removeprefix("0001/"): image.read() for name, image in tar.items()} == photos

    @pytest.mark.parametrize("faults", [[503], [503, "cut", 500], ["cut", "cut"]])
    def test_failures_that_pass_are_tried_again(self, server, photos, faults):
        image = RemoteImage(f"{server.url}/b.png", len(photos["b.png"]))
        server.faults = list(faults)
        assert image.read() == photos["b.png"]
        assert server.faults == []

    def test_others_are_reported(self, server, photos):
        server.faults = [503] * 4
        with pytest.raises(ImageError, match=r"b\.png: cannot be read \(tried 4 times: .*503"):
            RemoteImage(f"{server.url}/b.png", len(photos["b.png"])).read()
        server.faults = [403]
        with pytest.raises(ImageError, match=r"b\.png: refused \(.*403.*credentials"):
            RemoteImage(f"{server.url}/b.png", 1).read()
        assert server.faults == []
        with pytest.raises(ImageError, match=r"none\.png: not found"):
            find_sources([f"{server.url}/none.png"])

    def test_a_server_that_does_not_answer(self):
        with pytest.raises(ImageError, match=r"tried 4 times"):
            find_sources(["http://127.0.0.1:1/x.png"])


class TestUrls:
    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("s3://bucket/x", True),
            ("HTTPS://x/y", True),
            ("photos/a.jpg", False),
            ("C:\\photos", False),
            ("a:b", False),
        ],
    )
    def test_are_told_from_paths(self, path, expected):
        assert is_url(path) == expected

    def test_of_unknown_kinds_are_refused(self):
        pytest.importorskip("fsspec", reason="needs the extra 'remote'")
        with pytest.raises(ImageError, match=r"nonsense://x: no kind of URL that can be read"):
            find_sources(["nonsense://x"])


class TestFetched:
    def test_order_is_kept_and_few_are_in_flight(self, monkeypatch, tmp_path):
        started = []

        def read(image):
            started.append(image.url)
            return image.url.encode()

        monkeypatch.setattr(RemoteImage, "read", read)
        images = [RemoteImage(f"x://{number}", None) for number in range(20)]
        mixed = [*images[:3], tmp_path, *images[3:]]
        found = []
        for image in fetched(mixed):
            found.append(image)
            assert len(started) <= len(found) + remote._IN_FLIGHT + 1
        assert [image if isinstance(image, Path) else image.read().decode() for image in found] == [
            image if isinstance(image, Path) else image.url for image in mixed
        ]

    def test_a_failure_waits_until_it_is_its_turn(self):
        error = ImageError("refused")
        with pytest.raises(ImageError, match="refused"):
            FetchedImage("x", error).read()
