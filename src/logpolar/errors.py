"""The errors a user can mend. The command line prints each as one line and exits with code 2."""

from collections.abc import Sequence


def in_words(error: OSError) -> str:
    """What the system says went wrong, to follow a file's name."""
    return (error.strerror or str(error)).lower()


def in_one_line(error: Exception, most: int = 200) -> str:
    """What a library says, which may be pages, in so many characters."""
    words = " ".join(str(error).split())
    return words if len(words) <= most else f"{words[:most]}..."


def some_of(names: Sequence[str]) -> str:
    """The first three of many names."""
    return ", ".join(names[:3]) + ", ..." * (len(names) > 3)


class LogpolarWarning(UserWarning):
    """Something else is done than was asked for. The command line prints it as one line and goes on."""


class LogpolarError(Exception):
    """Base of every error about files, images, keypoints and installs; an impossible option is a ``ValueError``."""


class ImageError(LogpolarError):
    """A file or an array that cannot be used as an image."""


class KeypointError(LogpolarError):
    """Keypoints that cannot be described: not finite, or without a positive size."""


class ModelError(LogpolarError):
    """A model that does not exist, or a file that is no logpolar model."""


class StorageError(LogpolarError):
    """A file of features or correspondences, a workspace or a model that cannot be read or continued."""


class MissingExtraError(LogpolarError):
    """A feature that needs an optional dependency which is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency: pip install 'logpolar[{extra}]'")
