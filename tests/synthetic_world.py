"""An exact world for tests: textured parallelograms, seen by pinhole cameras, written as a COLMAP dense workspace.

Conventions:
    - Pixel centres lie at integers, (0, 0) is the centre of the top-left pixel; the image reaches from -0.5 to
      width - 0.5. COLMAP counts from the corner, so its files get + 0.5.
    - Camera axes: x right, y down, z forward; X_camera = rotation @ X + translation; depth is z.
    - World axes of ``standard_world``: y down, the ground at y = 0, the cameras look towards + z.

A point of a parallelogram is origin + a edge_u + b edge_v. In a camera's axes, with M = [edge_u, edge_v, origin],
M (a, b, 1) = depth * ray, so (a, b, 1) / depth is linear in the pixel. This one identity gives ray casting, inverse
depth, texture coordinates and the exact homography between two views of the same parallelogram.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path

import cv2
import numpy as np

SUPERSAMPLING = 3
"""Rays a pixel, along x and along y."""

PIXEL_BLUR = 0.5
"""Standard deviation in pixels of the Gaussian that averages the rays: the blur that SIFT takes an image to have."""

SKY = 200
"""Gray value where a ray hits nothing."""

SAME_SURFACE = 1e-6
"""A surface hides a point if it is nearer than the point by more than this share of the depth."""

UNMATCHED = 3
"""Points of each image, before all others, that belong to no 3D point: indices must not be taken for granted."""


@dataclass(frozen=True, eq=False)
class Pinhole:
    """A camera with square pixels and its principal point in the middle of the image."""

    width: int
    height: int
    focal: float
    rotation: np.ndarray
    translation: np.ndarray

    @property
    def intrinsics(self) -> np.ndarray:
        return np.array([[self.focal, 0, (self.width - 1) / 2], [0, self.focal, (self.height - 1) / 2], [0, 0, 1]])

    def project(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """World points (N, 3) to pixels (N, 2) and depth (N,)."""
        homogeneous = (points @ self.rotation.T + self.translation) @ self.intrinsics.T
        return homogeneous[:, :2] / homogeneous[:, 2:], homogeneous[:, 2]

    def lift(self, xy: np.ndarray, depth: np.ndarray) -> np.ndarray:
        """Pixels (N, 2) with depth (N,) to world points (N, 3)."""
        rays = with_ones(xy) @ np.linalg.inv(self.intrinsics).T
        return (rays * np.asarray(depth)[:, None] - self.translation) @ self.rotation

    def inside(self, xy: np.ndarray) -> np.ndarray:
        """Whether pixels (N, 2) lie in the image, the outer halves of its border pixels included."""
        return ((xy >= -0.5) & (xy <= np.array([self.width, self.height]) - 0.5)).all(axis=1)


def look_at(position, target, focal: float, width: int, height: int, roll_degrees: float = 0) -> Pinhole:
    """A camera at ``position`` with ``target`` in the middle; the roll turns the picture clockwise."""
    forward = np.subtract(target, position) / np.linalg.norm(np.subtract(target, position))
    right = np.cross([0, 1, 0], forward)
    right /= np.linalg.norm(right)
    cosine, sine = np.cos(np.radians(roll_degrees)), np.sin(np.radians(roll_degrees))
    roll = np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]])
    rotation = roll @ np.stack([right, np.cross(forward, right), forward])
    return Pinhole(width, height, focal, rotation, -rotation @ np.asarray(position, float))


@dataclass(frozen=True, eq=False)
class Quad:
    """A textured parallelogram: the texture's columns run along ``edge_u``, its rows along ``edge_v``."""

    origin: np.ndarray
    edge_u: np.ndarray
    edge_v: np.ndarray
    texture: np.ndarray

    def to_pixel(self, camera: Pinhole) -> np.ndarray:
        """Matrix (3, 3) from (a, b, 1) to depth * (x, y, 1)."""
        frame = np.stack([self.edge_u, self.edge_v, self.origin], axis=1)
        shift = np.outer(camera.translation, [0, 0, 1])
        return camera.intrinsics @ (camera.rotation @ frame + shift)

    @lru_cache(4096)  # noqa: B019 -- worlds are few, and tests ask for the same cameras again and again
    def from_pixel(self, camera: Pinhole) -> np.ndarray:
        """Matrix (3, 3) from (x, y, 1) to (a, b, 1) / depth; zero for a quad seen edge-on, which no ray hits."""
        matrix = self.to_pixel(camera)
        return np.linalg.inv(matrix) if np.linalg.cond(matrix) < 1e12 else np.zeros((3, 3))

    @cached_property
    def pyramid(self) -> list[np.ndarray]:
        """The texture, halved again and again; pixel i of a level lies on pixel 2 i of the level before."""
        levels = [self.texture.astype(np.float32)]
        while min(levels[-1].shape) > 8:
            levels.append(cv2.pyrDown(levels[-1]))
        return levels

    def look_up(self, place: np.ndarray, spacing: np.ndarray) -> np.ndarray:
        """Texture at ``place`` (N, 2) = (a, b), for samples ``spacing`` (N,) texture pixels apart from each other."""
        xy = place * self.texture.shape[::-1] - 0.5
        level = np.clip(np.log2(spacing), 0, len(self.pyramid) - 1)
        value = np.zeros(len(xy), np.float32)
        for number in range(int(level.min()), int(np.ceil(level.max())) + 1):
            weight = 1 - np.abs(level - number)
            here = np.flatnonzero(weight > 0)
            value[here] += weight[here] * bilinear(self.pyramid[number], xy[here] / 2**number)
        return value


@dataclass(frozen=True, eq=False)
class Transfer:
    """Where pixels of one image lie in another: NaN where no surface was hit or it lies behind the second camera."""

    xy: np.ndarray
    depth: np.ndarray
    """(N,), in the second camera."""
    visible: np.ndarray
    """(N,) bool: inside the second image, in front of the camera and with nothing nearer on the ray."""
    jacobian: np.ndarray
    """(N, 2, 2), d (x, y in the second image) / d (x, y in the first) on the plane of the surface."""
    quad: np.ndarray
    """(N,), index of the surface, -1 for none."""


@dataclass(frozen=True, eq=False)
class SparsePoints:
    """3D points (P, 3), which of C cameras see them (P, C), and their pixels (P, C, 2), valid where they are seen."""

    xyz: np.ndarray
    seen: np.ndarray
    xy: np.ndarray


@dataclass(frozen=True, eq=False)
class World:
    quads: Sequence[Quad]
    cameras: Sequence[Pinhole]

    def cast(self, camera: Pinhole, xy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Depth (N,) and index (N,) of the nearest quad on the rays of pixels (N, 2); NaN and -1 where none is hit."""
        x, y = np.asarray(xy, float).T
        nearness, index = np.zeros(len(x)), np.full(len(x), -1)
        for number, quad in enumerate(self.quads):
            a, b, inverse_depth = (row[0] * x + row[1] * y + row[2] for row in quad.from_pixel(camera))
            hit = (inverse_depth > nearness) & (a >= 0) & (b >= 0) & (a <= inverse_depth) & (b <= inverse_depth)
            nearness[hit], index[hit] = inverse_depth[hit], number
        return np.divide(1, nearness, out=np.full(len(x), np.nan), where=index >= 0), index

    def transfer(self, first: Pinhole, second: Pinhole, xy: np.ndarray) -> Transfer:
        """The exact fate in ``second`` of pixels (N, 2) of ``first``."""
        depth_first, index = self.cast(first, xy)
        maps = [quad.to_pixel(second) @ quad.from_pixel(first) for quad in self.quads]
        homography = np.stack([*maps, np.full((3, 3), np.nan)])[index]  # -1, no quad, picks the last
        moved = np.einsum("nij,nj->ni", homography, with_ones(xy))
        depth = moved[:, 2] * depth_first
        moved[~(depth > 0)] = np.nan
        there, scale = moved[:, :2] / moved[:, 2:], moved[:, 2, None, None]
        jacobian = (homography[:, :2, :2] - there[:, :, None] * homography[:, None, 2, :2]) / scale
        hidden = self.cast(second, there)[0] < depth * (1 - SAME_SURFACE)
        return Transfer(there, depth, second.inside(there) & ~hidden, jacobian, index)

    def depth_map(self, camera: Pinhole, scale: float = 1.0) -> np.ndarray:
        """Exact depth, float32, 0 for sky, in a map smaller by ``scale`` that covers the same image area."""
        width, height = round(camera.width * scale), round(camera.height * scale)
        factor = np.array([camera.width / width, camera.height / height])
        depth, _ = self.cast(camera, (pixel_grid(width, height) + 0.5) * factor - 0.5)
        return np.nan_to_num(depth).reshape(height, width).astype(np.float32)

    def render(self, camera: Pinhole) -> tuple[np.ndarray, np.ndarray]:
        """Image uint8 and ``depth_map``, both (height, width)."""
        # One pixel more on each side, so that the blur has true values there too.
        columns, rows = (SUPERSAMPLING * (side + 2) for side in (camera.width, camera.height))
        xy = (pixel_grid(columns, rows) + 0.5) / SUPERSAMPLING - 1.5
        # In parts that fit into the processor's cache: twice as fast.
        fine = np.concatenate([self.shade(camera, part) for part in np.array_split(xy, 12)]).reshape(rows, columns)
        smooth = cv2.GaussianBlur(fine, (0, 0), PIXEL_BLUR * SUPERSAMPLING)
        middle = slice(SUPERSAMPLING + SUPERSAMPLING // 2, -SUPERSAMPLING, SUPERSAMPLING)
        return np.rint(smooth[middle, middle]).astype(np.uint8), self.depth_map(camera)

    def shade(self, camera: Pinhole, xy: np.ndarray) -> np.ndarray:
        """Gray values (N,), float32, on the rays of pixels (N, 2), which are 1 / SUPERSAMPLING apart."""
        depth, index = self.cast(camera, xy)
        value = np.full(len(xy), SKY, np.float32)
        for number, quad in enumerate(self.quads):
            hit = np.flatnonzero(index == number)
            if len(hit) == 0:
                continue
            matrix = quad.from_pixel(camera)
            place = (xy[hit] @ matrix[:2, :2].T + matrix[:2, 2]) * depth[hit, None]
            # The determinant of the map (x, y) -> (a, b) is how large a pixel is on the quad.
            area = np.abs(np.linalg.det(matrix)) * depth[hit] ** 3 * quad.texture.size
            value[hit] = quad.look_up(place, np.sqrt(area) / SUPERSAMPLING)
        return value

    @cached_property
    def views(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """``render`` of every camera, made once."""
        return [self.render(camera) for camera in self.cameras]

    def sparse_points(self, random: np.random.Generator, per_camera: int = 400) -> SparsePoints:
        """Surface points at random pixels of each camera that two cameras or more see."""
        parts = []
        for camera in self.cameras:
            xy = random.uniform(-0.5, np.array([camera.width, camera.height]) - 0.5, (per_camera, 2))
            moved = [self.transfer(camera, other, xy) for other in self.cameras]
            seen = np.stack([each.visible for each in moved], axis=1)
            pixels = np.stack([each.xy for each in moved], axis=1)
            keep = seen.sum(axis=1) >= 2
            parts.append((camera.lift(xy, self.cast(camera, xy)[0])[keep], seen[keep], pixels[keep]))
        return SparsePoints(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def with_ones(xy: np.ndarray) -> np.ndarray:
    return np.concatenate([xy, np.ones((len(xy), 1))], axis=1)


def pixel_grid(width: int, height: int) -> np.ndarray:
    """All pixels (width * height, 2), row by row."""
    return np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).reshape(-1, 2)


def bilinear(image: np.ndarray, xy: np.ndarray) -> np.ndarray:
    """Values (N,) of an image at pixels (N, 2), the border continued."""
    # remap takes no side of 32768 or more, hence rows of 1024, the last one filled up.
    places = np.resize(xy.astype(np.float32), (-(-len(xy) // 1024), 1024, 2))
    return cv2.remap(image, places, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE).ravel()[: len(xy)]


def make_texture(random: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Noise of all wavelengths with discs and rectangles of all sizes: SIFT keypoints at every scale."""
    canvas = np.zeros((height, width), np.float32)
    for wavelength in 3 * 2 ** np.arange(np.log2(max(width, height) / 3)):
        coarse = random.standard_normal((int(height / wavelength) + 2, int(width / wavelength) + 2), np.float32)
        canvas += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    # Radii with density ~ radius^-3 cover the same area in each octave; large ones first, or they would hide the rest.
    radii = np.sort(np.minimum(3 / np.sqrt(random.uniform(size=canvas.size // 250)), max(canvas.shape) / 8))[::-1]
    for radius in radii:
        draw_shape(canvas, random, radius)
    canvas = cv2.GaussianBlur(canvas, (0, 0), 0.8)
    # Its own brightness sets a surface off from what lies behind it.
    brightness = random.uniform(85, 170)
    return np.clip(brightness + 40 * (canvas - canvas.mean()) / canvas.std(), 0, 255).astype(np.uint8)


def draw_shape(canvas: np.ndarray, random: np.random.Generator, radius: float) -> None:
    """A disc or a turned rectangle of random brightness anywhere on the canvas."""
    height, width = canvas.shape
    x, y, turn, stretch = random.uniform([0, 0, 0, 0.4], [width, height, 180, 1.0])
    value = random.normal(scale=3.0)
    if random.uniform() < 0.5:
        cv2.circle(canvas, (int(x), int(y)), int(radius), value, cv2.FILLED)
    else:
        corners = cv2.boxPoints(((x, y), (2 * radius, 2 * radius * stretch), turn))
        cv2.fillConvexPoly(canvas, corners.astype(np.int32), value)


def make_quad(random: np.random.Generator, origin, edge_u, edge_v, texels_per_unit: float) -> Quad:
    """A parallelogram with a new texture of about square texture pixels."""
    origin, edge_u, edge_v = (np.asarray(vector, float) for vector in (origin, edge_u, edge_v))
    width, height = (round(float(np.linalg.norm(edge)) * texels_per_unit) for edge in (edge_u, edge_v))
    return Quad(origin, edge_u, edge_v, make_texture(random, width, height))


def box(random: np.random.Generator, base, size, yaw_degrees: float, texels_per_unit: float) -> list[Quad]:
    """Four sides and the top of a box of ``size`` (x, height, z), standing on the middle ``base`` of its bottom."""
    cosine, sine = np.cos(np.radians(yaw_degrees)), np.sin(np.radians(yaw_degrees))
    axes = np.array([[cosine, 0, sine], [0, 1, 0], [-sine, 0, cosine]])
    along, down, back = np.asarray(size, float)[:, None] * axes
    front_left = np.asarray(base, float) - down - along / 2 - back / 2
    sides = [(front_left, along), (front_left + along, back), (front_left + along + back, -along)]
    faces = [(start, edge, down) for start, edge in [*sides, (front_left + back, -back)]]
    return [make_quad(random, *face, texels_per_unit) for face in [*faces, (front_left, along, back)]]


def standard_world(seed: int = 0, cameras: int = 6, width: int = 320, height: int = 240) -> World:
    """Four boxes that hide each other, on a ground before a leaning wall with a slit, through which the sky is seen.

    Cameras 0 and 1 have the same distance, so have 2 and 3, and so on; the last is 2.5 times as far as the first.
    Made once for all tests, its views too: not to be changed.
    """
    return _standard_world(seed, cameras, width, height)


@cache
def _standard_world(seed: int, cameras: int, width: int, height: int) -> World:
    random = np.random.default_rng(seed)
    # About half an image pixel for each texture pixel on what is nearest to the nearest camera.
    near, far = 220 * width / 320, 110 * width / 320
    wall_down, wall_along = np.array([0.4, 5, -0.8]), np.array([1, 0, 0.25])
    wall = np.array([-6.5, -4.8, 1.2])
    quads = [
        make_quad(random, [-7, 0, -6], [14, 0, 0], [0, 0, 9], far),
        make_quad(random, wall, 7.6 * wall_along, wall_down, far),
        make_quad(random, wall + 7.9 * wall_along, 6 * wall_along, wall_down, far),
        *box(random, [-0.75, 0, -0.1], [0.9, 1.3, 0.7], 20, near),
        *box(random, [0.15, 0, -0.7], [0.7, 0.6, 0.5], -25, near),
        *box(random, [0.85, 0, 0.3], [0.8, 1.0, 0.8], 40, near),
        *box(random, [-1.9, 0, 0.3], [1.0, 1.9, 0.8], -35, far),
    ]
    return World(quads, [standard_camera(random, index, cameras, width, height) for index in range(cameras)])


def standard_camera(random: np.random.Generator, index: int, count: int, width: int, height: int) -> Pinhole:
    """Camera ``index`` of ``count`` on an arc of 30 degrees."""
    distance = 3.4 * 2.5 ** (index // 2 / max((count - 1) // 2, 1))
    azimuth = np.radians(32 * (0.618 * index % 1) - 16)  # the golden ratio spreads any number of cameras evenly
    elevation, roll = np.radians(random.uniform(17, 28)), random.uniform(-20, 20)
    direction = [np.sin(azimuth) * np.cos(elevation), -np.sin(elevation), -np.cos(azimuth) * np.cos(elevation)]
    target = np.array([0, -0.6, 0]) + random.uniform(-0.15, 0.15, 3)
    focal = 1.1 * width * random.uniform(0.95, 1.05)
    return look_at(target + distance * np.array(direction), target, focal, width, height, roll)


def write_depth(path: Path, depth: np.ndarray) -> None:
    """A depth map in COLMAP's format, NaN as 0, which is COLMAP's unknown."""
    height, width = depth.shape
    data = np.nan_to_num(depth).astype("<f4").tobytes()
    Path(path).write_bytes(f"{width}&{height}&1&".encode() + data)


def write_workspace(
    world: World,
    folder: Path,
    binary: bool = False,
    depth_kind: str = "photometric",
    depth_scale: float = 1.0,
    depth_noise: float = 0.0,
    image_names: Sequence[str] | None = None,
    seed: int = 0,
) -> SparsePoints:
    """Write images, sparse model and depth maps as COLMAP's image_undistorter and patch_match_stereo do.

    ``depth_noise`` is the standard deviation of a relative error, independent for each pixel. Returns the points of
    the sparse model; image i + 1 is that of camera i.
    """
    random = np.random.default_rng(seed)
    names = image_names or [f"view{index}.png" for index in range(len(world.cameras))]
    for camera, name, (image, depth) in zip(world.cameras, names, world.views, strict=True):
        exact = depth if depth_scale == 1 else world.depth_map(camera, depth_scale)
        depth_path = Path(folder) / "stereo" / "depth_maps" / f"{name}.{depth_kind}.bin"
        image_path = Path(folder) / "images" / name
        for path in (depth_path, image_path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_depth(depth_path, exact * (1 + depth_noise * random.standard_normal(exact.shape)))
        cv2.imwrite(str(image_path), image)
    points = world.sparse_points(random)
    write_sparse(world, Path(folder) / "sparse", names, points)
    if binary:
        text_to_binary(Path(folder) / "sparse")
    return points


def write_sparse(world: World, folder: Path, names: Sequence[str], points: SparsePoints) -> None:
    """COLMAP's text model: image i + 1 of camera i; camera numbers run backwards, lest they be taken for an image's."""
    folder.mkdir(parents=True, exist_ok=True)
    cameras, images = [], []
    for index, (camera, name) in enumerate(zip(world.cameras, names, strict=True)):
        number = len(world.cameras) - index
        centre = camera.intrinsics[:2, 2] + 0.5
        cameras.append(line(number, "PINHOLE", camera.width, camera.height, camera.focal, camera.focal, *centre))
        images.append(line(index + 1, *quaternion(camera.rotation), *camera.translation, number, name))
        here = np.flatnonzero(points.seen[:, index])
        features = [(*xy, point + 1) for xy, point in zip(points.xy[here, index] + 0.5, here, strict=True)]
        unmatched = [(step + 0.5, step + 0.5, -1) for step in range(UNMATCHED)]
        images.append(line(*(value for feature in unmatched + features for value in feature)))
    # The place of a point among the points of each image.
    order = np.cumsum(points.seen, axis=0) - 1 + UNMATCHED
    tracks = []
    for index, xyz in enumerate(points.xyz):
        track = [value for image in np.flatnonzero(points.seen[index]) for value in (image + 1, order[index, image])]
        tracks.append(line(index + 1, *xyz, 128, 128, 128, 0.0, *track))
    for name, lines in (("cameras", cameras), ("images", images), ("points3D", tracks)):
        (folder / f"{name}.txt").write_text("# " + name + "\n" + "".join(lines))


def line(*values: object) -> str:
    """One line of a COLMAP text file, floats to the last bit."""
    return " ".join(f"{value:.17g}" if isinstance(value, float) else str(value) for value in values) + "\n"


def quaternion(rotation: np.ndarray) -> np.ndarray:
    """(w, x, y, z) of a rotation matrix."""
    axis = cv2.Rodrigues(rotation)[0].ravel()
    angle = np.linalg.norm(axis)
    # sinc, so that no rotation at all needs no case of its own: sin(angle / 2) / angle = sinc(angle / 2 pi) / 2.
    return np.array([np.cos(angle / 2), *(axis * np.sinc(angle / (2 * np.pi)) / 2)])


def text_to_binary(folder: Path) -> None:
    """Replace COLMAP's text model by the binary one of pycolmap, which adds rigs and frames."""
    import pycolmap

    pycolmap.Reconstruction(str(folder)).write_binary(str(folder))
    for path in folder.glob("*.txt"):
        path.unlink()
