"""Pages to look at results: one HTML file each, which opens from disk, loads nothing and sends nothing."""
