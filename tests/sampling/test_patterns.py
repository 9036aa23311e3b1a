from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from logpolar.sampling.patterns import (
    Cartesian,
    LogPolar,
    inside,
    pattern_from_dict,
    pattern_to_dict,
    pyramid_level,
    reflect,
)

X, Y, SIZE, ANGLE = 100.0, 60.0, 5.0, 30.0


def located(pattern, dtype=np.float64):
    return pattern.locate(np.array([[X, Y]], dtype), np.array([SIZE], dtype), np.array([ANGLE], dtype))


@pytest.mark.parametrize(("name", "share"), [("covariant", 0.0), ("paper", 1.0), (0.3, 0.3)])
def test_log_polar_positions_by_the_formula(name, share):
    pattern = LogPolar(lambda_=20, rows=6, columns=5, inner_radius=name, radius_ratio=40)
    points = located(pattern)
    outer = 20 / 2 * SIZE
    inner = (outer / 40) ** (1 - share)
    for i in range(6):
        phi = math.radians(ANGLE + 360 * (i + 0.5) / 6)
        for j in range(5):
            rho = inner * (outer / inner) ** ((j + 0.5) / 5)
            assert points.x[0, i, j] == pytest.approx(X + rho * math.cos(phi))
            assert points.y[0, i, j] == pytest.approx(Y + rho * math.sin(phi))


def test_cartesian_positions_by_the_formula():
    pattern = Cartesian(lambda_=12, rows=4, columns=6)
    points = located(pattern)
    a, side = math.radians(ANGLE), 12 * SIZE
    for i in range(4):
        for j in range(6):
            u, v = (j + 0.5) / 6 - 0.5, (i + 0.5) / 4 - 0.5
            assert points.x[0, i, j] == pytest.approx(X + side * (u * math.cos(a) - v * math.sin(a)))
            assert points.y[0, i, j] == pytest.approx(Y + side * (u * math.sin(a) + v * math.cos(a)))


@pytest.mark.parametrize("pattern", [LogPolar(rows=16, columns=24), LogPolar(inner_radius="paper"), Cartesian()])
def test_spacing_is_the_distance_to_the_neighbouring_samples(pattern):
    points = located(pattern)
    x, y = points.x[0], points.y[0]
    down = np.hypot(x[1] - x[0], y[1] - y[0])
    # A chord is a little shorter than its arc, a finite step in the radius a little longer than its differential.
    across = np.hypot(np.gradient(x[0]), np.gradient(y[0]))
    np.testing.assert_allclose(points.spacing[0, 1:-1], np.maximum(down, across)[1:-1], rtol=0.03)


def test_a_wrong_scale_only_shifts_the_columns_of_the_covariant_pattern():
    pattern = LogPolar(columns=32, radius_ratio=2.0**8)  # 4 columns an octave
    xy, angle = np.array([[X, Y]]), np.array([ANGLE])
    right = pattern.locate(xy, np.array([SIZE]), angle)
    double = pattern.locate(xy, np.array([2 * SIZE]), angle)
    np.testing.assert_allclose(double.x[..., :-4], right.x[..., 4:])


def test_a_wrong_angle_only_rolls_the_rows():
    pattern = LogPolar(rows=36)
    xy, size = np.array([[X, Y]]), np.array([SIZE])
    right = pattern.locate(xy, size, np.array([ANGLE]))
    turned = pattern.locate(xy, size, np.array([ANGLE + 30]))
    np.testing.assert_allclose(turned.y, np.roll(right.y, -3, axis=1))


@pytest.mark.parametrize("pattern", [LogPolar(), LogPolar(inner_radius="paper"), Cartesian()])
def test_numpy_and_torch_agree(pattern):
    random = np.random.default_rng(0)
    xy = random.uniform(0, 500, (9, 2)).astype(np.float32)
    size, angle = (random.uniform(1, 90, 9).astype(np.float32) for _ in range(2))
    for ours, theirs in zip(
        pattern.locate(xy, size, angle), pattern.locate(*map(torch.from_numpy, (xy, size, angle))), strict=True
    ):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-3)


def test_level_is_log2_of_the_spacing_and_never_negative():
    assert pyramid_level(np.array([0.1, 1, 2, 8, 12.0])).tolist() == [0, 0, 1, 3, math.log2(12)]


@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_reflection_is_numpys_at_any_distance(length):
    far = 37 * length
    expected = np.pad(np.arange(length), far, mode="reflect")
    positions = np.arange(-far, length + far).astype(np.float32)
    np.testing.assert_allclose(reflect(positions, length), expected, atol=1e-4)
    # A tensor of lengths, one a keypoint; an axis of one pixel is left to the look-up, which clamps.
    folded = reflect(torch.from_numpy(positions), torch.full(positions.shape, float(length)))
    np.testing.assert_allclose(folded.clamp(max=length - 1).numpy(), expected, atol=1e-4)


def test_inside_is_the_area_of_the_pixels():
    points = located(Cartesian(lambda_=12))
    mask = inside(points, width=101, height=1000)
    np.testing.assert_array_equal(mask, (points.x <= 100.5))
    assert 0.4 < mask.mean() < 0.6


@pytest.mark.parametrize("pattern", [LogPolar(64, 24, 48, 0.25, 99.0, False, "mean"), LogPolar(), Cartesian(16.0)])
def test_plain_values_and_back(pattern):
    assert pattern_from_dict(pattern_to_dict(pattern)) == pattern


REST = {"antialias": True, "outside": "reflect"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pattern": "hexagonal", "lambda": 12}, "hexagonal"),
        ({"lambda": 12}, "None"),
        ({"pattern": "cartesian"}, "lambda"),
        ({"pattern": "cartesian", "lambda": 12, "colour": 1}, "colour"),
        ({"pattern": "cartesian", "lambda": 12, "rows": 32, "columns": 32}, "antialias"),
        ({"pattern": "cartesian", "lambda": -1, "rows": 32, "columns": 32, **REST}, "positive"),
        ({"pattern": "cartesian", "lambda": 12, "rows": 32.0, "columns": 32, **REST}, "row"),
        ({"pattern": "cartesian", "lambda": 12, "rows": 32, "columns": 32, **REST, "antialias": "no"}, "antialias"),
        ({"pattern": "cartesian", "lambda": 12, "rows": 32, "columns": 32, **REST, "outside": "black"}, "outside"),
    ],
)
def test_what_is_no_pattern_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        pattern_from_dict(values)


@pytest.mark.parametrize(
    "wrong",
    [
        {"lambda_": 0},
        {"lambda_": math.nan},
        {"rows": 0},
        {"columns": -1},
        {"inner_radius": "square"},
        {"inner_radius": 1.5},
        {"radius_ratio": 1},
    ],
)
def test_impossible_options_are_refused(wrong):
    with pytest.raises(ValueError):
        LogPolar(**wrong)
