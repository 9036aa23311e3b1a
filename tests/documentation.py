"""The pages of the documentation, their code blocks, and how a line of a shell block is run in this process."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from click.testing import CliRunner

from logpolar.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"(?ms)^( *)```(\w*)[^\n]*\n(.*?)^ *```$")


@dataclass(frozen=True)
class Block:
    language: str
    text: str


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path) -> list[Block]:
    return [Block(language, text) for _, language, text in FENCE.findall(page.read_text())]


def inline_commands(page: Path) -> Iterator[str]:
    """What follows `logpolar` in code within the text and in tables."""
    without_blocks = FENCE.sub("", page.read_text())
    yield from re.findall(r"`(?:[^`\n]*-m )?logpolar ([a-z][^`]*)`", without_blocks)


def commands_of(block: Block) -> Iterator[list[str]]:
    """Words of the commands in a shell block, quotes still on."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in [*shlex.split(line, comments=True, posix=False), "&&"]:
            if word != "&&":
                words.append(word)
            elif words:
                yield words
                words = []


def expanded(words: list[str]) -> list[str]:
    """Quotes off, and patterns of file names that had none filled in, as a shell does."""
    found: list[str] = []
    for word in words:
        plain = shlex.split(word)[0]
        names = sorted(map(str, Path().glob(plain))) if plain == word and "*" in plain else []
        found += names or [plain]
    return found


def run_command(words: list[str]) -> str:
    """Run it in the current folder; its output, which goes into a file where the line says so."""
    target = None
    if ">" in words:
        at = words.index(">")
        words, target = words[:at], words[at + 1]
    program, *arguments = expanded(words)
    if program != "logpolar":
        return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout
    result = CliRunner().invoke(main, [*arguments, *in_this_process(arguments)])
    assert result.exit_code == 0, f"logpolar {' '.join(arguments)}: {result.output} {result.exception!r}"
    if target:
        Path(target).write_text(result.stdout)
    return result.stdout


def in_this_process(words: list[str]) -> list[str]:
    """Options that keep a command from starting processes, each of which would import everything anew."""
    command, _ = find_command(words)
    return ["--jobs", "1"] if any("--jobs" in parameter.opts for parameter in command.params) else []


def find_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words after `logpolar` begin with, and the rest of them."""
    command: click.Command = main
    while isinstance(command, click.Group) and words:
        command, words = command.commands[words[0]], words[1:]
    return command, words


def assert_parses(words: list[str]) -> None:
    """click takes the words after `logpolar` as they are; nothing is run."""
    command, rest = find_command(expanded(words))
    assert command.make_context("logpolar", rest).params


def unknown_options(words: list[str]) -> set[str]:
    command, rest = find_command(words)
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return {word for word in rest if re.match(r"--?[a-z]", word)} - known
