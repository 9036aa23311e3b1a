"""Errors that users can fix. The command line prints one line and exits with code 2."""

from collections.abc import Sequence


def in_words(error: OSError) -> str:
    """The system's reason, to follow a file name."""
    return (error.strerror or str(error)).lower()


def in_one_line(error: Exception, limit: int = 200) -> str:
    """Type and message of a library's error, which may be pages long, in one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= limit else f"{text[:limit]}..."


def first_line(error: Exception) -> str:
    """First line of an error's message, or its type if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def some_of(names: Sequence[str]) -> str:
    """The first three names of many."""
    return ", ".join(names[:3]) + ", ..." * (len(names) > 3)


class LogpolarWarning(UserWarning):
    """Something other than requested is done. The command line prints one line and continues."""


class LogpolarError(Exception):
    """Base of all errors about files, images, keypoints and installs; invalid options raise ``ValueError``."""


class ImageError(LogpolarError):
    """A file or array that cannot be used as an image."""


class KeypointError(LogpolarError):
    """Keypoints that cannot be described: not finite, or without a positive size."""


class ModelError(LogpolarError):
    """A model that does not exist, or a file that is not a logpolar model."""


class StorageError(LogpolarError):
    """A feature, match or correspondence file, a workspace or a database that cannot be read or continued."""


class MissingExtraError(LogpolarError):
    """A feature that needs an optional dependency which is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency: pip install 'logpolar[{extra}]'")
