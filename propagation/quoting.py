"""Names and texts as MLIR writes them."""

from __future__ import annotations

import re

__all__ = ["printable", "quote", "quote_symbol", "unquote"]

_ESCAPE = re.compile(rb"\\(?:([0-9A-Fa-f]{2})|(.))", re.DOTALL)


def quote(text: str) -> str:
    """`text` as a string literal; bytes that do not print become \\HH."""
    if text.isprintable() and text.isascii() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    out = []
    for byte in text.encode("utf-8"):
        out.append(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:02X}")
    return '"' + "".join(out) + '"'


def printable(text: str) -> str:
    r"""`text` with what does not print escaped: a name in a program must not steer the terminal that shows it.

    >>> print(printable("red: " + chr(27) + "[31m, and from right to left: " + chr(0x202E)))
    red: \x1b[31m, and from right to left: \u202e
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(ord(c)) for c in text)


def _escape(code: int) -> str:
    """As Python writes it: the number of digits says where it ends."""
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def quote_symbol(name: str) -> str:
    """`name` as it follows `@`: bare if it is an identifier, else quoted."""
    plain = name.replace("_", "a").replace(".", "a").replace("$", "a")
    return name if plain.isalnum() and plain.isascii() and not name[:1].isdigit() else quote(name)


def unquote(text: str) -> str:
    """What the inside of a string literal stands for."""
    if "\\" not in text:
        return text
    data = _ESCAPE.sub(lambda m: bytes([int(m[1], 16)]) if m[1] else m[2], text.encode())
    return data.decode("utf-8", "replace")
