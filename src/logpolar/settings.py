"""Defaults shared by the library and the command line, and option fields with help text and range.

Imports nothing heavy: the command line's options are made from these.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

VERSION = "0.2.0.dev0"

DEFAULT_MODEL = "logpolar-96"

DEFAULT_MAX_KEYPOINTS = 2048
"""Keypoints kept of an image, strongest first."""

DEFAULT_CONTRAST = 0.0
"""SIFT's contrast threshold for photos to match: faint keypoints are kept where there are not enough strong ones."""

DEFAULT_MAX_SIZE = 1600
"""Longer side, in pixels, to which larger images are downscaled first."""

DEFAULT_MEGAPIXELS = 500
MEGAPIXELS_VARIABLE = "LOGPOLAR_MAX_MEGAPIXELS"
"""Larger images are refused, and the environment variable that sets another limit."""

DEFAULT_MIN_SIZE = 640
"""Longer side, in pixels, to which smaller images are enlarged before detection; 0 never does."""

DEFAULT_SPREAD = 0.5
"""Power of the size by which the response of a keypoint is weighted before the best are kept; 0 keeps the strongest."""

DEFAULT_RATIO = 0.9
"""Ratio test: largest accepted best distance over second best."""

DEFAULT_PAIR_RATIO = 0.95
"""The same where neighbouring matches must agree, too."""

DEFAULT_THRESHOLDS = {"pose": 1.5, "fundamental": 1.5, "homography": 3.0}
"""Largest error of an inlier by model, in pixels of the image as described."""

RuntimeName: TypeAlias = Literal["auto", "onnxruntime", "openvino", "torch"]
RUNTIMES: tuple[RuntimeName, ...] = ("auto", "onnxruntime", "openvino", "torch")
"""What can run a network on a CPU."""

Precision: TypeAlias = Literal["auto", "float32", "float16", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = ("auto", "float32", "float16", "bfloat16")
"""Of a network's arithmetic."""

Orientation: TypeAlias = Literal["upright", "gradient"]
ORIENTATIONS: tuple[Orientation, ...] = ("upright", "gradient")
"""Of a network detector's keypoints."""

DESCRIPTOR_SIZE = 128

FILE_ENDINGS = (".h5", ".hdf5")
"""Of correspondence files."""


def setting(
    default: Any, help: str, low: float | None = None, high: float | None = None, choices: tuple[str, ...] | None = None
) -> Any:
    """A field of an options class with its default, help text and valid range or choices."""
    return field(default=default, metadata={"help": help, "low": low, "high": high, "choices": choices})


def check_settings(settings: Any) -> None:
    """Raise ``ValueError`` unless every setting is in its range or among its choices; NaN is in no range."""
    for each in (each for each in fields(settings) if each.metadata):
        value, low, high = getattr(settings, each.name), each.metadata["low"], each.metadata["high"]
        choices = each.metadata["choices"]
        if value is None:  # a setting that is switched off
            continue
        if choices is not None and value not in choices:
            raise ValueError(f"{each.name} must be {' or '.join(choices)}, not {value!r}")
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            bounds = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
            raise ValueError(f"{each.name} must be {bounds}, not {value!r}")


@dataclass(frozen=True)
class DetectionOptions:
    """Which keypoints of an image are found: the same options wherever features are extracted."""

    spread: float = setting(
        DEFAULT_SPREAD, "Keep the keypoints with the largest response * size ** SPREAD; 0: the strongest.", 0, 4
    )
    min_size: int = setting(
        DEFAULT_MIN_SIZE, "Enlarge smaller images, at most 4x, to this longer side in pixels; 0 never does.", 0
    )
    max_size: int = setting(DEFAULT_MAX_SIZE, "Downscale larger images to this longer side in pixels; 0 never does.", 0)

    def __post_init__(self) -> None:
        check_settings(self)
