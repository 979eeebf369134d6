"""Immutable values that exist once each, so that equality is identity and hashing is free."""

from __future__ import annotations


class Interned:
    """Base of values that exist once. A subclass lists its fields in `_fields` and builds through `_intern`.

    The table of a class is a plain dict, because `dict.setdefault` is atomic: two threads can never get two
    objects for one value. The number of distinct shardings a process meets is small.
    """

    __slots__ = ()
    _fields: tuple[str, ...] = ()
    _table: dict = {}

    def __init_subclass__(cls) -> None:
        cls._table = {}

    def __setattr__(self, name, value):
        raise AttributeError(f"{type(self).__name__} is immutable; make a new one instead of setting {name!r}")

    def __reduce__(self):
        return type(self), tuple(getattr(self, f) for f in self._fields)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{f}={getattr(self, f)!r}' for f in self._fields)})"


set_field = object.__setattr__


def quote(text: str) -> str:
    """`text` as an MLIR string literal."""
    if text.isprintable() and text.isascii() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    out = []
    for byte in text.encode("utf-8"):
        out.append(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:02X}")
    return '"' + "".join(out) + '"'


def quote_symbol(name: str) -> str:
    """`name` as it follows `@`: bare if it is an identifier, else quoted."""
    plain = name.replace("_", "a").replace(".", "a").replace("$", "a")
    return name if plain.isalnum() and plain.isascii() and not name[:1].isdigit() else quote(name)
