"""Options of pictures. Imports nothing heavy: the command line is built from these."""

from __future__ import annotations

from dataclasses import dataclass

from logpolar.settings import check_settings, setting

COLOURS = ("correctness", "quality")


@dataclass(frozen=True)
class DrawingOptions:
    """Which matches are drawn, and how."""

    colour_by: str = setting(
        "correctness",
        "Green inliers and red outliers, or by descriptor distance, from violet to yellow.",
        choices=COLOURS,
    )
    max_lines: int = setting(250, "Most lines of a colour, evenly selected; 0 draws all.", 0)
    inliers_only: bool = setting(False, "Draw no outliers.")

    def __post_init__(self) -> None:
        check_settings(self)
