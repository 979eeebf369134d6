"""Where equations come from. Names are ``jax.extend.source_info_util``'s.

A library that is not what its users want to see named registers its folder:

>>> register_exclusion("/path/to/library")
"""

from __future__ import annotations

from meshrt.core.source import Source as SourceInfo
from meshrt.core.source import capture as current
from meshrt.core.source import exclude
from meshrt.core.source import named_scope as extend_name_stack
from meshrt.core.source import replayed as user_context
from meshrt.numpy.names import missing as _missing

__all__ = ["SourceInfo", "current", "extend_name_stack", "register_exclusion", "summarize", "user_context"]

register_exclusion = exclude


def summarize(source_info: SourceInfo, num_frames: int = 1) -> str:
    """The line of a program, in words; one is known of each equation, whatever `num_frames` asks for."""
    return str(source_info)


__getattr__ = _missing(__name__, __all__)
