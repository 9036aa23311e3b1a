"""AMOS patches: places in views of static cameras, recognised at another time of day or year; the paper's Table 4.

Layout of the folder, as published:
    - ``Train/<view>/*``: images of each view; only light, weather and season change.
    - ``train_patches.pt``: a list of tensors, of which the second is LAFs (N, 2, 3) = [A | xy] in pixels of the images,
      and the third the number of each LAF's view (N, 1), or (N,), among the sorted names of views.
    - ``images_in_views.npy``: a dictionary from a view to the names of its images, in the order that draws depend on.
      It is a separate download; without it the folders are listed, which draws other pairs.

For each LAF two images of its view are drawn, with the same keypoint in both: at xy, upright, ``size`` =
sqrt(det A + 1e-10). A LAF's scale is about the half-width of a patch, 16 px and more, not the diameter of a SIFT
keypoint. A descriptor of support lambda reads a disc of radius R = lambda / 2 * size: lambda = 2 reads the patch
itself, lambda = 12 six times its half-width, and lambda = 96 mostly the continuation of the image past its borders.

A list of image pairs of fixed cameras (``datasets.aligned``) can stand in for the folder. Places and sizes are then
those of SIFT keypoints of each pair's first image. Such figures are not comparable with the paper's; the results say
so.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.aligned import read_pair_list
from logpolar.errors import LogpolarError, MissingExtraError, in_words
from logpolar.evaluation.cache import Uncached
from logpolar.evaluation.descriptors.registry import Method, takes_lambda
from logpolar.evaluation.metrics import cumulative, pooled_ranks, rank1
from logpolar.evaluation.options import AmosOptions, RunOptions
from logpolar.evaluation.protocol import Protocol, Results, bar, decimal, read_numbers
from logpolar.geometry.radius_search import keep_apart
from logpolar.images import images_in, read_gray, read_image, to_bytes
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import SiftDetector
from logpolar.storage.inputs import check_regular
from logpolar.storage.safe_npy import read_object
from logpolar.types import FloatArray

SKIPPED = frozenset({"00034154", "00036180", "00036169", "00011611", "00004431"})
"""Views that the paper leaves out."""

CANVAS = 1500
"""The paper's images are put on a canvas of this many pixels; views with larger images are left out."""

RANKS = (1, 2, 5, 10, 20, 50, 100)
"""Ranks, counted from 1, at which cumulative fractions are reported."""

_LISTS, _PATCHES = "images_in_views.npy", "train_patches.pt"
_SPACING, _PER_PAIR = 7.0, 100  # pixels between keypoints of a listed pair, and their number


class Amos(Protocol):
    """Ranks among the keypoints of all views."""

    name = "amos"
    columns = ("rank-1", *(f"rank ≤ {place}" for place in RANKS[1:]), "N (views)")

    def __init__(self, run: RunOptions, folder: Path, options: AmosOptions, lambdas: str = "") -> None:
        super().__init__(run)
        self._folder, self._options = folder, options
        self._lambdas = read_numbers(lambdas, "--lambdas", 0.01, 1000)
        self.options = {**asdict(options), "lambdas": lambdas}

    def specs(self) -> list[str]:
        """Each method with each support, where the support can be chosen."""
        chosen = [(spec, self._lambdas if takes_lambda(spec) else []) for spec in self.run.specs]
        return [each for spec, lambdas in chosen for each in [f"{spec},lambda={v:g}" for v in lambdas] or [spec]]

    def prepare(self) -> None:
        self._pairs = amos_pairs(self._folder, self._options)
        self.data = self._pairs.identity()

    def score(self, method: Method) -> AmosScore:
        with self.cache(method, self.data, {}) as views:
            return score_amos(self._pairs, views, bar(method.name))

    def report(self, results: Results, scores: Mapping[str, AmosScore]) -> None:
        for name, score in scores.items():
            fractions = [decimal(fraction) for fraction in score.cumulative.values()]
            results.add(name, [*fractions, f"{score.pairs} ({score.views})"])
            values = score.to_dict()
            results.results[name] = values
            counts = {key: values[key] for key in ("pairs", "views", "images")}
            ranks = {f"rank_{place}": fraction for place, fraction in values["cumulative"].items()}
            results.records[""].append({"descriptor": name, **counts, **ranks})
        left_out = len(self._pairs.left_out)
        results.notes.append(f"Order of images: {self._pairs.lists}; views left out: {left_out}.")


@dataclass(frozen=True, eq=False)
class AmosGroup:
    """Keypoints compared in the same two images of a view, at the same places in both."""

    view: str
    first: Path
    second: Path
    rows: NDArray[np.intp]  # in the pool of all pairs
    keypoints: Keypoints


@dataclass(frozen=True, eq=False)
class AmosPairs:
    """Groups of keypoints, and their origin."""

    options: AmosOptions
    groups: tuple[AmosGroup, ...]
    lists: str  # source of the order of images: the published file, or the folders
    left_out: Mapping[str, str]  # view -> reason

    def __len__(self) -> int:
        """Pairs of keypoints."""
        return sum(len(group.rows) for group in self.groups)

    def __iter__(self) -> Iterator[AmosGroup]:
        return iter(self.groups)

    def identity(self) -> dict[str, str]:
        """Identity of these pairs: which keypoints are compared in which images."""
        digest = hashlib.sha256()
        for group in self.groups:
            digest.update(repr((group.view, group.first.name, group.second.name, group.rows.tolist())).encode())
            digest.update(group.keypoints.table.tobytes())
        return {"pairs": digest.hexdigest()[:32]}


@dataclass(frozen=True)
class AmosScore:
    """Fractions, not percent, among the positives of all views."""

    options: AmosOptions
    pairs: int
    views: int
    images: int
    rank1: float
    cumulative: dict[int, float]  # rank -> fraction of keypoints whose positive has that rank or a better one
    lists: str
    left_out: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        fractions = {str(place): round(fraction, 5) for place, fraction in self.cumulative.items()}
        return asdict(self) | {"rank1": round(self.rank1, 5), "cumulative": fractions}


def amos_pairs(folder: str | Path, options: AmosOptions | None = None) -> AmosPairs:
    """Draw the pairs of a folder in the published layout; mode paper reads all images for their sizes.

    Or, if ``folder`` is a text file, the strongest SIFT keypoints of the image pairs it lists.
    """
    options, folder = options or AmosOptions(), Path(folder)
    if folder.is_file():
        return _listed_pairs(folder, options)
    lafs, numbers = _read_patches(folder / _PATCHES)
    views = _find_views(folder / "Train")
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(views):
        worst = int(numbers.max() if numbers.min() >= 0 else numbers.min())
        raise LogpolarError(
            f"{folder / _PATCHES}: a patch of view number {worst}, but Train has {len(views)} views (0 ...)"
        )
    used = [views[number] for number in np.unique(numbers)]
    left_out = {view: "the paper leaves it out" for view in used if options.mode == "paper" and view in SKIPPED}
    images, lists = _list_images(folder, views, [view for view in used if view not in left_out])
    names = [views[number] for number in numbers.tolist()]
    drawn = _draw(names, images, options.seed)
    if options.mode == "paper":
        left_out |= _oversized(images)
    kept = [row for row in drawn if names[row] not in left_out]
    if not kept:
        raise LogpolarError(f"{folder}: all {len(names)} patches are of views that are left out")
    groups = _group([(names[row], *drawn[row]) for row in kept], _keypoints(lafs[kept]))
    return AmosPairs(options, groups, lists, left_out)


def _listed_pairs(path: Path, options: AmosOptions) -> AmosPairs:
    places, keypoints = list[tuple[str, Path, Path]](), Keypoints.empty()
    pairs = read_pair_list(path)
    for pair in pairs:
        if pair.homography is not None:
            raise LogpolarError(f"{path}: places must be the same in both images; leave out pairs with a homography")
        found = SiftDetector(None)(read_gray(pair.first))
        strongest = np.argsort(-found.response, kind="stable").tolist()
        found = found[keep_apart(strongest, [found.xy], _SPACING, _PER_PAIR)]
        keypoints += Keypoints.from_points(found.xy, found.size)  # upright
        places += [(f"{pair.first.parent.name}/{pair.first.name}", pair.first, pair.second)] * len(found)
    if not places:
        raise LogpolarError(f"{path}: no keypoints in the first images of its {len(pairs)} pairs")
    lists = f"as listed in {path.name}, a stand-in for AMOS with SIFT keypoints"
    return AmosPairs(options, _group(places, keypoints), lists, {})


def score_amos(
    pairs: AmosPairs,
    views: Uncached,
    progress: Callable[[Collection[Path]], Iterable[Path]] = iter,
) -> AmosScore:
    """Ranks of positives among those of all pairs; each image is read and described once."""
    wanted: dict[Path, list[tuple[int, AmosGroup]]] = defaultdict(list)
    for group in pairs:
        wanted[group.first].append((0, group))
        wanted[group.second].append((1, group))
    found: list[list[FloatArray]] = [[np.zeros(0, np.float32)] * len(pairs) for _ in range(2)]
    for path in progress(wanted):
        uses = wanted[path]
        table = np.concatenate([group.keypoints.table for _, group in uses])
        keypoints = Keypoints.from_points(table[:, :2], table[:, 2], table[:, 3])
        descriptors = views.describe(f"{path.parent.name}/{path.name}", to_bytes(read_gray(path)), keypoints)
        places = [(side, row) for side, group in uses for row in group.rows.tolist()]
        for (side, row), descriptor in zip(places, descriptors, strict=True):
            found[side][row] = descriptor
    ranks = pooled_ranks(np.stack(found[0]), np.stack(found[1]))
    return AmosScore(
        options=pairs.options,
        pairs=len(ranks),
        views=len({group.view for group in pairs}),
        images=len(wanted),
        rank1=rank1(ranks),
        cumulative=dict(zip(RANKS, cumulative(ranks, RANKS).tolist(), strict=True)),
        lists=pairs.lists,
        left_out=dict(pairs.left_out),
    )


def _draw(names: Sequence[str], images: Mapping[str, list[Path]], seed: int) -> dict[int, tuple[Path, Path]]:
    """Two images for each row whose view has a list, in the order of the paper's draws.

    Rows of skipped views draw nothing. Those of views that are too large do, though they are not used.
    """
    random = np.random.RandomState(seed)
    drawn = {}
    for row, view in enumerate(names):
        if view in images:
            one, other = random.choice(len(images[view]), 2, replace=False).tolist()
            drawn[row] = images[view][one], images[view][other]
    return drawn


def _group(drawn: Sequence[tuple[str, Path, Path]], keypoints: Keypoints) -> tuple[AmosGroup, ...]:
    rows: dict[tuple[str, Path, Path], list[int]] = defaultdict(list)
    for row, key in enumerate(drawn):
        rows[key].append(row)
    return tuple(AmosGroup(*key, np.array(mine, np.intp), keypoints[np.array(mine)]) for key, mine in rows.items())


def _keypoints(lafs: NDArray[np.float64]) -> Keypoints:
    area = lafs[:, 0, 0] * lafs[:, 1, 1] - lafs[:, 0, 1] * lafs[:, 1, 0]
    return Keypoints.from_points(lafs[:, :, 2], np.sqrt(area + 1e-10))


def _oversized(images: Mapping[str, list[Path]]) -> dict[str, str]:
    result = {}
    for view, paths in images.items():
        for path in paths:
            height, width = read_image(path).shape[:2]
            if max(height, width) > CANVAS:
                result[view] = f"{path.name} is {width} x {height}, larger than {CANVAS} px"
                break
    return result


def _find_views(folder: Path) -> list[str]:
    try:
        views = sorted(path.name for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        raise LogpolarError(f"{folder}: {in_words(error)}") from error
    if not views:
        raise LogpolarError(f"{folder}: no views in this folder")
    return views


def _list_images(folder: Path, views: list[str], used: list[str]) -> tuple[dict[str, list[Path]], str]:
    """Images of the views in use, and the source of their order."""
    train, lists = folder / "Train", folder / _LISTS
    if lists.exists():
        names = _read_lists(lists)
        missing = sorted(set(names) - set(views))
        if missing:  # view numbers would mean other views
            raise LogpolarError(f"{train}: no view '{missing[0]}', which is in {_LISTS} ({len(missing)} such)")
        unknown = [view for view in used if view not in names]
        if unknown:
            raise LogpolarError(f"{lists}: no list of images of the view '{unknown[0]}'")
        images = {view: [train / view / name for name in names[view]] for view in used}
    else:
        images = {view: images_in(train / view) for view in used}
    for view, paths in images.items():
        if len(set(paths)) < 2:
            raise LogpolarError(f"{train / view}: {len(set(paths))} image(s) in this view; pairs need two")
        if len(set(paths)) < len(paths):  # an image would be compared with itself
            raise LogpolarError(f"{lists}: an image of the view '{view}' is listed twice")
        absent = [path for path in paths if not path.is_file()]
        if absent:
            raise LogpolarError(
                f"{absent[0]}: no such image, though listed in {_LISTS} ({len(absent)} such in the view)"
            )
    return images, _LISTS if lists.exists() else f"folders, sorted ({_LISTS} is missing)"


def _read_lists(path: Path) -> dict[str, list[str]]:
    stored = read_object(path)
    if not isinstance(stored, dict):
        raise LogpolarError(f"{path}: not a dictionary from views to images")
    result = {}
    for view, names in stored.items():
        if not isinstance(names, list | tuple | np.ndarray):
            raise LogpolarError(f"{path}: the entry of view '{view}' is not a list")
        if not isinstance(view, str | int) or not all(isinstance(name, str) for name in names):
            raise LogpolarError(f"{path}: a view's entry is not a list of file names")
        result[str(view)] = [str(name) for name in names]
        outside = [name for name in result[str(view)] if Path(name).name != name]
        if outside:
            raise LogpolarError(f"{path}: '{outside[0]}' is not the name of a file in a view")
    return result


def _numbers(tensor: Any) -> NDArray[Any]:
    """The values of a tensor; one that repeats its few stored values, and would take far more memory, is refused."""
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError("repeats its values")
    return np.asarray(tensor.detach().numpy())


def _read_patches(path: Path) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """LAFs (N, 2, 3) and the number of each one's view (N,), read without unpickling objects."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("reading AMOS patches", "torch") from error
    check_regular(path, LogpolarError)
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise LogpolarError(f"{path}: {in_words(error)}") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError, AttributeError) as error:
        raise LogpolarError(f"{path}: not a file of tensors, or an incomplete one") from error
    if not isinstance(stored, list | tuple) or len(stored) < 3:
        raise LogpolarError(f"{path}: not a list of patches, LAFs and views")
    if not all(isinstance(values, torch.Tensor) for values in stored[1:3]):
        raise LogpolarError(f"{path}: LAFs and views are not tensors")
    try:
        lafs, numbers = (_numbers(values) for values in stored[1:3])
    except (TypeError, RuntimeError, ValueError, NotImplementedError) as error:
        raise LogpolarError(f"{path}: LAFs and views are not tensors of plain numbers") from error
    lafs = lafs.astype(np.float64)
    if lafs.ndim != 3 or lafs.shape[1:] != (2, 3):
        raise LogpolarError(f"{path}: LAFs have the shape (N, 2, 3), not {lafs.shape}")
    if numbers.ndim not in (1, 2) or numbers.shape not in ((len(lafs),), (len(lafs), 1)):
        raise LogpolarError(f"{path}: {len(lafs)} LAFs, but numbers of views of shape {numbers.shape}")
    with np.errstate(invalid="ignore"):
        usable = np.isfinite(lafs).all(axis=(1, 2)) & (np.linalg.det(lafs[:, :, :2]) > 0)
    if len(lafs) == 0 or not usable.all():
        raise LogpolarError(f"{path}: {int((~usable).sum())} of {len(lafs)} LAFs have no positive, finite scale")
    return lafs, numbers.reshape(-1).astype(np.int64)
