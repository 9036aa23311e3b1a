"""OpenCV: the features behind the interface of ``cv2.Feature2D``, a drop-in replacement for ``cv2.SIFT``.

Methods and their arguments have OpenCV's names.
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
from logpolar.models import Model, load_model
from logpolar.settings import DEFAULT_MODEL, DESCRIPTOR_SIZE
from logpolar.types import FloatArray, Image

Mask: TypeAlias = NDArray[np.uint8]
"""8 bit, of the image's size; keypoints are detected where it is not 0."""

Computed: TypeAlias = tuple[tuple[cv2.KeyPoint, ...], FloatArray | None]


class LogPolarFeature:
    """Detects and describes one image at a time as ``cv2.SIFT`` does, with the same shapes and types.

    >>> feature = LogPolarFeature.create(nfeatures=2000)                                    # doctest: +SKIP
    >>> keypoints, descriptors = feature.detectAndCompute(image, None)                      # doctest: +SKIP
    >>> cv2.BFMatcher(feature.defaultNorm(), crossCheck=True).match(descriptors, others)    # doctest: +SKIP

    Images are gray, BGR or BGRA as OpenCV reads them, also 16 bit or float, and are never downscaled. No keypoint is
    dropped: descriptor n belongs to keypoint n, even beyond the image's edge. Keypoints that are not finite, or have a
    negative size, raise ``KeypointError``. A keypoint without an angle (-1) is upright, one without a size (0) has
    4 px.
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
        loaded = model if isinstance(model, Model) else load_model(model)
        extractor = Extractor(loaded, max_size=None, **engine)
        return cls(extractor, detector or SiftDetector().feature(), nfeatures)

    def detect(self, image: Image, mask: Mask | None = None) -> tuple[cv2.KeyPoint, ...]:
        """Keypoints, as the detector reports them."""
        gray = to_gray(image)
        if mask is not None and (mask.shape != gray.shape or mask.dtype != np.uint8):
            found = f"{mask.dtype} of {mask.shape}"
            raise ImageError(f"the mask must be uint8 of the image's shape {gray.shape}, not {found}")
        keypoints = tuple(self._detector.detect(to_bytes(gray), mask))
        if self._nfeatures == 0:
            return keypoints
        return tuple(sorted(keypoints, key=lambda keypoint: -keypoint.response)[: self._nfeatures])

    def compute(self, image: Image, keypoints: Sequence[cv2.KeyPoint]) -> Computed:
        """The same keypoints and their descriptors (N, 128), float32; None for no keypoints, as in OpenCV."""
        gray = to_gray(image)
        if not keypoints:
            return (), None
        return tuple(keypoints), self._extractor.extract(gray, Keypoints.from_opencv(keypoints)).descriptors

    def detectAndCompute(self, image: Image, mask: Mask | None = None) -> Computed:
        """``detect`` and ``compute`` in one."""
        gray = to_gray(image)
        return self.compute(gray, self.detect(gray, mask))

    def descriptorSize(self) -> int:
        return DESCRIPTOR_SIZE

    def descriptorType(self) -> int:
        return cv2.CV_32F

    def defaultNorm(self) -> int:
        return cv2.NORM_L2

    def empty(self) -> bool:
        """True, as for every feature of OpenCV: there is no state to load."""
        return True

    def getDefaultName(self) -> str:
        return "Feature2D.LogPolarFeature"
