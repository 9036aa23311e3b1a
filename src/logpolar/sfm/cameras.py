"""Cameras of photos: which ones share one, COLMAP's model of it, and calibrations that are known.

A calibration is a list of numbers in COLMAP's order for the model (``fx, fy, cx, cy, k1, ...``), or the path of a file
in the layout of COLMAP's cameras.txt (``ID MODEL WIDTH HEIGHT numbers...``) with one camera, which knows its size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, get_args

from logpolar.errors import LogpolarError
from logpolar.settings import check_settings, setting
from logpolar.storage.inputs import read_text

CameraMode = Literal["auto", "single", "per-folder", "per-image"]
CAMERA_MODES: tuple[CameraMode, ...] = get_args(CameraMode)
MODEL_PARAMETERS = {
    "SIMPLE_PINHOLE": "f, cx, cy",
    "PINHOLE": "fx, fy, cx, cy",
    "SIMPLE_RADIAL": "f, cx, cy, k",
    "RADIAL": "f, cx, cy, k1, k2",
    "OPENCV": "fx, fy, cx, cy, k1, k2, p1, p2",
    "FULL_OPENCV": "fx, fy, cx, cy, k1, k2, p1, p2, k3, k4, k5, k6",
    "OPENCV_FISHEYE": "fx, fy, cx, cy, k1, k2, k3, k4",
    "SIMPLE_RADIAL_FISHEYE": "f, cx, cy, k",
    "RADIAL_FISHEYE": "f, cx, cy, k1, k2",
    "FOV": "fx, fy, cx, cy, omega",
    "THIN_PRISM_FISHEYE": "fx, fy, cx, cy, k1, k2, p1, p2, k3, k4, sx1, sy1",
}
"""COLMAP's camera models and their parameters, in order."""

_OFF_CENTRE = 0.2
"""Largest plausible distance of the principal point from the middle, as a fraction of the side."""


@dataclass(frozen=True)
class CameraOptions:
    """The cameras of photos."""

    camera_mode: CameraMode = setting(  # noqa: RUF009 - it makes a field
        "auto",
        "Which photos share a camera: those of equal EXIF data, all, those of a folder.",
        choices=CAMERA_MODES,
    )
    camera_model: str = setting("SIMPLE_RADIAL", "COLMAP's camera model.", choices=tuple(MODEL_PARAMETERS))
    camera_params: str = setting(
        "", "Known calibration: numbers, as in --camera-params 'f,cx,cy,k', or a file like COLMAP's cameras.txt."
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class Calibration:
    """A known camera; ``size`` is None if only its numbers are known."""

    model: str
    parameters: tuple[float, ...]
    size: tuple[int, int] | None
    source: str

    def misfit(self, size: tuple[int, int]) -> str:
        """Why a photo of this size cannot have been taken with it; empty if it can."""
        if self.size is not None:
            known = f"{self.size[0]} x {self.size[1]}"
            return "" if size == self.size else f"the calibration is for {known} pixels, not {size[0]} x {size[1]}"
        words = MODEL_PARAMETERS[self.model].split(", ")
        centre = self.parameters[words.index("cx")], self.parameters[words.index("cy")]
        for place, side, axis in zip(centre, size, ("cx", "cy"), strict=True):
            if abs(place - side / 2) > _OFF_CENTRE * side:
                shape = f"{size[0]} x {size[1]}"
                return f"{axis} = {place:g} is far from the middle of {shape} pixels: a calibration for another size?"
        return ""


def read_calibration(options: CameraOptions) -> Calibration | None:
    """The known calibration of the options, if there is one."""
    given = options.camera_params.strip()
    if not given:
        return None
    numbers = _numbers(given.replace(",", " ").split())
    if numbers is not None:
        return _checked(Calibration(options.camera_model, numbers, None, "--camera-params"))
    lines = [line.split() for line in read_text(given, LogpolarError, "calibration").splitlines()]
    cameras = [words for words in lines if words and not words[0].startswith("#")]
    if len(cameras) != 1:
        raise LogpolarError(f"{given}: has {len(cameras)} cameras; a calibration is one line of COLMAP's cameras.txt")
    _, model, *rest = cameras[0] if len(cameras[0]) > 1 else (*cameras[0], "")
    values = _numbers(rest) if len(rest) >= 2 else None
    if model not in MODEL_PARAMETERS or values is None or not all(0 < side < 1e6 for side in values[:2]):
        raise LogpolarError(f"{given}: not a line 'ID MODEL WIDTH HEIGHT parameters' as in COLMAP's cameras.txt")
    return _checked(Calibration(model, values[2:], (int(values[0]), int(values[1])), given))


def _numbers(words: list[str]) -> tuple[float, ...] | None:
    try:
        return tuple(float(word) for word in words)
    except ValueError:
        return None


def _checked(found: Calibration) -> Calibration:
    names = MODEL_PARAMETERS[found.model].split(", ")
    if len(found.parameters) != len(names):
        counts = f"{found.model} has {len(names)} parameters ({', '.join(names)}), not {len(found.parameters)}"
        raise LogpolarError(f"{found.source}: {counts}")
    focal = [value for name, value in zip(names, found.parameters, strict=True) if name.startswith("f")]
    if not all(abs(value) < 1e9 for value in found.parameters) or min(focal) <= 0:
        raise LogpolarError(f"{found.source}: the numbers must be finite and focal lengths positive")
    return found


def misfits(options: CameraOptions, sizes: Mapping[str, tuple[int, int]]) -> dict[str, str]:
    """Photos that the calibration, or the camera they share with others, cannot be of; all of them raise.

    By name, with the reason.
    """
    calibration = read_calibration(options)
    reasons = {name: calibration.misfit(size) for name, size in sizes.items()} if calibration else {}
    found = {name: f"{name}: {reason}" for name, reason in reasons.items() if reason}
    if sizes and len(found) == len(sizes):
        raise LogpolarError(f"no photo fits the calibration; {next(iter(found.values()))}")
    return found | _odd_sizes(options.camera_mode, {name: size for name, size in sizes.items() if name not in found})


def _odd_sizes(mode: CameraMode, sizes: Mapping[str, tuple[int, int]]) -> dict[str, str]:
    """Photos of another size than most of those that share a camera."""
    if mode not in ("single", "per-folder"):
        return {}
    groups: dict[str, list[str]] = {}
    for name in sizes:
        groups.setdefault(str(PurePosixPath(name).parent) if mode == "per-folder" else "", []).append(name)
    found = {}
    for names in groups.values():
        (width, height), _ = Counter(sizes[name] for name in names).most_common(1)[0]
        for name in names:
            if sizes[name] != (width, height):
                own = f"{sizes[name][0]} x {sizes[name][1]} pixels, the others of its camera {width} x {height}"
                found[name] = f"{name}: has {own}; --camera-mode auto gives it a camera of its own"
    return found


def reader_options(pycolmap: Any, options: CameraOptions, calibration: Calibration | None) -> Any:
    """pycolmap's options for importing photos."""
    reader = pycolmap.ImageReaderOptions()
    reader.camera_model = calibration.model if calibration else options.camera_model
    if calibration:
        reader.camera_params = ",".join(repr(value) for value in calibration.parameters)
    return reader
