"""What a program's arguments, results and values are called, in its user's words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from jaxlib.mlir import ir

from propagation import Propagated
from propagation.program import TensorType, Value
from propagation.program import argument_names as argument_names_of

if TYPE_CHECKING:
    from meshrt.pipeline.lowered import Lowered

__all__ = ["argument_names", "names_of", "output_names", "path_of", "type_text"]

_HEAD = re.compile(r"[^\[.]*")
_QUOTED = re.compile(r"\\(.)")
# A key in brackets, text in either kind of quotes or anything else, or an attribute.
_KEY = re.compile(r"""\[(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^\]]*))\]|\.(\w+)""")


def names_of(lowered: Lowered) -> tuple[list[str], list[str]]:
    """Names of the arguments of a `Lowered`'s module (captured arrays first) and of its results, as the user would
    write them: (["captured0", "params['w']", "x"], ["result[0]"])."""
    paths = lowered.record.arg_paths()
    constants = [f"captured{i}" for i in range(len(lowered.module.consts))]
    return [*constants, *[paths[i] for i in lowered.module.kept]], lowered.record.out_paths()


def argument_names(propagated: Propagated) -> list[str]:
    """The names that the module's locations give its arguments (as JAX writes them), else `arg0`, `arg1` ..."""
    found = argument_names_of(propagated.program.main)
    return [name or f"arg{i}" for i, name in enumerate(found)]


def output_names(propagated: Propagated) -> list[str]:
    """The names in `jax.result_info`, else `result0`, `result1` ..."""
    names = []
    for i, attrs in enumerate(propagated.program.main.result_attrs):
        info = attrs.get("jax.result_info")
        text = info.value_bytes.decode("utf-8", "replace") if isinstance(info, ir.StringAttr) else ""
        names.append(text if text.startswith("result") else f"result{i}{text}")
    return names


def path_of(name: str) -> str:
    """The path of an argument's or a result's name, by which annotations know it.

    >>> path_of("state['params'][0].w"), path_of('table["k"][(0, 1)]')
    ('state/params/0/w', 'table/k/(0, 1)')
    """
    head = _HEAD.match(name)
    assert head is not None  # it matches every text
    keys = ["".join(found) for found in _KEY.findall(name[head.end() :])]
    return "/".join([head[0], *[_QUOTED.sub(r"\1", key) for key in keys]])


def type_text(value: Value) -> str:
    """`f32[128,256]`; what is no tensor of known sizes as MLIR writes it."""
    kind = value.type
    if not isinstance(kind, TensorType) or not kind.is_static:
        return kind.text
    return f"{kind.dtype}[{','.join(map(str, kind.shape))}]"
