"""Live examples of the pages that logpolar writes, made by its commands while the site is built."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from logpolar.cli import main

IMAGES = Path(__file__).parent / "images"
COMMANDS = (
    "logpolar view matches graf1.jpg graf3.jpg -o pair.html --geometry homography",
    "logpolar sfm photos model -m logpolar-96-small --max-keypoints 1800 --camera-mode single --jobs 1",
    "logpolar view model model -o scene.html",
    "logpolar dataset homographies walls -o walls.h5 --views 3 --jobs 1",
    "logpolar dataset show walls.h5 --html dataset.html --count 4",
    "logpolar eval patches walls.h5 -d sift -d rootsift -d logpolar-96-small --resamples 50 -o results",
    "logpolar eval report results -o report",
)
PAGES = {
    "pair.html": "pair.html",
    "scene.html": "scene.html",
    "dataset.html": "dataset.html",
    "report/report.html": "results.html",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that docs/gallery.md links to."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        make_pages(folder)
        for made, shown in PAGES.items():
            files.append(File.generated(config, f"gallery/{shown}", content=(folder / made).read_bytes()))
    return files


def make_pages(folder: Path) -> None:
    """Run the commands in a folder with the photos they need."""
    (folder / "walls").mkdir()
    for place in (folder, folder / "walls"):
        for name in ("graf1.jpg", "graf3.jpg"):
            shutil.copy(IMAGES / name, place)
    write_room(folder / "photos")
    with _inside(folder):
        for command in COMMANDS:
            sys.argv = shlex.split(command)
            with contextlib.redirect_stdout(io.StringIO()):
                try:
                    main.main(sys.argv[1:], standalone_mode=False)
                except SystemExit as done:
                    if done.code:  # would end the build as if it were complete
                        raise RuntimeError(f"{command}: exit code {done.code}") from done


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before, words = Path.cwd(), sys.argv
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        sys.argv = words


def write_room(folder: Path, cameras: int = 10, size: tuple[int, int] = (800, 600)) -> None:
    """Views of a room whose walls are photos, a photo without anything in it, and one of something else."""
    folder.mkdir()
    data = (resources.files("logpolar") / "assets" / "astronaut.jpg").read_bytes()
    portrait = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    wall, other = (cv2.imread(str(IMAGES / name)) for name in ("graf1.jpg", "graf3.jpg"))
    quads = [  # texture, upper left corner, edges to the right and down; y is down
        (wall, (-4.0, -3.0, 4.0), (8.0, 0.0, 0.0), (0.0, 4.5, 0.0)),
        (other[::-1], (-4.0, 1.5, 4.0), (8.0, 0.0, 0.0), (0.0, 0.0, -6.0)),
        (portrait, (-4.0, -3.0, -1.0), (0.0, 0.0, 5.0), (0.0, 4.5, 0.0)),
        (portrait[:, ::-1], (0.8, -0.2, 1.5), (1.7, 0.0, 0.6), (0.0, 1.7, 0.0)),
    ]
    for number, angle in enumerate(np.linspace(-0.5, 0.6, cameras)):
        place = np.array([7 * np.sin(angle), -0.8 - 0.4 * np.cos(3 * number), 2 - 8 * np.cos(angle)])
        cv2.imwrite(str(folder / f"view-{number:02}.jpg"), _render(quads, place, size), [cv2.IMWRITE_JPEG_QUALITY, 92])
    cv2.imwrite(str(folder / "fog.jpg"), np.full((size[1], size[0], 3), 200, np.uint8))
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    cv2.imwrite(str(folder / "elsewhere.jpg"), cv2.resize(noise, size, interpolation=cv2.INTER_CUBIC))


def _render(quads: list, place: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Textured parallelograms as an upright camera at a place sees them, the last over the others."""
    forward = np.array([0.0, -0.3, 2.0]) - place
    forward /= np.linalg.norm(forward)
    right = np.cross([0.0, 1.0, 0.0], forward)
    right /= np.linalg.norm(right)
    rotation = np.stack([right, np.cross(forward, right), forward])
    matrix = np.array([[0.97 * size[0], 0, size[0] / 2], [0, 0.97 * size[0], size[1] / 2], [0, 0, 1]])
    picture = np.full((size[1], size[0], 3), 225, np.uint8)
    for texture, corner, across, down in quads:
        height, width = texture.shape[:2]
        frame = np.stack([np.array(across) / width, np.array(down) / height, np.array(corner) - place], axis=1)
        homography = matrix @ rotation @ frame
        for part, blend in ((texture, True), (np.full((height, width), 255, np.uint8), False)):
            seen = cv2.warpPerspective(part, homography, size, flags=cv2.INTER_AREA)
            if blend:
                view = seen
            else:
                picture[seen > 127] = view[seen > 127]
    return picture
