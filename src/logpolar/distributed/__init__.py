"""The one seam through which many items are worked off: processes of this machine, a Dask or a Ray cluster."""

from logpolar.distributed.progress import show_progress
from logpolar.distributed.threads import ahead, cores, interruptibly
from logpolar.distributed.work import LOCAL, Workers, batched, in_processes, on_batches, on_workers

__all__ = [
    "LOCAL",
    "Workers",
    "ahead",
    "batched",
    "cores",
    "in_processes",
    "interruptibly",
    "on_batches",
    "on_workers",
    "show_progress",
]
