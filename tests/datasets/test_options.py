from __future__ import annotations

from dataclasses import replace

import pytest

from logpolar.datasets.options import PhotoOptions, SceneOptions, SecondViewRules, ViewOptions, stored_settings


def test_files_keep_the_names_of_the_first_version():
    """Files of 0.1 are resumed, so their settings must compare equal."""
    scene = stored_settings(replace(SceneOptions(), second=SecondViewRules(downscale=2, rotate=30)))
    assert scene["second"] == {"shrink": 2, "turn": 30}
    assert scene["rules"]["max_count"] == 1000
    photo = stored_settings(replace(PhotoOptions(), view=ViewOptions(max_rotation=20)))
    assert photo["view"]["max_turn"] == 20
    assert "max_rotation" not in photo["view"]


@pytest.mark.parametrize(
    ("rules", "transforms"),
    [
        (SecondViewRules(), False),
        (SecondViewRules(downscale=2), True),
        (SecondViewRules(rotate=-90), True),
        (SecondViewRules(1.0, -0.0), False),
    ],
)
def test_second_views_are_transformed_only_if_asked_for(rules, transforms):
    assert rules.transforms == transforms
