"""What `python benchmarks/speed.py` measures, one file a subject."""
