"""Structure from motion against scenes whose cameras are known."""
