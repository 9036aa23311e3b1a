"""Images: reading files of any format, resizing, finding photos in folders."""

from logpolar.images.reading import (
    IMAGE_SUFFIXES,
    decode_gray,
    encode_gray,
    find_images,
    read_gray,
    read_image,
    shrink,
    to_bytes,
    to_gray,
    unnamed_images,
)

__all__ = [
    "IMAGE_SUFFIXES",
    "decode_gray",
    "encode_gray",
    "find_images",
    "read_gray",
    "read_image",
    "shrink",
    "to_bytes",
    "to_gray",
    "unnamed_images",
]
