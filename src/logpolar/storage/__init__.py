"""Files: atomic writes, HDF5 with transactions, JSON and tables, pickled NumPy arrays read safely."""
