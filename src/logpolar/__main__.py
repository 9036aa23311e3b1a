"""The command `logpolar`, also as ``python -m logpolar``, for ``torchrun -m logpolar``."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, NoReturn


def start() -> None:
    """Run the command line. Until it handles signals itself, while Python loads it, Ctrl-C just ends the process."""
    if os.name == "posix" and threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            if signal.getsignal(number := getattr(signal, name)) != signal.SIG_IGN:
                signal.signal(number, _end)
    from logpolar.cli import main

    main()


def _end(number: int, frame: Any) -> NoReturn:
    os._exit(128 + number)


if __name__ == "__main__":
    start()
