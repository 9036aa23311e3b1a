"""The folder of a dense reconstruction: its layout, the record of finished steps, and its lock.

WORKSPACE/images, sparse, stereo      the dense workspace
WORKSPACE/database.db, mapping        features and matches; the models before undistortion
WORKSPACE/photos                      links to the photos, unless they come from one folder
WORKSPACE/reconstruction.json         the record: photos, settings and finished steps
WORKSPACE/colmap.log                  COLMAP's output
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from logpolar.errors import StorageError, in_words, some_of
from logpolar.sfm.database_files import remove_database
from logpolar.sfm.mapper import DATABASE
from logpolar.storage.atomic_io import check_place, made_within, within
from logpolar.storage.documents import write_json
from logpolar.storage.inputs import parse_json, read_bytes

MAPPING, UNFINISHED, LINKS = "mapping", "unfinished", "photos"
DENSE = ("images", "stereo", "run-colmap-geometric.sh", "run-colmap-photometric.sh", "sparse")
"""Products of undistortion. Readers look for ``sparse``, so it comes last."""

_RECORD, _LOG = "reconstruction.json", "colmap.log"
_FORMAT = "logpolar-reconstruction-1"


@dataclass
class Record:
    """Content of the JSON. A step is finished if it is listed here, whatever files exist."""

    settings: dict[str, Any]
    photos: dict[str, int]  # name -> bytes
    linked: bool
    finished: dict[str, dict[str, Any]] = field(default_factory=dict)  # step -> what later steps need
    format: str = _FORMAT

    def save(self, workspace: Path) -> None:
        write_json(workspace / _RECORD, asdict(self), indent=1)


@contextlib.contextmanager
def open_workspace(workspace: Path) -> Iterator[BinaryIO]:
    """The log, for appending, of a folder that is new, empty or ours, and locked against other processes."""
    if workspace.is_dir():
        others = {path.name for path in workspace.iterdir()} - {f".{_RECORD}.half", _LOG}
        if others and _RECORD not in others:
            raise StorageError(f"{workspace}: is not empty and was not made by this command; choose another")
    elif workspace.exists():
        raise StorageError(f"{workspace}: is a file, not a folder")
    else:
        check_place(workspace, StorageError)
        workspace.mkdir()
    with (workspace / _LOG).open("ab") as log:
        with contextlib.suppress(ImportError):  # Windows has no flock
            import fcntl

            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise StorageError(f"{workspace}: another process works in it ({in_words(error)})") from error
        yield log


@contextlib.contextmanager
def stderr_into(log: BinaryIO) -> Iterator[TextIO]:
    """Redirect C++'s stderr into the log; yields the real stderr, for progress bars."""
    real = os.dup(2)
    os.dup2(log.fileno(), 2)
    try:
        with os.fdopen(real, "w", closefd=False) as terminal:
            yield terminal
    finally:
        os.dup2(real, 2)
        os.close(real)


def open_record(workspace: Path, now: Record, products: Mapping[str, str], overwrite: bool) -> Record:
    """``now`` with the steps that an earlier run has finished; other photos or settings are refused."""
    path = workspace / _RECORD
    if path.exists():
        before = _read(path)
        if overwrite:
            _remove_made(workspace, before)
        elif before.finished:
            _refuse_others(workspace, before, now)
            now.finished = before.finished
    while now.finished and not (workspace / products[list(now.finished)[-1]]).exists():
        now.finished.popitem()
    now.save(workspace)
    return now


def _read(path: Path) -> Record:
    try:
        record = Record(**parse_json(read_bytes(path)))
        for name in record.photos:
            _link_path(path.parent, name)
    except (ValueError, TypeError, StorageError) as error:
        raise StorageError(f"{path}: damaged, or not made by this command; choose another workspace") from error
    if record.format != _FORMAT:
        raise StorageError(f"{path}: made by another version of logpolar; choose another workspace")
    return record


def _link_path(workspace: Path, name: str) -> Path:
    """Where a photo is linked; neither its name nor a link may lead out of the workspace."""
    return made_within(workspace, str(within(Path(LINKS), name)))


def _refuse_others(workspace: Path, before: Record, now: Record) -> None:
    hint = "choose another workspace or overwrite it"
    for key in before.settings | now.settings:
        was, wanted = before.settings.get(key), now.settings.get(key)
        if was != wanted:
            raise StorageError(f"{workspace}: was made with {key} = {was}, not {wanted}; {hint}")
    differences = {
        "new": [name for name in now.photos if name not in before.photos],
        "gone": [name for name in before.photos if name not in now.photos],
        "changed": [name for name, size in now.photos.items() if before.photos.get(name, size) != size],
    }
    words = [f"{len(names)} {what} ({some_of(names)})" for what, names in differences.items() if names]
    if words:
        raise StorageError(f"{workspace}: was built from other photos: {', '.join(words)}; {hint}")


def _remove_made(workspace: Path, record: Record) -> None:
    """Remove only what the command has made; the log, which is open, is emptied."""
    for name in (*DENSE, MAPPING, UNFINISHED, _RECORD):
        remove(workspace / name)
    remove_database(workspace / DATABASE)
    if record.linked:
        for name in record.photos:
            remove(_link_path(workspace, name))
    with (workspace / _LOG).open("wb"):
        pass


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def link_photos(images: Mapping[str, Path], folder: Path) -> None:
    """Link the photos into one folder, as COLMAP needs them; copy where links are not supported."""
    for name, path in images.items():
        place = made_within(folder, name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        try:
            place.symlink_to(path.resolve())
        except OSError:
            shutil.copyfile(path, place)
