"""Where compiled programs are kept on disk; `meshrt cache` shows and clears what is there."""

from __future__ import annotations

import os

from meshrt import config, errors
from meshrt.runtime import compile_cache

__all__ = ["reset_cache", "set_cache_dir"]


def set_cache_dir(path: str | os.PathLike[str]) -> None:
    """Keeps compiled programs in this directory from now on, which is made when the first one is: the setting
    `compilation_cache_dir`.

    Raises:
      ArgumentTypeError: it is no path.

    >>> import tempfile, meshrt
    >>> from meshrt.experimental.compilation_cache import compilation_cache
    >>> before = meshrt.config.compilation_cache_dir
    >>> compilation_cache.set_cache_dir(tempfile.gettempdir() + "/programs")
    >>> meshrt.config.compilation_cache_dir.endswith("programs")
    True
    >>> meshrt.config.update("compilation_cache_dir", before)
    """
    try:
        name = os.fspath(path)
    except TypeError:
        name = None
    if not isinstance(name, str):
        raise errors.ArgumentTypeError(f"set_cache_dir: path must be a str or a path of text. Got {path!r}")
    config.update("compilation_cache_dir", name)


def reset_cache() -> None:
    """Forgets the compiled programs of this process, so that the directory is asked for those that are needed next.
    Nothing on disk is removed: that is `meshrt cache clear`.

    >>> from meshrt.experimental.compilation_cache import compilation_cache
    >>> compilation_cache.reset_cache()
    """
    compile_cache.clear()
