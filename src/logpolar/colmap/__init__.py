"""COLMAP's files, and SfM with pycolmap (extra ``sfm``). Only this package knows pycolmap and COLMAP's half pixel."""
