from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import logpolar

PAGES = Path(__file__).parents[1] / "docs" / "api"
NAMES = sorted(set(logpolar.__all__) - {"__version__"})


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_a_docstring_of_its_own(name):
    thing = getattr(logpolar, name)
    assert thing.__name__ == name
    assert len(inspect.getdoc(thing) or "") > 20
    assert not (inspect.getdoc(thing) or "").startswith(f"{name}(")  # what dataclasses write by themselves


def test_the_reference_shows_every_name():
    text = "\n".join(page.read_text() for page in PAGES.glob("*.md"))
    shown = set(re.findall(r"(?m)^::: logpolar\.([^.\s]+)$", text)) - {"errors", "models"}
    members = {name for names in re.findall(r"members: \[(.*)\]", text) for name in names.split(", ")}
    errors = {name for name in NAMES if name.endswith(("Error", "Warning"))}
    assert shown | (members & errors) == set(NAMES)


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'ImagePyramid'"):
        _ = logpolar.ImagePyramid


def test_names_are_listed_and_imported_when_first_used():
    assert set(NAMES) < set(dir(logpolar))
    code = "import sys, logpolar; print({'numpy', 'cv2', 'h5py'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
