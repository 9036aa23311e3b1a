"""Pictures of patches and matches, and the demo."""
