"""OpenCV: the features in the form of a ``cv2.Feature2D``, to put in the place of ``cv2.SIFT``.

The names of methods and of their arguments are OpenCV's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.errors import ImageError
from logpolar.features.extractor import Extractor
from logpolar.images import to_bytes, to_gray
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import SiftDetector
from logpolar.models import Model
from logpolar.settings import DEFAULT_MODEL, DESCRIPTOR_SIZE
from logpolar.types import FloatArray, Image

Mask: TypeAlias = NDArray[np.uint8]
"""8 bit, of the image's size; keypoints are looked for where it is not 0."""


class LogPolarFeature:
    """Detects and describes one image at a time as ``cv2.SIFT`` does, with the same shapes and types.

    >>> feature = LogPolarFeature.create(nfeatures=2000)                                    # doctest: +SKIP
    >>> keypoints, descriptors = feature.detectAndCompute(image, None)                      # doctest: +SKIP
    >>> cv2.BFMatcher(feature.defaultNorm(), crossCheck=True).match(descriptors, others)    # doctest: +SKIP

    Images are gray, BGR or BGRA as OpenCV reads them, also of 16 bit or float, and are never reduced. No keypoint is
    dropped when it is described: descriptor n is that of keypoint n, also beyond the image's edge. One that cannot be
    described, because something is not finite or a size negative, raises ``KeypointError``. A keypoint without an
    angle (-1) is upright, one without a size (0) has 4 px.
    """

    def __init__(self, extractor: Extractor, detector: cv2.Feature2D, nfeatures: int = 0) -> None:
        if nfeatures < 0:
            raise ValueError(f"nfeatures must not be negative, but it is {nfeatures}")
        self._extractor = extractor
        self._detector = detector
        self._nfeatures = nfeatures

    @classmethod
    def create(
        cls,
        nfeatures: int = 0,
        model: str | Path | Model = DEFAULT_MODEL,
        detector: cv2.Feature2D | None = None,
        **engine: Any,
    ) -> LogPolarFeature:
        """``nfeatures``: keypoints to keep, strongest first; 0 keeps all, in the order of the detector.

        ``detector``: any detector of OpenCV; without one SIFT, with precise upscaling.
        ``engine``: device, precision, runtime and threads; see ``Extractor``.
        """
        extractor = Extractor(model, max_size=None, **engine)
        return cls(extractor, detector or SiftDetector().feature(), nfeatures)

    def detect(self, image: Image, mask: Mask | None = None) -> tuple[cv2.KeyPoint, ...]:
        """Keypoints, as the detector reports them."""
        return self._detect(to_gray(image), mask)

    def compute(
        self, image: Image, keypoints: Sequence[cv2.KeyPoint]
    ) -> tuple[tuple[cv2.KeyPoint, ...], FloatArray | None]:
        """The same keypoints and their descriptors (N, 128), float32; None for no keypoints, as OpenCV has it."""
        return self._compute(to_gray(image), tuple(keypoints))

    def detectAndCompute(
        self, image: Image, mask: Mask | None = None
    ) -> tuple[tuple[cv2.KeyPoint, ...], FloatArray | None]:
        """``detect`` and ``compute`` in one."""
        gray = to_gray(image)
        return self._compute(gray, self._detect(gray, mask))

    def descriptorSize(self) -> int:
        return DESCRIPTOR_SIZE

    def descriptorType(self) -> int:
        return cv2.CV_32F

    def defaultNorm(self) -> int:
        return cv2.NORM_L2

    def empty(self) -> bool:
        """True, as of every feature of OpenCV: there is no state to load."""
        return True

    def getDefaultName(self) -> str:
        return "Feature2D.LogPolarFeature"

    def _detect(self, gray: FloatArray, mask: Mask | None) -> tuple[cv2.KeyPoint, ...]:
        if mask is not None and (mask.shape != gray.shape or mask.dtype != np.uint8):
            raise ImageError(
                f"the mask must be uint8 of the image's shape {gray.shape}, not {mask.dtype} of {mask.shape}"
            )
        found = tuple(self._detector.detect(to_bytes(gray), mask))
        if self._nfeatures == 0:
            return found
        order = np.argsort([-keypoint.response for keypoint in found], kind="stable")
        return tuple(found[number] for number in order[: self._nfeatures].tolist())

    def _compute(
        self, gray: FloatArray, keypoints: tuple[cv2.KeyPoint, ...]
    ) -> tuple[tuple[cv2.KeyPoint, ...], FloatArray | None]:
        if not keypoints:
            return (), None
        return keypoints, self._extractor.extract(gray, Keypoints.from_opencv(keypoints)).descriptors
