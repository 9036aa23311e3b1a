"""Structure from motion with COLMAP: databases, mapping, dense workspaces. No other package imports pycolmap."""
