"""What the README shows must run."""

from __future__ import annotations

import re
from pathlib import Path

import click
import cv2
import pytest

from logpolar.cli import main

README = Path(__file__).parents[1] / "README.md"


def test_first_code_block_does_the_whole_job(photo, tmp_path, monkeypatch, capsys):
    cv2.imwrite(str(tmp_path / "a.jpg"), photo[:320, :320])
    cv2.imwrite(str(tmp_path / "b.jpg"), cv2.rotate(photo[40:360, 30:350], cv2.ROTATE_90_CLOCKWISE))
    monkeypatch.chdir(tmp_path)
    block = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL).group(1)
    exec(compile(block, "README.md", "exec"), {})
    agreeing, total = map(int, re.search(r"(\d+) of (\d+) matches agree", capsys.readouterr().out).groups())
    assert 100 < 0.9 * total < agreeing


@pytest.mark.parametrize("line", re.findall(r"\| `logpolar (.*?)` \|", README.read_text()))
def test_commands_and_options_of_the_table_exist(line):
    name, *rest = line.split()
    command = main.commands[name]
    if isinstance(command, click.Group):
        command, rest = command.commands[rest[0]], rest[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in rest if word.startswith("-")} <= known


def test_pictures_are_there():
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", README.read_text())
    assert len(pictures) == 2
    assert all((README.parent / picture).is_file() for picture in pictures)
