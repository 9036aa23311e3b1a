"""Files that survive a kill: atomic writes, HDF5 with transactions, NumPy files without code in them."""
