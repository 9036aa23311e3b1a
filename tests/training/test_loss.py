from __future__ import annotations

import numpy as np
import pytest
import torch

from logpolar.training.loss import distance_matrix, hardest_triplet_loss


def unit_vectors(count: int, size: int, seed: int) -> torch.Tensor:
    values = torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values / values.norm(dim=1, keepdim=True)


def loss_by_loops(anchors: torch.Tensor, positives: torch.Tensor, margin: float) -> float:
    first, second = anchors.numpy(), positives.numpy()
    total = 0.0
    for k in range(len(first)):
        wrong = []
        for other in range(len(first)):
            if other != k:
                wrong.append(np.linalg.norm(first[k] - second[other]))
                wrong.append(np.linalg.norm(first[other] - second[k]))
        nearest = min([distance for distance in wrong if distance >= 0.008], default=np.inf)
        total += max(0.0, margin + np.linalg.norm(first[k] - second[k]) - nearest)
    return total / len(first)


def near(vectors: torch.Tensor, noise: float) -> torch.Tensor:
    disturbed = vectors + noise * unit_vectors(*vectors.shape, seed=9)
    return disturbed / disturbed.norm(dim=1, keepdim=True)


def test_distances_are_euclidean():
    first, second = unit_vectors(6, 5, 0), unit_vectors(4, 5, 1)
    expected = np.linalg.norm(first.numpy()[:, None] - second.numpy()[None], axis=2)
    np.testing.assert_allclose(distance_matrix(first, second).numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("margin", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("noise", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("count", [2, 3, 40])
def test_by_loops(count, noise, margin):
    anchors = unit_vectors(count, 8, 0)
    positives = near(anchors, noise)
    loss = hardest_triplet_loss(anchors, positives, margin)
    assert loss.item() == pytest.approx(loss_by_loops(anchors, positives, margin), abs=1e-6)


def test_a_small_example():
    """d(a0, p0) = d(a1, p1) = 1; the nearest wrong pair is (a1, p0) at distance sqrt(2) for both."""
    anchors = torch.tensor([[1.0, 0, 0], [0, 0, 1]])
    positives = torch.tensor([[0.5, 3**0.5 / 2, 0], [-(3**0.5) / 2, 0, 0.5]])
    assert hardest_triplet_loss(anchors, positives).item() == pytest.approx(2 - 2**0.5, abs=1e-5)


def test_wrong_pairs_count_in_rows_and_columns():
    """The nearest wrong pair of anchor 0 may be far while that of positive 0 is near."""
    anchors, positives = unit_vectors(12, 4, 2), unit_vectors(12, 4, 3)
    whole = hardest_triplet_loss(anchors, positives, 2.0)
    assert whole.item() == pytest.approx(hardest_triplet_loss(positives, anchors, 2.0).item(), abs=1e-9)


def test_nothing_to_learn_from_perfect_descriptors():
    """Distances are kept at 0.001 or above, so the loss is 0 only with that much room."""
    axes = torch.eye(6)
    assert hardest_triplet_loss(axes, axes, margin=1.0).item() == 0


def test_equal_descriptors_cost_the_margin():
    anchors = unit_vectors(1, 5, 0).expand(4, -1)
    positives = unit_vectors(1, 5, 1).expand(4, -1)
    assert hardest_triplet_loss(anchors, positives, 0.7).item() == pytest.approx(0.7)


def test_copies_of_a_patch_are_not_wrong_pairs():
    anchors = unit_vectors(10, 8, 0)
    positives = near(anchors, 0.8)
    plain = hardest_triplet_loss(anchors, positives).item()
    positives[3] = anchors[7]
    loss = hardest_triplet_loss(anchors, positives).item()
    assert loss == pytest.approx(loss_by_loops(anchors, positives, 1.0), abs=1e-6)
    assert loss != pytest.approx(plain, abs=1e-3)


def test_a_whole_batch_twice():
    """Every pair has its copy in the batch; the loss is that of the batch without copies."""
    anchors = unit_vectors(8, 8, 0)
    positives = anchors.clone()
    once = hardest_triplet_loss(anchors, positives, 1.5).item()
    assert hardest_triplet_loss(anchors.repeat(2, 1), positives.repeat(2, 1), 1.5).item() == pytest.approx(once)


@pytest.mark.parametrize(("gap", "counts"), [(0.02, True), (0.004, False)])
def test_where_a_copy_begins(gap, counts):
    """Two anchors ``gap`` apart whose positives are themselves: near, but not copies, above 0.008."""
    anchors = torch.tensor([[1.0, 0, 0], [np.cos(gap), np.sin(gap), 0], [0, 0, 1]], dtype=torch.float64)
    loss = hardest_triplet_loss(anchors, anchors)
    assert (loss.item() > 0.5) == counts


def test_one_pair_alone_costs_nothing():
    assert hardest_triplet_loss(unit_vectors(1, 4, 0), unit_vectors(1, 4, 1)).item() == 0


def test_gradient():
    def loss(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return hardest_triplet_loss(*(v / v.norm(dim=1, keepdim=True) for v in (first, second)))

    anchors = unit_vectors(5, 4, 0).requires_grad_()
    positives = near(unit_vectors(5, 4, 0), 0.7).requires_grad_()
    assert torch.autograd.gradcheck(loss, (anchors, positives))


def test_gradient_is_finite_for_equal_descriptors():
    vectors = torch.eye(4, requires_grad=True)
    hardest_triplet_loss(vectors, vectors, margin=3.0).backward()
    assert torch.isfinite(vectors.grad).all()


def test_a_step_against_the_gradient_helps():
    anchors = unit_vectors(10, 6, 0)
    positives = near(anchors, 1.0).requires_grad_()
    loss = hardest_triplet_loss(anchors, positives)
    loss.backward()
    with torch.no_grad():
        assert hardest_triplet_loss(anchors, positives - 0.01 * positives.grad) < loss
