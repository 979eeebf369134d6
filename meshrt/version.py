"""The version of meshrt."""

__all__ = ["__version__", "__version_info__"]

# As in pyproject.toml.
__version_info__ = (0, 1, 0)
__version__ = ".".join(map(str, __version_info__))
