from __future__ import annotations

import pytest

from colmap_scene import make_scene


@pytest.fixture(scope="session")
def scene(tmp_path_factory):
    """A folder with six photos of an exact world, their features and matches of all pairs; not to be changed."""
    return make_scene(tmp_path_factory.mktemp("scene"))
