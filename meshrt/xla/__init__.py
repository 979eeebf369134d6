"""The doors to jaxlib: only this room imports its private modules, and it needs nothing but errors and heuristics."""
