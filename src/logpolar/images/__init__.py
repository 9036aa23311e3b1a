"""Images: reading files of any format, resizing, finding photos in folders."""

from logpolar.images.folders import copied_files, find_images, images_in, unnamed_images
from logpolar.images.reading import decode_gray, encode_gray, read_downscaled, read_gray, read_image, to_bytes, to_gray
from logpolar.images.resizing import downscale, fitted_size, resize, resize_matrix, resize_points

__all__ = [
    "copied_files",
    "decode_gray",
    "downscale",
    "encode_gray",
    "find_images",
    "fitted_size",
    "images_in",
    "read_downscaled",
    "read_gray",
    "read_image",
    "resize",
    "resize_matrix",
    "resize_points",
    "to_bytes",
    "to_gray",
    "unnamed_images",
]
