"""Keypoints, their conversions to and from other libraries, and detection."""

from logpolar.keypoints.keypoints import (
    BAND,
    DEFAULT_ANGLE,
    DEFAULT_SIZE,
    MAX_SIZE,
    Keypoints,
    normalise_degrees,
)

__all__ = ["BAND", "DEFAULT_ANGLE", "DEFAULT_SIZE", "MAX_SIZE", "Keypoints", "normalise_degrees"]
