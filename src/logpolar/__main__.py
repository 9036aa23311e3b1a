"""python -m logpolar, for ``torchrun -m logpolar``."""

from logpolar.cli import main

main()
