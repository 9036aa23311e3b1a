from __future__ import annotations

import sys
from types import SimpleNamespace

import cv2  # noqa: F401 - before pycolmap, whose zlib breaks OpenCV's PNG writer otherwise
import pycolmap
import pytest

from logpolar.errors import LogpolarError, MissingExtraError, StorageError
from logpolar.sfm.pycolmap_compat import colmap_errors, import_pycolmap, import_pycolmap_4, quiet, set_known


def test_a_missing_pycolmap_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    with pytest.raises(MissingExtraError, match=r"mapping needs .*logpolar\[sfm\]"):
        import_pycolmap("mapping")


def test_an_old_pycolmap_is_refused(monkeypatch):
    monkeypatch.setattr(pycolmap, "__version__", "3.12.0")
    with pytest.raises(LogpolarError, match=r"pycolmap 4 or newer, not 3\.12\.0"):
        import_pycolmap_4("reconstruction")


def test_quiet_is_over_afterwards():
    before = pycolmap.logging.minloglevel
    with pytest.raises(KeyError), quiet():
        assert pycolmap.logging.minloglevel == pycolmap.logging.Level.FATAL.value
        raise KeyError
    assert pycolmap.logging.minloglevel == before


@pytest.mark.parametrize("error", [RuntimeError("full\ntrace"), ValueError("full"), IndexError("full")])
def test_errors_are_one_line(error):
    with pytest.raises(StorageError, match=r"^d.db: not written \(full\)$"), colmap_errors("d.db: not written"):
        raise error


def test_an_error_without_words_is_named():
    with pytest.raises(StorageError, match=r"\(RuntimeError\)"), colmap_errors("d.db: not written"):
        raise RuntimeError


def test_unknown_options_are_skipped():
    options = SimpleNamespace(known=1)
    set_known(options, known=2, unknown=3)
    assert vars(options) == {"known": 2}
