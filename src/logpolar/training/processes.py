"""Training in several processes, on one machine or many, started by ``torchrun``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import distributed

from logpolar.errors import LogpolarError, first_line


@dataclass(frozen=True)
class World:
    """The processes of a run, and which of them this is."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on this machine: the index of its GPU

    @property
    def is_first(self) -> bool:
        """The first process validates and writes; the others only compute."""
        return self.rank == 0

    @classmethod
    def from_environment(cls) -> World:
        """As set by ``torchrun``, or a single process."""
        rank, size, local = (os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        return cls(int(rank), int(size), int(local or 0)) if rank and size else cls()

    def device(self, wanted: str) -> torch.device:
        """The device to train on; raises ``LogpolarError`` if torch cannot use it."""
        name = ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted
        try:
            device = torch.device(f"cuda:{self.local_rank}" if name == "cuda" and self.size > 1 else name)
            torch.empty(0, device=device)
            if device.type == "meta":
                raise RuntimeError("its tensors have no values")
        except (RuntimeError, AssertionError) as error:
            known = "try cpu, or cuda with a CUDA build of torch and a GPU"
            raise LogpolarError(f"torch cannot use the device '{name}' ({first_line(error)}); {known}") from error
        return device

    @contextlib.contextmanager
    def connected(self, device: torch.device) -> Iterator[None]:
        """Context in which processes can exchange gradients."""
        if self.size == 1:
            yield
            return
        if device.type == "cuda":
            torch.cuda.set_device(device)
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        try:
            yield
        finally:
            distributed.destroy_process_group()

    def wait(self) -> None:
        """Block until all processes get here."""
        if self.size > 1:
            distributed.barrier()
