"""Parts of the library whose interface may still change."""

from meshrt.primitives.callback import io_callback

__all__ = ["io_callback"]
