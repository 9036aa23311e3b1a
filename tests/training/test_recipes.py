"""The recipes are promises: the paper's is what its code did, the default is what the shipped model was made with."""

from __future__ import annotations

import pytest

from logpolar.sampling.patterns import LogPolar
from logpolar.training.options import TrainingConfig
from logpolar.training.recipes import RECIPES


def test_names():
    assert list(RECIPES) == ["default", "paper", "small"]
    assert len({recipe.name for recipe in RECIPES.values()}) == 3


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
class TestEvery:
    def test_is_a_log_polar_model_of_lambda_96(self, recipe):
        assert isinstance(recipe.sampling, LogPolar)
        assert recipe.sampling.lambda_ == 96
        assert "96" in recipe.name

    def test_network_fits_the_patches(self, recipe):
        assert (recipe.network.rows, recipe.network.columns) == (recipe.sampling.rows, recipe.sampling.columns)

    def test_names_no_data_and_no_machine(self, recipe):
        assert recipe.data == ()
        assert recipe.run == TrainingConfig().run

    def test_says_nothing_of_a_model_that_it_does_not_know(self, recipe):
        assert (recipe.description, recipe.licence) == ("", "not stated")


def test_the_papers_code():
    paper = RECIPES["paper"]
    assert (paper.sampling.inner_radius, paper.sampling.antialias) == ("paper", False)
    assert not paper.network.circular
    assert paper.batch.pairs * paper.batch.per_pair == 1000
    assert (paper.batch.near, paper.batch.near_sizes) == (7, 0)
    assert (paper.augmentation.aligned, paper.augmentation.angle_jitter, paper.augmentation.scale_jitter) == (
        True,
        25,
        0,
    )
    assert (paper.loss.margin, paper.loss.second_order) == (1, 0)
    optimisation = paper.optimisation
    assert (optimisation.optimiser, optimisation.momentum, optimisation.weight_decay) == ("sgd", 0.9, 1e-4)
    assert (optimisation.learning_rate, optimisation.schedule, optimisation.warm_up) == (10, "linear", 0)


def test_small_is_the_default_with_a_small_network_and_a_teacher():
    default, small = RECIPES["default"], RECIPES["small"]
    assert small.network.multiply_adds <= 8e6 < default.network.multiply_adds
    assert (small.distillation.teacher, small.distillation.wanted) == ("logpolar-96", True)
    assert (small.loss.triplet, small.loss.second_order) == (0, 0)
    assert small.data == default.data
    assert (small.batch, small.augmentation) == (default.batch, default.augmentation)


def test_default_differs_where_it_should():
    default = RECIPES["default"]
    assert default.sampling.antialias
    assert default.network.circular
    assert not default.augmentation.aligned
    assert default.augmentation.scale_jitter > 0
    assert default.optimisation.optimiser == "adamw"
