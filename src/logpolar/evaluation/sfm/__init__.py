"""Structure from motion against true cameras."""
