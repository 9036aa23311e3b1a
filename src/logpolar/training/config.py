"""Config files: TOML, typed, every key checked, read and written by the settings classes of ``options``.

A config names the recipe it starts from, and says what differs:

    recipe = "default"

    [[data]]
    files = ["set/*.h5"]

    [optimisation]
    steps = 30000
"""

from __future__ import annotations

import difflib
import glob
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict, fields, replace
from pathlib import Path
from typing import Any

from logpolar.errors import LogpolarError
from logpolar.models import shipped_models
from logpolar.models.cards import PatchSizeError
from logpolar.sampling.patterns import Cartesian, LogPolar, Pattern, pattern_from_dict, pattern_to_dict
from logpolar.training.options import DataSource, DistillationOptions, LossOptions, TrainingConfig
from logpolar.training.recipes import RECIPES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SECTIONS = ("batch", "augmentation", "loss", "distillation", "optimisation", "run")
_NETWORK = ("circular", "dropout", "channels", "strides")  # rows and columns are those of the sampling
_TITLES = ("name", "description", "sources", "licence")
_HELP = {
    "pattern": "log-polar or cartesian.",
    "lambda": "Support: its radius is lambda / 2 keypoint sizes.",
    "rows": "Angles of a log-polar patch.",
    "columns": "Radii of a log-polar patch.",
    "inner_radius": "Of a log-polar patch: covariant (tied to the keypoint), paper (1 px), or between, 0 to 1.",
    "radius_ratio": "Outermost over innermost radius, where that is tied to the keypoint.",
    "antialias": "Look up in a Gaussian pyramid.",
    "outside": "Beyond the image: reflect it, or the mean of the patch.",
    "circular": "Rows continue from last to first in every convolution: right for log-polar patches only.",
    "dropout": "Before the last convolution.",
    "channels": "Of each 3 x 3 convolution; multiples of 16 make the best use of a processor.",
    "strides": "Of each, 1 or 2; rows and columns must be a multiple of all of them multiplied.",
}


def read_config(path: str | Path, changes: Sequence[str] = ()) -> TrainingConfig:
    """The config of a file, with changes of the form ``section.key=value`` made to it.

    Data files are found relative to the config's folder. Raises ``LogpolarError`` with the file and the key.
    """
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LogpolarError(f"{path}: not a TOML file: {error}") from error
    try:
        for change in changes:
            _change(table, change)
        return _make_config(table, path.parent)
    except ValueError as error:
        raise LogpolarError(f"{path}: {error}") from error


def find_files(source: DataSource) -> list[Path]:
    """The files of a source, sorted; raises ``LogpolarError`` for a pattern that finds nothing."""
    found = []
    for pattern in source.files:
        matches = sorted(glob.glob(pattern))  # noqa: PTH207 # the pattern may start anywhere
        if not matches:
            raise LogpolarError(f"{pattern}: no such correspondence file")
        found += [Path(match) for match in matches]
    return list(dict.fromkeys(found))


def config_to_toml(config: TrainingConfig) -> str:
    """The whole config as a commented file; ``read_config`` reads it back to the same config."""
    lines = [f"{name} = {_toml(getattr(config, name))}  # {_help(TrainingConfig, name)}" for name in _TITLES]
    for source in config.data:
        lines += ["", "[[data]]", *_lines(DataSource, asdict(source))]
    lines += ["", "[sampling]", *(f"{key} = {_toml(v)}  # {_HELP[key]}" for key, v in _sampling(config).items())]
    lines += ["", "[network]", *(f"{key} = {_toml(getattr(config.network, key))}  # {_HELP[key]}" for key in _NETWORK)]
    for section in _SECTIONS:
        options = getattr(config, section)
        lines += ["", f"[{section}]", *_lines(type(options), asdict(options))]
    return "\n".join(lines) + "\n"


def recipe_to_toml(name: str) -> str:
    """A recipe as a config to start from, with a place for the data."""
    text = config_to_toml(replace(RECIPES[name], data=(DataSource(("set/*.h5",)),)))
    return f'recipe = "{name}"  # What is not said below is as in this recipe: delete what you do not change.\n{text}'


def config_to_dict(config: TrainingConfig) -> dict[str, Any]:
    """The config as plain values, for a card or a checkpoint."""
    values = json.loads(json.dumps(asdict(config)))
    return {**values, "sampling": _sampling(config)}


def _sampling(config: TrainingConfig) -> dict[str, Any]:
    return pattern_to_dict(config.sampling)


def _lines(kind: type, values: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {_toml(value)}  # {_help(kind, name)}" for name, value in values.items()]


def _help(kind: type, name: str) -> str:
    each = next(each for each in fields(kind) if each.name == name)
    choices = each.metadata["choices"]
    return str(each.metadata["help"]) + (f" One of {', '.join(choices)}." if choices else "")


def _toml(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON lets it stand, TOML does not


def _change(table: dict[str, Any], change: str) -> None:
    """``section.key=value`` or ``key=value``; the value is TOML, or else a text."""
    name, equals, text = change.partition("=")
    *sections, key = name.strip().split(".")
    if not equals or len(sections) > 1 or not key:
        raise ValueError(f"a change is written section.key=value, not '{change}'")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    inner = table.setdefault(sections[0], {}) if sections else table
    if not isinstance(inner, dict):
        raise ValueError(f"--set cannot change [[{sections[0]}]], of which there may be several")
    inner[key] = value


def _make_config(table: Mapping[str, Any], folder: Path) -> TrainingConfig:
    rest = dict(table)
    recipe = rest.pop("recipe", "default")
    if not isinstance(recipe, str) or recipe not in RECIPES:
        raise ValueError(f"there is no recipe '{recipe}' (known: {', '.join(RECIPES)})")
    base = RECIPES[recipe]
    _refuse_unknown(rest, [*_TITLES, "data", "sampling", "network", *_SECTIONS], "the config")
    changes: dict[str, Any] = {
        name: _typed(rest[name], _field(TrainingConfig, name), "") for name in _TITLES if name in rest
    }
    name = changes.get("name", base.name)
    if name in ("", "..") or Path(name).name != name:
        raise ValueError(f"name must do as the name of a file, not {name!r}")
    for section in _SECTIONS:
        changes[section] = _section(getattr(base, section), rest.get(section, {}), f"[{section}]")
    changes["sampling"] = _read_sampling(base.sampling, _table(rest.get("sampling", {}), "[sampling]"))
    changes["network"] = _read_network(base, changes["sampling"], _table(rest.get("network", {}), "[network]"))
    changes["data"] = _read_data(rest.get("data", []), folder)
    changes["distillation"] = _find_teacher(changes["distillation"], folder)
    _check_loss(changes["loss"], changes["distillation"])
    return replace(base, **changes)


def _read_data(tables: Any, folder: Path) -> tuple[DataSource, ...]:
    if isinstance(tables, dict) and tables:
        raise ValueError("[[data]], with two brackets, can only be said in the file: there may be several")
    if not isinstance(tables, list) or not tables:
        raise ValueError("there is no [[data]]: name the correspondence files to train on")
    sources = [_section(DataSource(), table, "[[data]]") for table in tables]
    if not all(source.files for source in sources):
        raise ValueError("[[data]] names no files")
    if not sum(source.share for source in sources) > 0:
        raise ValueError("[[data]]: the shares must not all be 0")
    start = Path(glob.escape(str(folder.absolute())))  # whatever folder the config is copied to, the files stay there
    return tuple(replace(source, files=tuple(str(start / file) for file in source.files)) for source in sources)


def _find_teacher(options: DistillationOptions, folder: Path) -> DistillationOptions:
    """A file is found from the config's folder, wherever the config is copied to."""
    if not options.teacher or options.teacher in shipped_models():
        return options
    return replace(options, teacher=str(folder.absolute() / options.teacher))


def _check_loss(loss: LossOptions, distillation: DistillationOptions) -> None:
    if not (loss.triplet or loss.second_order or loss.softmax or distillation.wanted):
        raise ValueError("[loss] all weights are 0, and there is no teacher: nothing would be learned")


def _read_sampling(base: Pattern, table: Mapping[str, Any]) -> Pattern:
    values = pattern_to_dict(base)
    kind = table.get("pattern", values["pattern"])
    if kind != values["pattern"]:
        shared = {key: values[key] for key in ("antialias", "outside")}
        if kind not in ("log-polar", "cartesian"):
            raise ValueError(f"[sampling] pattern must be log-polar or cartesian, not {kind!r}")
        values = pattern_to_dict(LogPolar() if kind == "log-polar" else Cartesian()) | shared
    _refuse_unknown(table, list(values), "[sampling]")
    _refuse_booleans(table, values, "[sampling]")
    try:
        return pattern_from_dict({**values, **table})
    except ValueError as error:
        raise ValueError(f"[sampling] {error}") from error


def _read_network(base: TrainingConfig, pattern: Pattern, table: Mapping[str, Any]) -> Any:
    _refuse_unknown(table, _NETWORK, "[network]")
    circular = base.network.circular and isinstance(pattern, LogPolar)
    values: dict[str, Any] = {key: getattr(base.network, key) for key in _NETWORK} | {"circular": circular}
    _refuse_booleans(table, values, "[network]")
    values |= {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    if not isinstance(values["dropout"], int | float):
        raise ValueError(f"[network] dropout must be a number, not {values['dropout']!r}")
    try:
        return replace(base.network, rows=pattern.rows, columns=pattern.columns, **values)
    except PatchSizeError as error:
        raise ValueError(f"[sampling] {error}") from error
    except ValueError as error:
        raise ValueError(f"[network] {error}") from error


def _section(base: Any, table: Any, where: str) -> Any:
    """Options with what the table says put in."""
    table = _table(table, where)
    _refuse_unknown(table, [each.name for each in fields(base)], where)
    return replace(base, **{name: _typed(value, _field(type(base), name), where) for name, value in table.items()})


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be a section with keys")
    return value


def _field(kind: type, name: str) -> Field[Any]:
    return next(each for each in fields(kind) if each.name == name)


def _refuse_unknown(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"
            raise ValueError(f"{where} has no key '{key}' ({hint})")


def _refuse_booleans(table: Mapping[str, Any], values: Mapping[str, Any], where: str) -> None:
    """To Python they are whole numbers."""
    for key, value in table.items():
        if isinstance(value, bool) and not isinstance(values[key], bool):
            raise ValueError(f"{where} {key} must not be true or false")


def _typed(value: Any, each: Field[Any], where: str) -> Any:
    """The value, if it is of the field's kind and in its range; whole numbers will do for others."""
    name, kind = f"{where} {each.name}".strip(), type(each.default)
    low, high, choices = (each.metadata[key] for key in ("low", "high", "choices"))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is tuple and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
        words = {
            bool: "true or false",
            int: "a whole number",
            float: "a number",
            str: "a text",
            tuple: "a list of texts",
        }
        raise ValueError(f"{name} must be {words[kind]}, not {value!r}")
    if low is not None and value < low:
        raise ValueError(f"{name} must be {low} or more, not {value}")
    if high is not None and value > high:
        raise ValueError(f"{name} must be {high} or less, not {value}")
    if choices and value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not '{value}'")
    return value
