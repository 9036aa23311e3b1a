from __future__ import annotations

import pytest

from logpolar.models.cards import NetworkOptions, PatchSizeError


class TestOptions:
    @pytest.mark.parametrize("size", [(30, 32), (32, 33), (0, 32), (32, 0), (-4, 32), (2, 2)])
    def test_sizes_that_are_no_multiples_of_four(self, size):
        with pytest.raises(ValueError, match="multiples of 4"):
            NetworkOptions(*size)

    def test_sizes_that_the_strides_do_not_divide(self):
        with pytest.raises(PatchSizeError, match="multiples of 8, not 32 x 12"):
            NetworkOptions(32, 12, channels=(4, 4, 4), strides=(2, 2, 2))

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"channels": ()}, "channels must be a list of integers"),
            ({"channels": [16] * 6}, "channels must be a list of integers"),
            ({"channels": (16.0,) * 6}, "channels must be a list of integers"),
            ({"strides": (True,) * 6}, "strides must be a list of integers"),
            ({"channels": (16, 16)}, "2 channels, but 6 strides"),
            ({"channels": (16, 0, 1, 1, 1, 1)}, "channels must be at least 1, not 0"),
            ({"strides": (1, 1, 3, 1, 1, 1)}, "strides must be 1 or 2"),
        ],
    )
    def test_layers_that_cannot_be(self, changes, words):
        with pytest.raises(ValueError, match=words):
            NetworkOptions(**changes)

    @pytest.mark.parametrize("dropout", [-0.1, 1.0, 1.5, float("nan")])
    def test_dropout_out_of_range(self, dropout):
        with pytest.raises(ValueError, match="dropout"):
            NetworkOptions(dropout=dropout)
