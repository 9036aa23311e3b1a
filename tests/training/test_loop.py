"""Training steps: by hand, by seed, and after a stop."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import torch

from logpolar.datasets.homographies import make_view_pair
from logpolar.datasets.options import ViewOptions
from logpolar.images import to_bytes
from logpolar.models.cards import NetworkOptions
from logpolar.models.network import DescriptorNetwork
from logpolar.sampling import LogPolar
from logpolar.sampling.torch_lookup import TorchPyramids
from logpolar.training.batches import Batch, BatchSampler
from logpolar.training.data import PairTable, TrainingData
from logpolar.training.loop import Trainer
from logpolar.training.loss import descriptor_loss
from logpolar.training.options import (
    AugmentationOptions,
    BatchOptions,
    LossOptions,
    OptimisationOptions,
    RunOptions,
    TrainingConfig,
)
from logpolar.training.processes import World

CPU = torch.device("cpu")
CONFIG = TrainingConfig(
    sampling=LogPolar(rows=8, columns=8),
    network=NetworkOptions(8, 8, circular=True, dropout=0.3),
    optimisation=OptimisationOptions(steps=8, learning_rate=0.5),
    run=RunOptions(seed=3),
)
ADAM = replace(CONFIG, optimisation=OptimisationOptions(8, "adamw", 0.003, warm_up=2, schedule="cosine"))


class Drawer:
    """In the place of a sampler: patches by the generator, or always the same; remembers what it gave."""

    def __init__(self, fixed: Batch | None = None) -> None:
        self.fixed, self.given = fixed, []

    def draw(self, generator: torch.Generator) -> Batch:
        first = torch.rand(8, 8, 8, generator=generator)
        second = first + 0.2 * torch.rand(8, 8, 8, generator=generator)
        batch = self.fixed or Batch(first, second, torch.rand(8, 8, generator=generator) < 0.2)
        self.given.append(batch)
        return batch


def make_trainer(config: TrainingConfig = CONFIG, sampler=None, world: World | None = None) -> Trainer:
    return Trainer(config, sampler or Drawer(), CPU, world)


def advanced(steps: int, config: TrainingConfig = CONFIG, **more) -> Trainer:
    trainer = make_trainer(config, **more)
    for _ in range(steps):
        trainer.advance()
    return trainer


def everything(trainer: Trainer) -> torch.Tensor:
    """Weights and statistics, of the network and of its mean."""
    state = trainer.state()
    return torch.cat([values.flatten().double() for values in state["network"].values()])


def weights(network: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def with_seed(seed: int, config: TrainingConfig = CONFIG) -> TrainingConfig:
    return replace(config, run=replace(config.run, seed=seed))


def test_loss_falls_on_real_patches(gray):
    pixels, tables, columns, views = to_bytes(gray), [], [], []
    for k, top in enumerate((0, 100, 200)):
        options = ViewOptions(max_zoom=1.5)
        pair = make_view_pair(pixels[top : top + 240], pixels, options, np.random.default_rng(top))
        found, start = pair.correspondences, sum(len(first) for first, *_ in columns)
        columns.append((found.first.table, found.second.table, found.angle_residual))
        tables.append(PairTable(np.array([[2 * k, 2 * k + 1]]), np.array([[start, start + len(found)]]), np.array([k])))
        views += [torch.from_numpy(view) / 255 for view in (pair.first, pair.second)]
    first, second, residual = (torch.from_numpy(np.concatenate(each)) for each in zip(*columns, strict=True))
    data = TrainingData(TorchPyramids(views), first, second, residual, torch.zeros(len(first)), tuple(tables))
    still = AugmentationOptions(aligned=True, angle_jitter=0, scale_jitter=0)
    sampler = BatchSampler(data, [1, 1, 1], LogPolar(rows=16, columns=16), BatchOptions(3, 8), still)
    optimisation = OptimisationOptions(16, "adamw", 0.003)
    config = replace(CONFIG, network=NetworkOptions(16, 16, dropout=0), optimisation=optimisation)
    trainer = make_trainer(config, sampler)
    losses = [trainer.advance().item() for _ in range(16)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.1


def test_steps_by_hand():
    """Momentum that is an average, weight decay, a rate that falls linearly to 0; no dropout, so nothing is drawn."""
    excluded = torch.eye(8, dtype=torch.bool) | (torch.rand(8, 8, generator=torch.Generator().manual_seed(1)) < 0.3)
    patches = Drawer().draw(torch.Generator().manual_seed(0))
    batch = Batch(patches.first, patches.second, excluded)
    options = LossOptions(margin=1.3, second_order=0.5)
    optimisation = OptimisationOptions(steps=3, learning_rate=0.5, weight_decay=0.01)
    config = replace(CONFIG, network=NetworkOptions(8, 8, dropout=0), loss=options, optimisation=optimisation)
    trainer = make_trainer(config, Drawer(batch))
    torch.manual_seed(config.run.seed)
    network = DescriptorNetwork(config.network).train()
    momentum: dict[str, torch.Tensor] = {}
    for step in range(3):
        assert trainer.step == step
        assert trainer.rate == pytest.approx(0.5 * (1 - step / 3))
        loss = descriptor_loss(*network(torch.cat([batch.first, batch.second])).chunk(2), excluded, options)
        assert trainer.advance().item() == pytest.approx(loss.item(), abs=1e-4)
        network.zero_grad()
        loss.backward()
        with torch.no_grad():
            for name, values in network.named_parameters():
                slope = values.grad + 0.01 * values
                momentum[name] = 0.9 * momentum[name] + 0.1 * slope if step else slope
                values -= 0.5 * (1 - step / 3) * momentum[name]
    torch.testing.assert_close(weights(trainer.result), weights(network), atol=2e-4, rtol=0)


class TestSeeds:
    @pytest.mark.parametrize("config", [CONFIG, ADAM])
    def test_seed_decides(self, config):
        one, same, other = (everything(advanced(3, with_seed(seed, config))) for seed in (1, 1, 2))
        assert torch.equal(one, same)
        assert (one - other).abs().max() > 0.01

    def test_what_is_drawn_elsewhere_changes_nothing(self):
        trainer = make_trainer()
        for step in range(3):
            torch.manual_seed(100 + step)
            trainer.advance()
        assert torch.equal(everything(trainer), everything(advanced(3)))

    def test_first_weights_are_those_of_the_seed(self):
        torch.manual_seed(5)
        expected = weights(DescriptorNetwork(CONFIG.network))
        assert torch.equal(weights(make_trainer(with_seed(5)).result), expected)

    def test_every_step_draws_anew(self):
        sampler = Drawer()
        advanced(3, sampler=sampler)
        first = [batch.first for batch in sampler.given]
        assert len({patches.numpy().tobytes() for patches in first}) == 3

    def test_seeds_do_not_share_their_draws(self):
        """Not even shifted: what seed 1 draws at step 1 is not what seed 2 draws at step 0."""
        drawn = set()
        for seed in range(3):
            sampler = Drawer()
            advanced(3, with_seed(seed), sampler=sampler)
            drawn |= {batch.first.numpy().tobytes() for batch in sampler.given}
        assert len(drawn) == 9

    def test_dropout_is_drawn_anew_at_every_step(self):
        """The same batch, nothing learned: only what is dropped differs, and the seed decides that as well."""
        config = replace(CONFIG, optimisation=OptimisationOptions(8, learning_rate=0))
        batch = Drawer().draw(torch.Generator().manual_seed(0))
        runs = []
        for _ in range(2):
            trainer = make_trainer(config, Drawer(batch))
            runs.append([trainer.advance().item() for _ in range(3)])
        assert runs[0] == runs[1]
        assert len(set(runs[0])) == 3

    def test_each_process_has_its_own_draws(self):
        """But the same first weights."""
        one, other = Drawer(), Drawer()
        trainers = [make_trainer(sampler=s, world=World(rank)) for rank, s in enumerate((one, other))]
        assert torch.equal(everything(trainers[0]), everything(trainers[1]))
        for trainer in trainers:
            trainer.advance()
        assert not torch.equal(one.given[0].first, other.given[0].first)
        assert not torch.equal(everything(trainers[0]), everything(trainers[1]))
        assert torch.equal(everything(trainers[0]), everything(advanced(1)))


def stored(trainer: Trainer) -> dict:
    """The state, through a file's bytes."""
    file = io.BytesIO()
    torch.save(trainer.state(), file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("config", [CONFIG, ADAM])
class TestGoingOn:
    def test_in_a_fresh_trainer(self, config):
        """To the bit the same as without a stop, whatever the fresh one was before."""
        state = stored(advanced(3, config))
        trainer = advanced(1, with_seed(9, config))
        trainer.config = config
        trainer.load(state)
        undisturbed = advanced(3, config)
        assert trainer.step == 3
        for _ in range(3):
            assert trainer.rate == undisturbed.rate
            assert torch.equal(trainer.advance(), undisturbed.advance())
            assert torch.equal(everything(trainer), everything(undisturbed))
        assert torch.equal(weights(trainer.result), weights(undisturbed.result))

    def test_back_in_the_same_trainer(self, config):
        trainer = advanced(2, config)
        state = stored(trainer)
        for _ in range(3):
            trainer.advance()
        trainer.load(state)
        assert trainer.step == 2
        for _ in range(2):
            trainer.advance()
        assert torch.equal(everything(trainer), everything(advanced(4, config)))

    def test_looking_at_the_result_changes_nothing(self, config):
        trainer = advanced(2, config)
        before = everything(trainer)
        with torch.no_grad():
            trainer.result(torch.rand(4, 8, 8))
        trainer.resume_training()
        assert torch.equal(everything(trainer), before)
        trainer.advance()
        assert torch.equal(everything(trainer), everything(advanced(3, config)))


def test_a_state_of_another_network_is_refused():
    state = stored(advanced(1))
    with pytest.raises(RuntimeError, match="size mismatch"):
        make_trainer(replace(CONFIG, network=NetworkOptions(8, 12))).load(state)


def test_modes_of_the_result():
    trainer = advanced(1)
    assert trainer._network.training
    result = trainer.result
    assert not any(module.training for module in result.modules())
    assert result.options == CONFIG.network
    trainer.resume_training()
    assert all(module.training for module in result.modules())


class TestPrecision:
    def test_bfloat16(self):
        """Weights and loss stay in float32; descriptors are a little off."""
        half, whole = (replace(CONFIG, run=replace(CONFIG.run, precision=p)) for p in ("bfloat16", "float32"))
        trainer, exact = make_trainer(half), make_trainer(whole)
        loss, expected = trainer.advance(), exact.advance()
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(expected.item(), abs=0.05)
        assert loss.item() != expected.item()
        trainer.advance()
        assert {values.dtype for values in trainer.result.parameters()} == {torch.float32}
        assert torch.isfinite(everything(trainer)).all()

    def test_auto_is_float32_here(self):
        whole = replace(CONFIG, run=replace(CONFIG.run, precision="float32"))
        assert torch.equal(everything(advanced(2)), everything(advanced(2, whole)))
