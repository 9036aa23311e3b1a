"""Options of matching. Imports nothing heavy: the command line is built from these."""

from __future__ import annotations

from dataclasses import dataclass

from logpolar.settings import DEFAULT_RATIO, check_settings, setting

FILTERS = ("none", "consensus")


@dataclass(frozen=True)
class MatchingOptions:
    """Which keypoints match; ``ratio`` (None or 1 accepts all) and ``mutual`` are of nearest neighbours."""

    ratio: float | None = setting(DEFAULT_RATIO, "Ratio test: best over second best distance; 1 accepts all.", 1e-3, 1)
    mutual: bool = setting(True, "Matches are mutual nearest neighbours.")
    filter: str = setting(
        "none", "consensus: neighbouring matches must agree on the change of scale and rotation.", choices=FILTERS
    )
    matcher: str = setting("nearest", "nearest: nearest neighbours; otherwise a learned matcher, by its file.")

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def learned(self) -> bool:
        return self.matcher != "nearest"
