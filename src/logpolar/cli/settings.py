"""Command line options from options classes, which define names, defaults, ranges and help texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass, replace
from typing import Any, TypeVar

import click

Settings = TypeVar("Settings")
Command = TypeVar("Command", bound=Callable[..., Any])


class Number(click.FloatRange):
    """A number in a range; NaN and infinity, which pass any range, are refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number

    def _describe_range(self) -> str:
        return "" if self.min is self.max is None else super()._describe_range()


def settings_options(kind: type[Any]) -> Callable[[Command], Command]:
    """An option for each setting of a class and its nested classes; see ``make_settings``."""
    return lambda command: with_options(command, [_option(*each) for each in _settings(kind())])


def make_settings(kind: type[Settings], values: Mapping[str, Any]) -> Settings:
    """An instance of the class with the values of its options."""
    return _fill(kind(), values)


def _fill(settings: Settings, values: Mapping[str, Any]) -> Settings:
    changes = {}
    for each in fields(settings):  # type: ignore[arg-type]
        inner = getattr(settings, each.name)
        changes[each.name] = _fill(inner, values) if is_dataclass(inner) else values[each.name]
    return replace(settings, **changes)  # type: ignore[type-var]


def _settings(settings: Any) -> Iterator[tuple[Field[Any], Any]]:
    """Fields with their defaults, nested ones included."""
    for each in fields(settings):
        inner = getattr(settings, each.name)
        if is_dataclass(inner):
            yield from _settings(inner)
        elif each.metadata:  # fields without help have options of their own
            yield each, inner


def _option(each: Field[Any], default: Any) -> Callable[[Command], Command]:
    name, low, high = each.name.replace("_", "-"), each.metadata["low"], each.metadata["high"]
    choices = click.Choice(each.metadata["choices"]) if each.metadata["choices"] else click.STRING
    number = Number(low, high)  # None: a number whose default depends on others, as its help says
    kinds = {bool: None, int: click.IntRange(low, high), float: number, type(None): number, str: choices}
    flags = f"--{name}/--no-{name}" if default is True else f"--{name}"
    return click.option(
        flags,
        each.name,
        type=kinds[type(default)],
        is_flag=isinstance(default, bool),
        default=default,
        show_default=default not in (False, None, ""),
        help=each.metadata["help"],
    )


def with_options(command: Command, options: Sequence[Callable[[Any], Any]]) -> Command:
    """The command with options in this order."""
    for option in reversed(options):
        command = option(command)
    return command
