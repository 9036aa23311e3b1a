"""Files that are to be written: checks before any work is done for them, and writing them whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from logpolar.errors import LogpolarError, in_words


def check_place(path: Path, error: type[LogpolarError] = LogpolarError) -> None:
    """Raise unless ``path`` is, or could become, a file in a folder that exists."""
    if path.is_dir():
        raise error(f"{path}: is a folder, not a file")
    if not path.parent.is_dir():
        state = "is not a folder" if path.parent.exists() else "does not exist"
        raise error(f"{path}: the folder {path.parent} {state}")


def check_output(path: Path, *inputs: Path) -> None:
    """Raise unless a file can be written there that is none of the inputs."""
    if any(path.exists() and each.exists() and path.samefile(each) for each in inputs):
        raise LogpolarError(f"{path}: would overwrite an input")
    check_place(path)
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise LogpolarError(f"{path}: cannot be written ({in_words(error)})") from error
    if not existed:
        path.unlink()


def check_picture(path: Path, *inputs: Path) -> None:
    """``check_output`` for a picture, whose ending decides its format."""
    if path.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise LogpolarError(f"{path}: pictures are written as .png, .jpg or .webp")
    check_output(path, *inputs)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that at any moment its path names all of the old content or all of the new."""
    half = path.with_name(f".{path.name}.half")
    try:
        with half.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise type(error)(error.errno, error.strerror, str(path)) from error
