"""The loss and its parts, each against a slow computation by loops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from logpolar.training.loss import (
    descriptor_loss,
    distance_matrix,
    distillation_loss,
    hardest_triplet_loss,
    second_order_loss,
    softmax_loss,
)
from logpolar.training.options import LossOptions


def unit_vectors(count: int, size: int, seed: int) -> torch.Tensor:
    values = torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values / values.norm(dim=1, keepdim=True)


def near(vectors: torch.Tensor, noise: float) -> torch.Tensor:
    disturbed = vectors + noise * unit_vectors(*vectors.shape, seed=9)
    return disturbed / disturbed.norm(dim=1, keepdim=True)


def nothing_excluded(count: int) -> torch.Tensor:
    return torch.zeros(count, count, dtype=torch.bool)


def some_excluded(count: int, share: float = 0.3, seed: int = 0) -> torch.Tensor:
    """Not symmetric; the diagonal is marked here and there as well."""
    return torch.rand(count, count, generator=torch.Generator().manual_seed(seed)) < share


def triplet(anchors: torch.Tensor, positives: torch.Tensor, excluded=None, margin: float = 1.0) -> torch.Tensor:
    excluded = nothing_excluded(len(anchors)) if excluded is None else excluded
    return hardest_triplet_loss(distance_matrix(anchors, positives), excluded, margin)


def triplet_by_loops(anchors: torch.Tensor, positives: torch.Tensor, excluded, margin: float) -> float:
    first, second = anchors.numpy(), positives.numpy()
    total = 0.0
    for k in range(len(first)):
        wrong = []
        for other in range(len(first)):
            if other != k and not excluded[k, other]:
                wrong.append(np.linalg.norm(first[k] - second[other]))
            if other != k and not excluded[other, k]:
                wrong.append(np.linalg.norm(first[other] - second[k]))
        nearest = min([distance for distance in wrong if distance >= 0.008], default=np.inf)
        total += max(0.0, margin + np.linalg.norm(first[k] - second[k]) - nearest)
    return total / len(first)


def test_distances_are_euclidean():
    first, second = unit_vectors(6, 5, 0), unit_vectors(4, 5, 1)
    expected = np.linalg.norm(first.numpy()[:, None] - second.numpy()[None], axis=2)
    np.testing.assert_allclose(distance_matrix(first, second).numpy(), expected, atol=1e-9)


def softmax_by_loops(anchors, positives, excluded, scale: float, margin: float) -> float:
    """Plain cross-entropies; the positive's logit is scale * cos(angle + margin)."""
    total = 0.0
    for first, second, left_out in ((anchors, positives, excluded), (positives, anchors, excluded.T)):
        for k in range(len(first)):
            angle = math.acos(min(max(float(first[k] @ second[k]), -1.0), 1.0))
            own = math.exp(scale * math.cos(angle + margin))
            others = [
                math.exp(scale * float(first[k] @ second[other]))
                for other in range(len(first))
                if other != k and not left_out[k, other] and np.linalg.norm(first[k] - second[other]) >= 0.008
            ]
            total -= math.log(own / (own + sum(others)))
    return total / (2 * len(first)) / scale


class TestSoftmax:
    @pytest.mark.parametrize(("scale", "margin"), [(4.0, 0.0), (16.0, 0.2), (32.0, 0.5)])
    @pytest.mark.parametrize("noise", [0.1, 1.0])
    @pytest.mark.parametrize("excluding", [False, True])
    def test_by_loops(self, scale, margin, noise, excluding):
        anchors = unit_vectors(20, 8, 0)
        positives = near(anchors, noise)
        excluded = some_excluded(20) if excluding else nothing_excluded(20)
        expected = softmax_by_loops(anchors.numpy(), positives.numpy(), excluded.numpy(), scale, margin)
        assert softmax_loss(anchors, positives, excluded, scale, margin).item() == pytest.approx(expected, abs=1e-6)

    def test_copies_are_no_negatives(self):
        anchors = unit_vectors(6, 8, 0)
        positives = near(anchors, 0.5)
        doubled = torch.cat([anchors, positives[:1]]), torch.cat([positives, near(positives[:1], 0.3)])
        alone = softmax_by_loops(*(each.numpy() for each in doubled), nothing_excluded(7).numpy(), 16, 0.2)
        assert softmax_loss(*doubled, nothing_excluded(7), 16, 0.2).item() == pytest.approx(alone, abs=1e-6)

    def test_farther_positives_cost_more_up_to_the_opposite(self):
        """Also beyond the angle at which the margin leaves the half circle."""
        losses = []
        for degrees in range(0, 181, 5):
            angle = math.radians(degrees)
            anchors = torch.tensor([[1.0, 0, 0, 0], [0, 0, 1, 0]], dtype=torch.float64)
            turned = [math.cos(angle), math.sin(angle), 0, 0]
            positives = torch.tensor([turned, [0, 0, 1, 0]], dtype=torch.float64, requires_grad=True)
            loss = softmax_loss(anchors, positives, nothing_excluded(2), 8.0, 0.4)
            loss.backward()
            assert positives.grad.isfinite().all()
            losses.append(loss.item())
        assert all(later > earlier for earlier, later in itertools.pairwise(losses))


class TestTriplets:
    @pytest.mark.parametrize("margin", [0.3, 1.0, 2.0])
    @pytest.mark.parametrize("noise", [0.1, 1.0, 3.0])
    @pytest.mark.parametrize("count", [2, 3, 40])
    @pytest.mark.parametrize("excluding", [False, True])
    def test_by_loops(self, count, noise, margin, excluding):
        anchors = unit_vectors(count, 8, 0)
        positives = near(anchors, noise)
        excluded = some_excluded(count) if excluding else nothing_excluded(count)
        loss = triplet(anchors, positives, excluded, margin)
        assert loss.item() == pytest.approx(triplet_by_loops(anchors, positives, excluded, margin), abs=1e-6)

    def test_a_small_example(self):
        """d(a0, p0) = d(a1, p1) = 1; the nearest wrong pair is (a1, p0) at distance sqrt(2) for both."""
        anchors = torch.tensor([[1.0, 0, 0], [0, 0, 1]])
        positives = torch.tensor([[0.5, 3**0.5 / 2, 0], [-(3**0.5) / 2, 0, 0.5]])
        assert triplet(anchors, positives).item() == pytest.approx(2 - 2**0.5, abs=1e-5)

    def test_an_excluded_pair_does_not_count(self):
        """Without (a1, p0) what is left is (a0, p1), at sqrt(2 + sqrt(3)): the loss is 2 less that."""
        anchors = torch.tensor([[1.0, 0, 0], [0, 0, 1]])
        positives = torch.tensor([[0.5, 3**0.5 / 2, 0], [-(3**0.5) / 2, 0, 0.5]])
        excluded = torch.tensor([[False, False], [True, False]])
        assert triplet(anchors, positives, excluded).item() == pytest.approx(2 - (2 + 3**0.5) ** 0.5, abs=1e-5)

    def test_with_everything_excluded_there_is_nothing_to_learn(self):
        anchors, positives = unit_vectors(6, 4, 0), unit_vectors(6, 4, 1)
        assert triplet(anchors, positives, ~nothing_excluded(6)).item() == 0

    def test_both_directions_count_the_same(self):
        anchors, positives, excluded = unit_vectors(12, 4, 2), unit_vectors(12, 4, 3), some_excluded(12)
        forth, back = triplet(anchors, positives, excluded, 2.0), triplet(positives, anchors, excluded.T, 2.0)
        assert forth.item() == pytest.approx(back.item(), abs=1e-9)

    def test_perfect_descriptors_cost_nothing(self):
        assert triplet(torch.eye(6), torch.eye(6)).item() == 0

    def test_equal_descriptors_cost_the_margin(self):
        anchors, positives = unit_vectors(1, 5, 0).expand(4, -1), unit_vectors(1, 5, 1).expand(4, -1)
        assert triplet(anchors, positives, margin=0.7).item() == pytest.approx(0.7)

    def test_copies_of_a_patch_are_not_wrong_pairs(self):
        anchors = unit_vectors(10, 8, 0)
        positives = near(anchors, 0.8)
        plain = triplet(anchors, positives).item()
        positives[3] = anchors[7]
        loss = triplet(anchors, positives).item()
        assert loss == pytest.approx(triplet_by_loops(anchors, positives, nothing_excluded(10), 1.0), abs=1e-6)
        assert loss != pytest.approx(plain, abs=1e-3)

    def test_a_whole_batch_twice(self):
        """Every pair has its copy in the batch; the loss is that of the batch without copies."""
        anchors = unit_vectors(8, 8, 0)
        once = triplet(anchors, anchors, margin=1.5).item()
        assert triplet(anchors.repeat(2, 1), anchors.repeat(2, 1), margin=1.5).item() == pytest.approx(once)
        assert once > 0.1

    @pytest.mark.parametrize(("gap", "counts"), [(0.0085, True), (0.0075, False)])
    def test_where_a_copy_begins(self, gap, counts):
        """Two anchors ``gap`` apart whose positives are themselves: near, but not copies, above 0.008."""
        anchors = torch.tensor([[1.0, 0, 0], [np.cos(gap), np.sin(gap), 0], [0, 0, 1]], dtype=torch.float64)
        assert (triplet(anchors, anchors).item() > 0.5) == counts

    def test_one_pair_alone_costs_nothing(self):
        assert triplet(unit_vectors(1, 4, 0), unit_vectors(1, 4, 1)).item() == 0


class TestSecondOrder:
    @staticmethod
    def by_loops(anchors: torch.Tensor, positives: torch.Tensor, excluded) -> float:
        first, second = anchors.numpy(), positives.numpy()
        total = 0.0
        for i in range(len(first)):
            allowed = [j for j in range(len(first)) if j != i and not excluded[i, j] and not excluded[j, i]]
            neighbours = set()
            for vectors in (first, second):
                neighbours.update(sorted(allowed, key=lambda j: np.linalg.norm(vectors[i] - vectors[j]))[:8])
            total += math.sqrt(
                sum(
                    (np.linalg.norm(first[i] - first[j]) - np.linalg.norm(second[i] - second[j])) ** 2
                    for j in neighbours
                )
            )
        return total / len(first)

    @pytest.mark.parametrize("count", [5, 9, 30])
    @pytest.mark.parametrize("share", [0.0, 0.3])
    def test_by_loops(self, count, share):
        anchors = unit_vectors(count, 6, 0)
        positives, excluded = near(anchors, 0.8), some_excluded(count, share)
        expected = self.by_loops(anchors, positives, excluded)
        assert second_order_loss(anchors, positives, excluded).item() == pytest.approx(expected, abs=1e-4)
        assert expected > 0.1

    def test_a_turn_of_all_descriptors_costs_nothing(self):
        """The root is taken of the sum and 1e-8: 0.0001 is left."""
        anchors = unit_vectors(20, 6, 0)
        turned = anchors @ torch.linalg.qr(unit_vectors(6, 6, 1)).Q
        assert second_order_loss(anchors, turned, nothing_excluded(20)).item() == pytest.approx(1e-4, abs=1e-6)


class TestWhole:
    ANCHORS = unit_vectors(20, 6, 0)
    POSITIVES = near(ANCHORS, 0.8)
    EXCLUDED = some_excluded(20)

    def loss(self, **options) -> float:
        return descriptor_loss(self.ANCHORS, self.POSITIVES, self.EXCLUDED, LossOptions(**options)).item()

    def test_triplets_alone_by_default(self):
        assert self.loss() == triplet(self.ANCHORS, self.POSITIVES, self.EXCLUDED).item()
        assert self.loss(margin=1.7) == triplet(self.ANCHORS, self.POSITIVES, self.EXCLUDED, 1.7).item()

    def test_parts_add_up_by_their_weights(self):
        second = second_order_loss(self.ANCHORS, self.POSITIVES, self.EXCLUDED).item()
        assert self.loss(second_order=0.5) == pytest.approx(self.loss() + 0.5 * second)

    @pytest.mark.parametrize("options", [LossOptions(), LossOptions(second_order=1)])
    def test_gradient(self, options):
        def loss(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            vectors = (v / v.norm(dim=1, keepdim=True) for v in (first, second))
            return descriptor_loss(*vectors, some_excluded(5), options)

        anchors = unit_vectors(5, 4, 0).requires_grad_()
        assert torch.autograd.gradcheck(loss, (anchors, near(unit_vectors(5, 4, 0), 0.7).requires_grad_()))

    @pytest.mark.parametrize("excluded", [nothing_excluded(4), ~nothing_excluded(4)])
    def test_gradient_is_finite_for_equal_descriptors(self, excluded):
        """Pairs that are equal, and a batch in which everything is."""
        options = LossOptions(margin=3, second_order=1)
        for values in (torch.eye(4), torch.eye(4)[:1].repeat(4, 1)):
            vectors = values.clone().requires_grad_()
            loss = descriptor_loss(vectors, vectors, excluded, options)
            loss.backward()
            assert torch.isfinite(loss)
            assert torch.isfinite(vectors.grad).all()

    @pytest.mark.parametrize("options", [LossOptions(), LossOptions(second_order=1)])
    def test_a_step_against_the_gradient_helps(self, options):
        anchors = self.ANCHORS
        positives = self.POSITIVES.clone().requires_grad_()
        loss = descriptor_loss(anchors, positives, self.EXCLUDED, options)
        loss.backward()
        with torch.no_grad():
            moved = positives - 0.01 * positives.grad
            after = descriptor_loss(anchors, moved, self.EXCLUDED, options)
        assert after < loss


class TestDistillation:
    def test_by_loops(self):
        ours, theirs = (unit_vectors(7, 5, seed) for seed in (0, 1))
        distances = [math.dist(a, b) for a, b in zip(ours.tolist(), theirs.tolist(), strict=True)]
        assert distillation_loss(ours, theirs).item() == pytest.approx(sum(d**2 for d in distances) / 7)

    def test_nothing_to_gain_from_the_teacher_itself(self):
        vectors = unit_vectors(7, 5, 0)
        assert distillation_loss(vectors, vectors) == 0


class TestWeightOfTriplets:
    def test_it_weighs_the_triplets_alone(self):
        anchors, positives, excluded = unit_vectors(9, 6, 0), unit_vectors(9, 6, 1), some_excluded(9)
        options = LossOptions(triplet=0.25, margin=1.2, second_order=0.5)
        expected = 0.25 * triplet_by_loops(anchors, positives, excluded, 1.2)
        expected += 0.5 * second_order_loss(anchors, positives, excluded).item()
        assert descriptor_loss(anchors, positives, excluded, options).item() == pytest.approx(expected)

    def test_all_weights_0(self):
        anchors, positives = unit_vectors(4, 6, 0), unit_vectors(4, 6, 1)
        assert descriptor_loss(anchors, positives, nothing_excluded(4), LossOptions(triplet=0)) == 0
