"""Images that are no files of this machine: behind URLs (fsspec: S3, Google Cloud, HTTP), and in tar files.

Tar files are those of WebDataset: members in any folders, images among others. Only their headers are read to list
them; each image is then a range of bytes, which whoever describes it fetches by itself.

A fetch that fails, or brings too few bytes, is repeated a few times, unless the answer was no.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import random
import re
import tarfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from logpolar.errors import ImageError, LogpolarError, MissingExtraError, in_one_line
from logpolar.images.folders import IMAGE_SUFFIXES, find_images
from logpolar.storage.inputs import check_regular

Result = TypeVar("Result")

_ATTEMPTS = 4
_FIRST_WAIT = 0.5
"""Seconds before the second attempt; twice as long before each further one, with a random part."""

_IN_FLIGHT = 4
"""Images that are fetched ahead of their use."""

_BLOCK = 2**16
"""Bytes to fetch at a time while the headers of a tar file are read."""

_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_LARGEST = 2**31
_PATIENCE = 60
"""Seconds that a server may be silent."""


@dataclass(frozen=True)
class RemoteImage:
    """An image behind a URL, or in a tar file, which may be behind one."""

    url: str
    size: int | None  # bytes, if known
    start: int | None = None  # first byte in a tar file
    member: str | None = None

    def __str__(self) -> str:
        return self.url if self.member is None else f"{self.url}: {self.member}"

    def read(self) -> bytes:
        """The encoded image."""
        if (self.size or 0) > _LARGEST:
            raise ImageError(f"{self}: has {(self.size or 0) / 1e6:.0f} MB; images have {_LARGEST / 1e6:.0f} at most")
        if not is_url(self.url):
            with Path(self.url).open("rb") as file:
                file.seek(self.start or 0)
                return self._whole(file.read(self.size or 0))
        end = None if self.start is None or self.size is None else self.start + self.size

        def fetch() -> bytes:
            system, path = _opened(self.url)
            return self._whole(system.cat_file(path, start=self.start, end=end))

        return _persistently(fetch, str(self))

    def _whole(self, data: bytes) -> bytes:
        if self.size is not None and len(data) != self.size:
            raise OSError(f"{len(data)} of {self.size} bytes arrived")
        return data


@dataclass(frozen=True)
class FetchedImage:
    """An encoded image in memory, or why there is none."""

    name: str
    data: bytes | LogpolarError

    def __str__(self) -> str:
        return self.name

    def read(self) -> bytes:
        if isinstance(self.data, LogpolarError):
            raise self.data
        return self.data


def is_url(path: str | Path) -> bool:
    return bool(_URL.match(str(path)))


def find_sources(paths: Iterable[str | Path]) -> dict[str, Path | RemoteImage]:
    """``find_images``, also in tar files and behind URLs of images, folders, tar files and globs.

    A member of a tar file is called as the file, without its ending, and the member: ``shard-0001/cat.jpg``.
    """
    found: dict[str, Path | RemoteImage] = {}
    local: list[str | Path] = []
    for path in paths:
        remote = _behind(str(path)) if is_url(path) else _in_tars(str(path))
        if remote is None:
            local.append(path)
        for name, image in remote or ():
            if name in found and found[name] != image:
                raise ImageError(f"two images would both be called '{name}': {found[name]} and {image}")
            found[name] = image
    own: dict[str, Path | RemoteImage] = {**(find_images(local) if local else {})}
    if both := sorted(own.keys() & found.keys()):
        raise ImageError(f"two images would both be called '{both[0]}': {own[both[0]]} and {found[both[0]]}")
    return dict(sorted({**found, **own}.items()))


def fetched(images: Iterable[Path | RemoteImage]) -> Iterator[Path | FetchedImage]:
    """The same images in their order; remote ones are fetched a few ahead of their use."""
    with ThreadPoolExecutor(_IN_FLIGHT) as threads:
        under_way: deque[Path | Future[FetchedImage]] = deque()
        try:
            for image in images:
                under_way.append(image if isinstance(image, Path) else threads.submit(_fetch, image))
                if len(under_way) > _IN_FLIGHT or isinstance(under_way[0], Path):
                    yield _arrived(under_way.popleft())
            while under_way:
                yield _arrived(under_way.popleft())
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def _arrived(image: Path | Future[FetchedImage]) -> Path | FetchedImage:
    return image if isinstance(image, Path) else image.result()


def _fetch(image: RemoteImage) -> FetchedImage:
    try:
        return FetchedImage(str(image), image.read())
    except LogpolarError as error:
        return FetchedImage(str(image), error)
    except OSError as error:
        return FetchedImage(str(image), ImageError(f"{image}: cannot be read ({in_one_line(error)})"))


def _behind(url: str) -> list[tuple[str, RemoteImage]]:
    """Images behind a URL by name."""
    end = PurePosixPath(url.partition("?")[0]).suffix.lower()
    if glob.has_magic(url.partition("?")[0]):
        files = _persistently(lambda: _globbed(url), url)
    elif end in IMAGE_SUFFIXES or end == ".tar":
        files = [(PurePosixPath(url.partition("?")[0]).name, url, _persistently(lambda: _size(url), url))]
    else:
        files = _persistently(lambda: _listed(url), url)
    found = []
    for name, place, size in files:
        if name.lower().endswith(".tar"):
            found += _members(place, name)
        elif PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES:
            found.append((name, RemoteImage(place, size)))
    if not found:
        raise ImageError(f"{url}: no images there")
    return found


def _size(url: str) -> int | None:
    system, path = _opened(url)
    size = system.info(path).get("size")
    return None if size is None else int(size)


def _globbed(url: str) -> list[tuple[str, str, int | None]]:
    system, path = _opened(url)
    found = system.glob(path, detail=True)
    return [
        (PurePosixPath(each).name, system.unstrip_protocol(each), about.get("size")) for each, about in found.items()
    ]


def _listed(url: str) -> list[tuple[str, str, int | None]]:
    """Files in a folder; behind HTTP those that its page links to, one level deep."""
    system, path = _opened(url)
    if url.lower().startswith("http"):
        found = {each["name"]: each for each in system.ls(path, detail=True) if each["name"].startswith(path)}
    else:
        found = system.find(path, detail=True)
    root = path.rstrip("/") + "/"
    return [
        (each.removeprefix(root), system.unstrip_protocol(each), about.get("size")) for each, about in found.items()
    ]


def _in_tars(path: str) -> list[tuple[str, RemoteImage]] | None:
    """Images in a local tar file, or in those of a glob; None if that is not what the path names."""
    if not path.lower().endswith(".tar"):
        return None
    files = sorted(glob.glob(path)) if glob.has_magic(path) else [path]  # noqa: PTH207 - absolute globs
    found = [member for file in files for member in _members(file, Path(file).name)]
    if not found:
        raise ImageError(f"{path}: no images in it")
    return found


def _members(place: str, name: str) -> list[tuple[str, RemoteImage]]:
    """Images in a tar file by name."""

    def listed() -> list[tuple[str, RemoteImage]]:
        found = []
        with _open_tar(place) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                if member.size < 0:
                    raise tarfile.ReadError("a member of negative size")  # the next one would be an earlier one
                if member.isfile() and PurePosixPath(member.name).suffix.lower() in IMAGE_SUFFIXES:
                    image = RemoteImage(place, member.size, member.offset_data, member.name)
                    found.append((f"{name[:-4]}/{member.name.removeprefix('./')}", image))
                archive.members = []  # type: ignore[attr-defined] # or it would keep them all
        return found

    try:
        return _persistently(listed, place) if is_url(place) else listed()
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        reason = f"not a tar file, a compressed or a damaged one: {error}"
        raise ImageError(f"{place}: cannot be read ({reason})") from error
    except OSError as error:
        raise ImageError(f"{place}: cannot be read ({in_one_line(error)})") from error


def _open_tar(place: str) -> Any:
    if not is_url(place):
        check_regular(Path(place), ImageError)
        return Path(place).open("rb")
    system, path = _opened(place)
    return system.open(path, "rb", block_size=_BLOCK, cache_type="readahead")


def _opened(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingExtraError(f"{url}: reading by URL", "remote") from error
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # tracebacks of attempts that are repeated
    options: dict[str, Any] = {}
    if url.lower().startswith("http"):
        with contextlib.suppress(ImportError):
            from aiohttp import ClientTimeout

            patience = ClientTimeout(total=None, sock_connect=_PATIENCE, sock_read=_PATIENCE)
            options["client_kwargs"] = {"timeout": patience}
    try:
        system, path = url_to_fs(url, **options)
    except ImportError as error:
        raise MissingExtraError(f"{url}: reading by this kind of URL", "remote") from error
    except ValueError as error:
        raise ImageError(f"{url}: no kind of URL that can be read ({in_one_line(error)})") from error
    return system, str(path)


def _persistently(fetch: Callable[[], Result], what: str) -> Result:
    """The result of ``fetch``, tried again after errors that may pass."""
    wait = _FIRST_WAIT
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return fetch()
        except (LogpolarError, tarfile.TarError):
            raise
        except Exception as raised:  # each file system has its own
            error = _cause(raised)
            if isinstance(error, FileNotFoundError) or _status(error) == 404:
                raise ImageError(f"{what}: not found") from raised
            if _is_refusal(error):
                words = "check that its address is right and that your credentials may read it"
                raise ImageError(f"{what}: refused ({in_one_line(error)}); {words}") from raised
            if attempt == _ATTEMPTS:
                reason = f"tried {_ATTEMPTS} times: {in_one_line(error)}"
                raise ImageError(f"{what}: cannot be read ({reason})") from raised
        time.sleep(wait * random.uniform(0.5, 1.5))  # not at the same time as all other workers
        wait *= 2
    raise AssertionError


def _cause(error: Exception) -> Exception:
    """What happened: behind HTTP anything that does is a file that is not found."""
    cause = error.__cause__
    return cause if isinstance(error, FileNotFoundError) and isinstance(cause, Exception) else error


def _status(error: Exception) -> int | None:
    """The HTTP status of an answer, as aiohttp's and botocore's errors carry it."""
    answer = getattr(error, "response", None)
    about = answer.get("ResponseMetadata", {}) if isinstance(answer, dict) else {}
    status = getattr(error, "status", about.get("HTTPStatusCode"))
    return status if isinstance(status, int) else None


def _is_refusal(error: Exception) -> bool:
    """Whether asking again would bring the same answer."""
    status = _status(error)
    if status is not None and 400 <= status < 500:
        return status not in (408, 425, 429)
    return isinstance(error, PermissionError) or type(error).__name__ in ("NoCredentialsError", "InvalidURL")
