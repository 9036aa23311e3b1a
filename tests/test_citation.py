"""CITATION.cff says what the package says, and names the paper."""

from __future__ import annotations

from pathlib import Path

import pytest

import logpolar

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def citation():
    return yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_the_software(citation):
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()  # what the format asks for
    assert citation["version"] == logpolar.__version__
    assert f'license = "{citation["license"]}"' in (ROOT / "pyproject.toml").read_text()


def test_the_paper(citation):
    paper = citation["preferred-citation"]
    assert paper["title"] == "Beyond Cartesian Representations for Local Descriptors"
    assert [author["family-names"] for author in paper["authors"]] == ["Ebel", "Mishchuk", "Yi", "Fua", "Trulls"]
    assert (paper["type"], paper["year"]) == ("conference-paper", 2019)


def test_the_version_has_an_entry_in_the_changelog():
    release = logpolar.__version__.split(".dev")[0]
    assert f"\n## [{release}]" in (ROOT / "CHANGELOG.md").read_text()
