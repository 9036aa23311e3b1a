"""Structure from motion with COLMAP: databases, mapping, dense workspaces. Nothing else knows pycolmap."""
