"""Live examples of the pages that logpolar writes, made while the site is built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from logpolar import Extractor
from logpolar.geometry.options import EstimationOptions
from logpolar.geometry.verification import match_and_verify
from logpolar.matching.options import MatchingOptions
from logpolar.viewing.pages.pair import Side, write_pair_page

PHOTOS = [Path(__file__).parent / "images" / name for name in ("graf1.jpg", "graf3.jpg")]
COMMAND = "logpolar view matches graf1.jpg graf3.jpg -o pair.html --geometry homography"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that docs/gallery.md links to."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "pair.html"
        write_example(path)
        files.append(File.generated(config, "gallery/pair.html", content=path.read_bytes()))
    return files


def write_example(path: Path) -> None:
    """The page of the two photos of the documentation."""
    extractor = Extractor()
    first, second = (extractor.extract(photo) for photo in PHOTOS)
    found = match_and_verify(first, second, "homography")
    sides = [replace(Side.open(*each), name=each[0].name) for each in zip(PHOTOS, (first, second), strict=True)]
    pattern, threshold = extractor.model.sampling, EstimationOptions().threshold
    write_pair_page(path, (sides[0], sides[1]), found, pattern, MatchingOptions(), threshold, command=COMMAND)
