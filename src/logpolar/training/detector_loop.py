"""The training step of a detector, and the state that resumes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from logpolar.models.detector_network import DetectorNetwork, normalise_locally
from logpolar.models.files import DetectorModel
from logpolar.models.network import DescriptorNetwork
from logpolar.models.runtimes.processor import prepare_torch_bfloat16
from logpolar.sampling.patterns import Pattern
from logpolar.sampling.torch_lookup import TorchPyramids
from logpolar.training.cuda_graphs import ReplayedStep
from logpolar.training.detector_crops import Crops, CropSampler, change_crops
from logpolar.training.detector_loss import matchability_loss, repeatability_loss
from logpolar.training.detector_options import DetectorConfig
from logpolar.training.detector_peaks import imitate
from logpolar.training.optimisation import learning_rate, make_optimizer

MEASURES = ("loss", "imitation", "matchability", "repeatability", "peakiness", "keypoints", "matched", "found again")
"""What a step returns; objectives that are left out are 0."""


class FrozenDescriptor:
    """Descriptors of keypoints of one size in crops: looked up in the crop's image, so that they see all of it."""

    def __init__(
        self, network: DescriptorNetwork, sampling: Pattern, size: float, device: torch.device, fuse: bool, half: bool
    ) -> None:
        network = network.to(device).eval().requires_grad_(False)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._size, self._sampling, self._half = size, sampling, half
        self._run = torch.compile(self._describe) if fuse else self._describe
        self._network = network

    def __call__(self, crops: Crops, xy: Tensor) -> Tensor:
        """(2B, K, 128). Second crops that are rotated by more than 30 degrees are described upright all the same."""
        places = crops.in_image(xy)
        count = xy.shape[1]
        angle = torch.where(crops.angle.abs() > 30, crops.angle, 0.0)
        columns = (each[:, None].expand(-1, count).reshape(-1) for each in (crops.image, crops.scale, angle))
        image, scale, turned = columns
        with torch.no_grad():
            found = self._run(crops.data.pyramids, image, places.reshape(-1, 2), self._size * scale, turned)
        return found.view(len(xy), count, -1)

    def _describe(self, pyramids: TorchPyramids, image: Tensor, xy: Tensor, size: Tensor, angle: Tensor) -> Tensor:
        patches = pyramids.sample(image, xy, size, angle, self._sampling)
        with torch.autocast(xy.device.type, torch.bfloat16, enabled=self._half):
            found: Tensor = self._network(patches).float()
        return found


class DetectorTrainer:
    """A detector in training. What step n draws depends on the seed and n alone, so that no random state is needed to
    resume.

    ``descriptor`` may be None where matchability is left out, ``votes`` where imitation is: votes are the images of
    ``data`` whose pixels count the detectors that found a keypoint there, see ``detector_votes``.
    """

    def __init__(
        self,
        config: DetectorConfig,
        sampler: CropSampler,
        device: torch.device,
        descriptor: FrozenDescriptor | None = None,
        votes: Any = None,
    ) -> None:
        self.config, self.step, self._sampler, self._device = config, 0, sampler, device
        torch.manual_seed(config.run.seed)
        network: DetectorNetwork = DetectorNetwork(config.network).to(device).train()
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._network, self._descriptor, self._votes = network, descriptor, votes
        if config.objectives.matchability and descriptor is None:
            raise ValueError("matchability needs a descriptor")
        if config.objectives.imitation and votes is None:
            raise ValueError("imitation needs votes")
        self._rate = torch.zeros((), device=device)
        self._optimizer = make_optimizer(network, config.optimisation, self._rate)
        self._generator = torch.Generator(device)
        self._fused = config.run.compile and device.type == "cuda"
        self._run = torch.compile(network) if self._fused else network
        self._normalise = torch.compile(normalise_locally) if self._fused else normalise_locally
        self._replayed = ReplayedStep(self._compute, self._generator)
        wanted = config.run.precision
        self._half = device.type == "cuda" if wanted == "auto" else wanted == "bfloat16"
        if self._half and device.type == "cpu":
            prepare_torch_bfloat16()

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return learning_rate(self.step, self.config.optimisation)

    def advance(self) -> Tensor:
        """One step; its ``MEASURES``, still on the device."""
        seed = int(np.random.SeedSequence((self.config.run.seed, self.step)).generate_state(1)[0])
        self._generator.manual_seed(seed)
        self._rate.fill_(self.rate)
        measures = self._replayed() if self._fused else self._compute()
        self.step += 1
        return measures

    def _compute(self) -> Tensor:
        wanted = self.config.objectives
        crops = self._sampler.draw(self._generator)
        images = change_crops(crops.render(), self.config.crops.light, self._generator)
        images = self._normalise(images, self.config.network.window)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
            logits = self._run(images).float()
        zero = torch.zeros((), device=self._device)
        imitation = matchability = repeatability = peakiness = keypoints = matched = again = zero
        if wanted.imitation:
            imitation = imitate(logits, self._votes.render(crops))
        if wanted.matchability:
            assert self._descriptor is not None
            found = matchability_loss(logits, crops, self._descriptor, wanted, self._generator)
            matchability, keypoints, matched = found
        if wanted.repeatability or wanted.peakiness:
            repeatability, peakiness, again = repeatability_loss(logits, crops, wanted)
        loss = wanted.imitation * imitation + wanted.matchability * matchability
        loss = loss + wanted.repeatability * repeatability + wanted.peakiness * peakiness
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), 1.0, foreach=True)
        self._optimizer.step()
        values = (loss, imitation, matchability, repeatability, peakiness, keypoints, matched, again)
        return torch.stack([each.detach().float() for each in values])

    def start_from(self, model: DetectorModel) -> None:
        """Take over a detector's weights."""
        self._generator.manual_seed(self.config.run.seed)
        with torch.no_grad():
            images = self._normalise(self._sampler.draw(self._generator).render(), self.config.network.window)
        weights = {name: torch.from_numpy(values).float() for name, values in model.weights.items()}
        self._network.unfold(weights, images)

    @property
    def result(self) -> DetectorNetwork:
        """The network in evaluation mode, until ``resume_training``."""
        return self._network.eval()

    def resume_training(self) -> None:
        self._network.train()

    @property
    def is_finite(self) -> bool:
        return all(bool(values.isfinite().all()) for values in self._network.state_dict().values())

    def state(self) -> dict[str, Any]:
        """Everything that training changes."""
        return {"step": self.step, "network": self._network.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Resume from a state, or, if it has no optimiser, start from its weights."""
        self._network.load_state_dict(state["network"])
        if "optimizer" in state:
            self._optimizer.load_state_dict(state["optimizer"])
            for group in self._optimizer.param_groups:
                group["lr"] = self._rate
        self.step = int(state["step"])
