"""Symbolic sizes of dimensions: expressions, what is known of them, how they are written and found in arguments."""
