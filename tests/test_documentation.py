"""Every code block of every page runs, in the order of the page, on small inputs.

Python blocks of a page share their names. A TOML block is a training config, my.toml. A text block is what the block
before it prints.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from documentation import (
    PAGES,
    ROOT,
    assert_parses,
    blocks_of,
    commands_of,
    inline_commands,
    name_of,
    run_command,
    unknown_options,
)
from documentation_inputs import write_inputs
from logpolar.evaluation import protocol
from logpolar.models import Model, export, files, load_model
from logpolar.training.config import read_config

NOT_RUN = {
    "python3 -m venv .venv": "the tests run in such an environment",
    ". .venv/bin/activate": "the same",
    "pip install": "needs a network; .ci/run does it",
    "pytest": "these are the tests",
    ".ci/run": "runs the tests, and what stands around them",
    "ruff": "part of .ci/run",
    "mypy": "part of .ci/run",
    "lint-imports": "part of .ci/run",
    "mkdocs": "part of .ci/run",
    "colmap mapper": "COLMAP's own program, no part of pycolmap, which the same page runs",
    "logpolar extract photos/ -o gpu.h5 --device cuda": "needs a GPU",
    "dask": "starts a cluster",
    "ray": "starts a cluster",
    "logpolar extract photos/ -o features.h5 --executor": "needs a cluster",
    "logpolar match-features features.h5 -o matches.h5 --executor": "needs a cluster",
    "logpolar extract s3://": "needs a network",
    "logpolar extract https://": "needs a network",
    "logpolar train my.toml -o my-model": "days on a CPU; the trial before it is run, and its model stands in",
}
"""All that is not run, by how the line begins. Those of logpolar are parsed."""

STAND_INS = {"logpolar train my.toml -o my-model": ("trial", "my-model")}
"""Folders that are copied in the place of a command that is not run, for those that follow it."""

LANGUAGES = {"sh", "python", "toml", "text", "mermaid"}


@pytest.fixture(scope="module")
def inputs(photo, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder, photo)
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=name_of)
def test_all_blocks_of_a_page_run(page, inputs, tmp_path, monkeypatch, capsys):
    place = shutil.copytree(inputs, tmp_path / "place")
    monkeypatch.chdir(place)
    # Exporting takes seconds; the graph, which has no weights in it, is that of the shipped model.
    graph = load_model("logpolar-96").graph
    monkeypatch.setattr(export, "export_graph", lambda network: graph)
    monkeypatch.setattr(protocol, "draw_figures", lambda *arguments: ([], ""))  # which take half of an evaluation
    blocks, names, printed = blocks_of(page), {}, ""
    run_demo()  # before anything stands in
    if not any(block.language == "text" for block in blocks):
        monkeypatch.setattr(files, "_read", read_small)
    assert {block.language for block in blocks} <= LANGUAGES
    for block in blocks:
        if block.language == "sh":
            printed = "".join(run_or_parse(words) for words in commands_of(block))
        elif block.language == "python":
            capsys.readouterr()
            exec(compile(block.text, name_of(page), "exec"), names)
            printed = capsys.readouterr().out
        elif block.language == "toml":
            Path("my.toml").write_text(block.text)
            assert read_config(Path("my.toml")).name
        elif block.language == "text":
            assert_prints(block.text, printed)


def read_small(path: Path, name: str, read=files._read) -> Model:
    """Where no figures are printed, the small model stands in for the default, which takes five times as long."""
    return read(path.with_name("logpolar-96-small.safetensors") if name == "logpolar-96" else path, name)


def run_or_parse(words: list[str]) -> str:
    line = " ".join(words)
    if line == "logpolar demo":
        return run_demo()
    if not any(line.startswith(start) for start in NOT_RUN):
        return run_command(words)
    if words[0] == "logpolar":
        assert_parses(words[1:])
    if line in STAND_INS:
        shutil.copytree(*STAND_INS[line])
    return ""


@cache
def run_demo() -> str:
    """Once for all pages: it takes no files."""
    return run_command(["logpolar", "demo"])


def assert_prints(expected: str, printed: str) -> None:
    """The same words, and numbers within 5 %: other processors round otherwise."""
    number = r"\d+(?:\.\d+)?"
    assert re.sub(number, "", expected).split() == re.sub(number, "", printed).split()
    for ours, theirs in zip(re.findall(number, expected), re.findall(number, printed), strict=True):
        assert float(ours) == pytest.approx(float(theirs), rel=0.05, abs=0.05)


def test_what_is_not_run_is_on_some_page():
    lines = [
        " ".join(words)
        for page in PAGES
        for block in blocks_of(page)
        if block.language == "sh"
        for words in commands_of(block)
    ]
    for start in (*NOT_RUN, *STAND_INS):
        assert any(line.startswith(start) for line in lines), start


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "results.md"], ids=name_of)
def test_commands_and_options_in_the_text_exist(page):
    """But for results.md, which records the commands as they were run, with the options of their version."""
    for command in inline_commands(page):
        words = [word for word in re.split(r"[\s,]+", command) if not re.fullmatch(r"[.…]+|[A-Z]+", word)]
        assert unknown_options(words) == set(), command


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_pictures_are_there(page):
    for link in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_the_walks_name_functions_that_exist():
    """Rows of docs/architecture.md: a file, then functions or methods that are defined in it."""
    rows = re.findall(
        r"(?m)^\| \d+ \| \[([\w/]+\.py)\]\([^)]*\) \| ([^|]+) \|", (ROOT / "docs" / "architecture.md").read_text()
    )
    assert len(rows) > 40
    for file, functions in rows:
        defined = set(definitions(ast.parse((ROOT / "src" / "logpolar" / file).read_text())))
        assert set(re.findall(r"`([^`]+)`", functions)) <= defined, file


def definitions(tree: ast.AST, prefix: str = "") -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from definitions(node, f"{node.name}.")


def test_the_architecture_lists_packages_in_the_order_of_the_import_contract():
    contract = re.search(r"layers = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL)[1]
    layers = [name for line in reversed(contract.splitlines()) for name in re.findall(r"\w+", line)]
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text[text.index("## Packages") : text.index("## Four walks")]
    listed = [
        name for cell in re.findall(r"(?m)^\| (`[^|]+) \|", table) for name in re.findall(r"`(\w+)(?:\.py|/)`", cell)
    ]
    assert sorted(listed[:3]) == sorted(layers[:3])  # these know nothing of each other
    assert listed[3:] == layers[3:]


def test_tables_of_speed_are_those_that_were_measured():
    command = [sys.executable, str(ROOT / "benchmarks" / "speed.py"), "--table"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    shown = (ROOT / "docs" / "performance.md").read_text().splitlines()
    assert len(printed) > 50
    assert [line for line in printed if line not in shown] == []


def test_tables_of_poses_are_those_of_the_stored_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    pose = importlib.import_module("pose")
    stored = json.loads((ROOT / "benchmarks/results/pose.json").read_text())
    assert pose.tables(stored, pose.OURS) in (ROOT / "docs/pose.md").read_text()
