"""Specs of methods and detectors on the command line: ``NAME[:FILE][,key=value,...]``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from logpolar.errors import LogpolarError, StorageError
from logpolar.storage.inputs import read_bytes

_SPEC = re.compile(r"(?P<head>.*?)(?P<options>(?:,\w+=[^,]*)*)", re.DOTALL)


@dataclass(frozen=True)
class Spec:
    """``head``: all before the options, a model's name or file, or a kind and, after a colon, a file."""

    text: str
    head: str
    given: dict[str, str]
    what: str = "descriptor"  # or detector, for errors

    @property
    def name(self) -> str:
        return self.head.partition(":")[0]

    @property
    def file(self) -> str:
        return self.head.partition(":")[2]

    def error(self, message: str) -> LogpolarError:
        """One line with the spec."""
        return LogpolarError(f"{self.what} '{self.text}': {' '.join(message.split())}")

    def check_known(self, known: Collection[str], but: str = "") -> None:
        """Raise unless all given options are known; ``but`` is not checked."""
        for key in self.given:
            if key not in (*known, but):
                words = f"known: {', '.join(known)}" if known else "it has none"
                raise self.error(f"unknown option '{key}' ({words})")

    def options(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """The defaults, updated by the spec; an option without a default is unknown."""
        self.check_known(defaults)
        chosen = dict(defaults)
        for key, value in self.given.items():
            try:
                chosen[key] = _READERS[key](value)
            except ValueError as error:
                raise self.error(f"{key} must be {error}, not '{value}'") from error
        return chosen

    def read_file(self, path: str | None = None) -> bytes:
        """The content of the file after the colon, or of another file of the spec."""
        path = self.file if path is None else path
        if not path:
            raise self.error(f"needs a file: {self.name}:FILE")
        try:
            return read_bytes(path)
        except StorageError as error:
            raise self.error(str(error)) from error


def parse_spec(text: str, what: str = "descriptor") -> Spec:
    found = _SPEC.fullmatch(text)
    assert found is not None  # the head matches anything
    pairs = [part.split("=", 1) for part in found["options"].split(",")[1:]]
    spec = Spec(text, found["head"], dict(pairs), what)
    if len(spec.given) < len(pairs):
        raise spec.error("an option is given twice")
    return spec


def plain_value(text: str) -> bool | int | float | str:
    """The value of another library's option, its type inferred from the text."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _positive(text: str) -> float:
    expected = "a positive number"
    try:
        value = float(text)
    except ValueError as error:
        raise ValueError(expected) from error
    if not (math.isfinite(value) and value > 0):
        raise ValueError(expected)
    return value


def _side(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= 1024):
        raise ValueError("an integer from 1 to 1024")
    return int(text)


def _one_of(**values: Any) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text not in values:
            raise ValueError(f"one of {', '.join(values)}")
        return values[text]

    return read


# Their ``ValueError`` says what is expected.
_READERS: dict[str, Callable[[str], Any]] = {
    "lambda": _positive,
    "size": _side,
    "antialias": _one_of(true=True, false=False),
    "normalise": _one_of(none="none", zscore="zscore", unit="unit"),
    "scale": _one_of(**{"1": 1, "255": 255}),
    "channels": _one_of(**{"none": "none", "1": "1", "3": "3", "last": "last"}),
    "orientation": _one_of(upright="upright", gradient="gradient"),
    "set": _one_of(liberty="liberty", notredame="notredame", yosemite="yosemite"),
}
