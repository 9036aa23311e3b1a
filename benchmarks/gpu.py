"""Log-polar descriptors a second on a GPU, images and keypoints resident, and how near that is to what it could do.

python benchmarks/gpu.py [MODEL ...]

Times the cutting of patches, the network and the whole, in float32 and float16; compares the descriptors with
onnxruntime's on the CPU; writes results/gpu.json. What the network could reach is the larger of two times: its
operations at the device's rate for half precision, and its values read and written once at the memory's rate.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch

from common import large_photo, random_keypoints, save
from logpolar.features.extractor import Extractor
from logpolar.models import Model, load_model
from logpolar.models.network import DescriptorNetwork
from logpolar.models.runtimes.torch_device import TorchDescriber, network_on
from logpolar.sampling.torch_lookup import TorchPyramids
from logpolar.settings import DEFAULT_MODEL

SIDE, IMAGES, KEYPOINTS, CHUNK = 1024, 16, 8192, 8192
HALF_PRECISION_RATE, MEMORY_RATE = 989e12, 4.8e12  # of an H200: operations and bytes a second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[DEFAULT_MODEL])
    results = {name: measure(load_model(name)) for name in parser.parse_args().models}
    device = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    save("gpu", {**device, "images": IMAGES, "keypoints": KEYPOINTS, "chunk": CHUNK, **results})


def measure(model: Model) -> dict[str, Any]:
    photo = large_photo(SIDE, SIDE)
    keypoints = random_keypoints(KEYPOINTS, SIDE, SIDE)
    pyramids = TorchPyramids([torch.from_numpy(photo) / 255] * IMAGES, "cuda")
    table = torch.from_numpy(keypoints.table[:, :4]).cuda().repeat(IMAGES, 1)
    image = torch.arange(IMAGES, device="cuda").repeat_interleave(KEYPOINTS)
    expected = torch.from_numpy(Extractor(model, max_size=None).extract(photo, keypoints).descriptors).cuda()
    found: dict[str, Any] = {"network": roofline(model.network())}
    least = found["network"]["least_seconds"]
    for precision in ("float32", "float16"):
        network = network_on(model, torch.device("cuda"), precision == "float16")
        describer = TorchDescriber(network, model.sampling, "cuda", CHUNK, fuse=True)
        torch.cuda.reset_peak_memory_stats()
        apart = (describer.describe_on_device(pyramids, image[:KEYPOINTS], table[:KEYPOINTS]) - expected).abs().max()
        patches = torch.rand(CHUNK, model.sampling.rows, model.sampling.columns, device="cuda")
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            _, alone, _ = quartiles(network, patches, amount=CHUNK)
        fast, whole, slow = quartiles(describer.describe_on_device, pyramids, image, table, amount=len(table))
        found[precision] = {
            "descriptors_per_second": round(1 / whole),
            "descriptors_per_second_quartiles": [round(1 / slow), round(1 / fast)],
            "network_alone_per_second": round(1 / alone),
            "largest_difference_from_cpu": round(float(apart), 6),
            "peak_mb": round(torch.cuda.max_memory_allocated() / 2**20),
            "network_share_of_roofline": round(least / alone, 3),
        }
        print(model.name, precision, found[precision], flush=True)
    return found


def roofline(network: DescriptorNetwork) -> dict[str, float]:
    """Of a patch in half precision, every layer reading its input and writing its output once."""
    operations, values = 0, 0

    def count(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        nonlocal operations, values
        assert isinstance(module, torch.nn.Conv2d)
        operations += 2 * output[0].numel() * module.weight[0].numel()
        values += network.options.rows * network.options.columns if inputs[0].shape[1] == 1 else inputs[0][0].numel()
        values += output[0].numel()

    hooks = [each.register_forward_hook(count) for each in network.modules() if isinstance(each, torch.nn.Conv2d)]
    network(torch.zeros(1, network.options.rows, network.options.columns))
    for hook in hooks:
        hook.remove()
    least = max(operations / HALF_PRECISION_RATE, 2 * values / MEMORY_RATE)
    return {"operations": operations, "bytes": 2 * values, "least_seconds": least}


def quartiles(work: Callable[..., Any], *arguments: Any, amount: int, repeats: int = 20) -> list[float]:
    """Seconds for one of ``amount``, of ``repeats`` calls by the device's own clock after two that compile."""
    times = []
    for number in range(repeats + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work(*arguments)
        end.record()
        torch.cuda.synchronize()
        if number >= 2:
            times.append(start.elapsed_time(end) / 1000 / amount)
    return statistics.quantiles(times, n=4, method="inclusive")


if __name__ == "__main__":
    main()
