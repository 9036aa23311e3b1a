"""Training steps as CUDA graphs: one launch instead of hundreds, which Python cannot issue fast enough."""

from __future__ import annotations

from collections.abc import Callable

import torch

_EAGER_STEPS = 3  # before a step is recorded: the optimiser's state must exist by then

Compute = Callable[[], torch.Tensor]
"""A step; it returns what is to be known of it, such as its loss."""


class ReplayedStep:
    """A step that is recorded once it has run a few times, and then replayed.

    The generator's state may change between steps, shapes and addresses may not.
    """

    def __init__(self, compute: Compute, generator: torch.Generator) -> None:
        self._compute, self._generator = compute, generator
        self._recording: Recording | None = None
        self._eager_steps = 0

    def __call__(self) -> torch.Tensor:
        if self._recording is None and self._eager_steps < _EAGER_STEPS:
            self._eager_steps += 1
            return on_side_stream(self._compute)
        if self._recording is None:
            self._recording = Recording(self._compute, self._generator)
        return self._recording.replay()


class Recording:
    """A CUDA graph of a step."""

    def __init__(self, compute: Compute, generator: torch.Generator) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(generator)
        with torch.cuda.graph(self._graph):
            self._result = compute()

    def replay(self) -> torch.Tensor:
        """One step with the current state of the random generators; a copy of its result."""
        self._graph.replay()
        return self._result.clone()


def on_side_stream(compute: Compute) -> torch.Tensor:
    """CUDA graphs require warm-up steps on a side stream."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = compute()
    torch.cuda.current_stream().wait_stream(stream)
    return result
