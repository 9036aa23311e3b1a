"""Extraction: one image to its features."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from logpolar.errors import ImageError
from logpolar.features.features import Features
from logpolar.features.regions import Region, extract_region
from logpolar.images import fitted_size, read_downscaled, resize, to_gray
from logpolar.images.remote import FetchedImage, RemoteImage
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import Detector, FeatureDetector, SiftDetector
from logpolar.keypoints.keypoints import MAX_SIZE
from logpolar.models import Model, load_model
from logpolar.models.describers import Describer, open_describer
from logpolar.models.detectors import NetworkDetector
from logpolar.models.files import take_apart
from logpolar.settings import (
    DEFAULT_CONTRAST,
    DEFAULT_MAX_SIZE,
    DEFAULT_MIN_SIZE,
    DEFAULT_MODEL,
    Precision,
    RuntimeName,
)
from logpolar.types import Color, FloatArray

ImageInput: TypeAlias = Any
"""A file's path, an array of pixels, or a PIL image."""

_LARGEST_SIDE = 8192
"""Longer side, in pixels, to which the photos are downscaled of which a region is taken: it bounds the memory."""

_KINDS = ("a path", "an array", "a PIL image")


class Extractor:
    """Describes images with one model.

    >>> features = Extractor("logpolar-96").extract("photo.jpg")    # doctest: +SKIP
    >>> features.keypoints.xy, features.descriptors                 # doctest: +SKIP

    ``model``: a shipped model's name, the path of a model file, or a loaded ``Model``; ``"logpolar-sf"`` brings its
    own detector of keypoints without scale.
    ``detector``: finds the keypoints; by default SIFT, with faint keypoints where there are not enough strong ones.
    ``max_keypoints``: keep the strongest of each image; None leaves that to the detector (SIFT: 2048).
    ``max_size``: images are first downscaled to this many pixels on the longer side, as in hloc and the paper; None
    uses them at their own size. ``min_size``: smaller images are enlarged to that, at most 4 times, so that detail of a
    few pixels is found as well; 0 never does, None is 640 px, or 0 if ``max_size`` is None. Keypoints always come out
    in the original image's pixels.
    ``device``, ``precision``, ``runtime``, ``threads``: see ``logpolar.models.describers.open_describer``.
    """

    def __init__(
        self,
        model: str | Path | Model = DEFAULT_MODEL,
        detector: Detector | None = None,
        *,
        max_keypoints: int | None = None,
        max_size: int | None = DEFAULT_MAX_SIZE,
        min_size: int | None = None,
        device: str = "cpu",
        precision: Precision = "auto",
        runtime: RuntimeName = "auto",
        threads: int = 0,
    ) -> None:
        if max_size is not None and max_size < 1:
            raise ValueError(f"max_size must be at least 1, not {max_size}")
        if min_size is not None and min_size < 0:
            raise ValueError(f"min_size must be at least 0, not {min_size}")
        if not isinstance(model, Model):
            name, own = take_apart(model, detector)
            model, detector = load_model(name), NetworkDetector(own, threads=threads) if own else detector
        self.model, self.detector = model, detector or SiftDetector(contrast_threshold=DEFAULT_CONTRAST)
        if max_keypoints is not None:
            self.detector = _limited(self.detector, max_keypoints)
        self.max_size = max_size
        self.min_size = (DEFAULT_MIN_SIZE if max_size else 0) if min_size is None else min_size
        self.describer: Describer = open_describer(
            self.model, device=device, precision=precision, runtime=runtime, threads=threads
        )

    @property
    def settings(self) -> dict[str, Any]:
        """What determines the features. Feature files store it, and refuse to mix different settings."""
        return {
            "model": self.model.name,
            "model_hash": self.model.digest,
            "max_size": self.max_size,
            **({"min_size": self.min_size} if self.min_size else {}),
            "detector": _detector_settings(self.detector),
        }

    def extract(
        self, image: ImageInput, keypoints: Keypoints | ArrayLike | None = None, color: Color = "bgr"
    ) -> Features:
        """Features of a file, an array (gray or colour; 8 or 16 bit or float) or a PIL image.

        ``keypoints``, in the original image's pixels, are described in their order, and nothing is detected; a bare
        array (N, 2) holds positions, see ``Keypoints.from_points``. They may lie outside the image, but sizes must be
        positive and everything finite (``KeypointError``).

        ``color``: channel order of an array, ``"bgr"`` as in OpenCV or ``"rgb"``. An incorrect order cannot be
        detected: it only changes the gray values a little. PIL images are RGB in any case.
        """
        gray, (width, height) = _read(image, self.max_size, color)
        size = fitted_size((width, height), self.max_size, self.min_size)
        fitted = resize(gray, size)
        factor_x, factor_y = size[0] / width, size[1] / height
        if keypoints is None:
            scaled = self.detector(fitted)
            keypoints = scaled.resized(1 / factor_x, 1 / factor_y)
        else:
            keypoints = keypoints if isinstance(keypoints, Keypoints) else Keypoints.from_points(keypoints)
            keypoints.check()
            scaled = keypoints.resized(factor_x, factor_y)
            scaled = replace(scaled, size=np.minimum(scaled.size, MAX_SIZE))  # valid sizes stay valid when enlarged
        return Features(keypoints, self.describer.describe(fitted, scaled), (width, height), max(factor_x, factor_y))

    def extract_region(self, image: ImageInput, region: Region, color: Color = "bgr") -> Features:
        """Features of a part of an image, seen as the region says, whatever ``max_size`` and ``min_size``.

        The region is in pixels of the original image, and so are the keypoints.
        """
        gray, (width, height) = _read(image, _LARGEST_SIDE, color, region.factor)
        factor_x, factor_y = gray.shape[1] / width, gray.shape[0] / height
        found = extract_region(gray, region.resized(factor_x, factor_y), self.detector, self.describer)
        keypoints = found.keypoints.resized(1 / factor_x, 1 / factor_y)
        return Features(keypoints, found.descriptors, (width, height), region.factor)

    def extract_many(self, images: Iterable[ImageInput], color: Color = "bgr") -> Iterator[Features]:
        """Features of each image in turn, all of them files, all arrays or all PIL images.

        For files by the hundred, and processes, see ``logpolar.features.batch.extract_images``.
        """
        if isinstance(images, str | Path):
            raise ImageError(f"extract_many takes several images, not one path: [{str(images)!r}]")
        kinds = set()
        for number, image in enumerate(images):
            kinds.add(kind := _kind(image))
            if kind not in _KINDS or len(kinds) > 1:
                raise ImageError(f"images must be all paths, all arrays or all PIL images; number {number} is {kind}")
            yield self.extract(image, color=color)


def _read(
    image: ImageInput, max_size: int | None, color: Color, factor: float = 1.0
) -> tuple[FloatArray, tuple[int, int]]:
    """Gray pixels, of files as ``read_downscaled`` limits them, and width and height of the original."""
    if isinstance(image, str | Path | RemoteImage | FetchedImage):
        return read_downscaled(image, max_size, factor)
    gray = to_gray(image, color)
    return gray, (gray.shape[1], gray.shape[0])


def _kind(image: object) -> str:
    if isinstance(image, str | Path):
        return _KINDS[0]
    if isinstance(image, np.ndarray):
        return _KINDS[1]
    is_pil = hasattr(image, "mode") and hasattr(image, "convert")
    return _KINDS[2] if is_pil else f"of type {type(image).__name__}"


def _limited(detector: Detector, max_keypoints: int) -> Detector:
    """The detector with another limit; raises ``ValueError`` for one that has none to set."""
    if max_keypoints < 1:
        raise ValueError(f"max_keypoints must be at least 1, not {max_keypoints}")
    if isinstance(detector, NetworkDetector):
        return detector.limited(max_keypoints)
    if not isinstance(detector, SiftDetector | FeatureDetector):
        raise ValueError("max_keypoints limits the library's and OpenCV's detectors; limit your own detector itself")
    return replace(detector, max_keypoints=max_keypoints)


def _detector_settings(detector: Detector) -> dict[str, Any]:
    if isinstance(detector, NetworkDetector):
        return detector.settings
    names = [each.name for each in fields(detector)] if is_dataclass(detector) else []
    return {"name": _name(detector), **{name: _plain(getattr(detector, name)) for name in names}}


def _name(thing: object) -> str:
    """Where a detector comes from: its class or, of a function, its own name."""
    named: Any = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}.{named.__qualname__}".removeprefix("logpolar.keypoints.detection.")


def _plain(value: object) -> Any:
    """A detector's option as JSON; of an OpenCV object, all that its getters return."""
    if isinstance(value, str | int | float | bool | type(None)):
        return value
    getters = {name: getattr(value, name) for name in dir(value) if name.startswith("get")}
    answers = {name.removeprefix("get"): getter() for name, getter in getters.items() if name != "getDefaultName"}
    simple = {name: answer for name, answer in answers.items() if isinstance(answer, str | int | float | bool)}
    return {"name": _name(value), **simple}
