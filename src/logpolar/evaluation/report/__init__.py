"""Report: runs of all protocols compared with the paper's tables and figures."""
