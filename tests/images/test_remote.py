from __future__ import annotations

import io
import os
import sys
import tarfile
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cv2
import numpy as np
import pytest

from logpolar.errors import ImageError, MissingExtraError
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

    @pytest.mark.parametrize("size", [2**63, 2**86, -(2**20)])
    def test_sizes_that_lie(self, tmp_path, photos, size):
        """In the binary notation of GNU tar."""
        data = bytearray(make_tar(tmp_path / "a.tar", photos).read_bytes())
        data[124:136] = (b"\x80" if size > 0 else b"\xff") + (size % 2**88).to_bytes(11, "big")
        data[148:156] = b" " * 8
        data[148:156] = b"%06o\0 " % sum(data[:512])
        (tmp_path / "a.tar").write_bytes(data)
        with pytest.raises(ImageError, match=r"a\.tar: cannot be read \(not a tar file"):
            find_sources([tmp_path / "a.tar"])

    @pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
    def test_pipes_are_refused(self, tmp_path):
        os.mkfifo(tmp_path / "a.tar")
        with pytest.raises(ImageError, match=r"a\.tar: is a pipe or a device"):
            find_sources([tmp_path / "a.tar"])

    def test_compressed_cut_off_or_missing(self, tmp_path, photos):
        with pytest.raises(ImageError, match=r"not a tar file, a compressed or a damaged one"):
            find_sources([make_tar(tmp_path / "x.tar", photos, "w:gz")])
        with pytest.raises(ImageError, match=r"none\.tar: no such file"):
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

    def test_without_the_extra_it_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "fsspec.core", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'logpolar\[remote\]'"):
            find_sources(["s3://bucket/photos"])


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


class FaultyProxy(BaseHTTPRequestHandler):
    """Passes requests for objects on to ``server.target``, after the faults that are due."""

    def do_GET(self):
        fault = self.server.faults.pop(0) if self.server.faults and self.path.endswith(".png") else None
        connection = HTTPConnection(*self.server.target)
        connection.request(self.command, self.path, headers=dict(self.headers))
        answer = connection.getresponse()
        data = answer.read()
        self.send_response(fault if isinstance(fault, int) else answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[: len(data) // 2] if fault == "cut" else data)
        self.close_connection = fault == "cut"

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


class TestS3:
    """Against moto's server on loopback."""

    @pytest.fixture(scope="class")
    @classmethod
    def proxy(cls, photos):
        pytest.importorskip("s3fs", reason="needs the extra 'remote'")
        server = pytest.importorskip("moto.server", reason="needs moto[server]")
        moto = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        moto.start()
        proxy = ThreadingHTTPServer(("127.0.0.1", 0), FaultyProxy)
        proxy.target, proxy.faults = moto.get_host_and_port(), []
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        with pytest.MonkeyPatch.context() as patch:
            keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_DEFAULT_REGION": "us-east-1"}
            for name, value in {**keys, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.server_port}"}.items():
                patch.setenv(name, value)
            import boto3

            client = boto3.client("s3", endpoint_url="http://{}:{}".format(*proxy.target))
            client.create_bucket(Bucket="photos")
            for name, data in photos.items():
                client.put_object(Bucket="photos", Key=f"holiday/{name}", Body=data)
            yield proxy
        proxy.shutdown()
        moto.stop()

    def test_folders_and_failures_that_pass(self, proxy, photos):
        found = find_sources(["s3://photos/holiday"])
        assert list(found) == list(photos)
        proxy.faults = [503, "cut", 503]
        assert {name: image.read() for name, image in found.items()} == photos
        assert proxy.faults == []

    def test_others_are_reported(self, proxy, photos, monkeypatch):
        monkeypatch.setattr(remote, "_ATTEMPTS", 2)
        image = RemoteImage("s3://photos/holiday/b.png", len(photos["b.png"]))
        proxy.faults = ["cut"] * 50
        with pytest.raises(ImageError, match=r"s3://photos/holiday/b\.png: cannot be read \(tried 2 times"):
            image.read()
        proxy.faults = []
        with pytest.raises(ImageError, match="not found"):
            RemoteImage("s3://photos/holiday/none.png", 1).read()
        with pytest.raises(ImageError, match="not found"):
            find_sources(["s3://nowhere/holiday"])
