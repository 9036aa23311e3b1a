"""Runs of all protocols beside the paper's tables and figures."""
