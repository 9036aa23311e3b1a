"""Features of images: extracting one, extracting many, and the files that hold them."""
