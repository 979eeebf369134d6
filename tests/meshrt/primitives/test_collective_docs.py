"""The table of docs/shard_map.md says what the records of primitives and of kinds of collectives say."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from collectives.kinds import kinds
from meshrt import lax
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import ShapedArray
from meshrt.primitives import collective, collective_axes, collective_functions, collective_moves
from meshrt.primitives.shard_map_region import Region
from meshrt.sharding import AbstractMesh, AxisType
from meshrt.transforms.linear import transpose_jaxpr

PAGE = Path(__file__).parents[3] / "docs" / "shard_map.md"
RING = [(0, 1), (1, 2), (2, 3), (3, 0)]
# what users write -> it, of x: f32[8]{V:x} over an axis of 4 devices
CALLS = {
    '`psum(x, "x")`': lambda x: lax.psum(x, "x"),
    '`psum` of what is unreduced': lambda x: lax.psum(lax.pcast(x, "x", to="unreduced"), "x"),
    '`pmax(x, "x")`, `pmin`': lambda x: lax.pmax(x, "x"),
    '`ppermute(x, "x", perm)`, `pshuffle`': lambda x: lax.ppermute(x, "x", RING),
    '`pbroadcast(x, "x", source)`': lambda x: lax.pbroadcast(x, "x", 1),
    '`all_gather(x, "x")`': lambda x: lax.all_gather(x, "x"),
    '`all_gather(..., to="invarying")`': lambda x: lax.all_gather(x, "x", to="invarying"),
    '`all_gather(..., to="reduced")`': lambda x: lax.all_gather(x, "x", to="reduced"),
    '`psum_scatter(x, "x")`': lambda x: lax.psum_scatter(x, "x", tiled=True),
    '`psum_scatter` of what is unreduced': lambda x: lax.psum_scatter(
        lax.pcast(x, "x", to="unreduced"), "x", tiled=True
    ),
    '`all_to_all(x, "x", i, j)`, `pswapaxes`': lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True),
    '`pcast(x, "y", to="varying")`': lambda x: lax.pcast(x, "y", to="varying"),
    '`pcast(x, "x", to="unreduced")`': lambda x: lax.pcast(x, "x", to="unreduced"),
    '`pcast(x, "y", to="reduced")`': lambda x: lax.pcast(x, "y", to="reduced"),
}  # fmt: skip
FILES = (collective, collective_axes, collective_functions, collective_moves)
# Made of those, synonyms, and values that are no collectives.
NOT_IN_TABLE = {
    "all_gather_invariant", "axis_index", "axis_size", "pargmax", "pargmin", "pmean", "precv", "psend", "pvary",
}  # fmt: skip
# Primitives that stand for a kind of collective under a name of their own.
OF_KIND = {
    "psum_invariant": "all_reduce", "unreduced_psum": "all_reduce", "pmax": "all_reduce", "pmin": "all_reduce",
    "all_gather_invariant": "all_gather", "all_gather_reduced": "all_gather",
    "unreduced_reduce_scatter": "reduce_scatter",
}  # fmt: skip


HEAD = """| in a program | primitive | operand | result | kind | sends | transpose |
| --- | --- | --- | --- | --- | --- | --- |"""


def state(aval):
    """`{V:x}`, of a type."""
    text = aval.short()
    return f"`{text[text.index('{') :]}`" if "{" in text else "one value"


def row(label, call):
    mesh = AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    aval = ShapedArray((8,), np.dtype(np.float32), vma=frozenset("x"))
    with Region(mesh, ("x", "y"), True).enter():
        jaxpr = trace_to_jaxpr(lambda x: [call(x)], [aval]).jaxpr
        eqn = jaxpr.eqns[-1]
        back = "a share for each that has it"
        if eqn.primitive.transpose is not None:
            pulled = transpose_jaxpr(jaxpr, (True,), (True,))[0].jaxpr
            names = [e.primitive.name for e in pulled.eqns]
            own_part = "dynamic_slice" if "dynamic_slice" in names else None
            back = f"`{own_part or next(e.primitive.name for e in pulled.eqns if e.primitive.names is not None)}`"
    by_primitive = {k.primitive: name for name, k in kinds().items() if k.primitive}
    name = eqn.primitive.name
    kind = by_primitive.get(name) or OF_KIND.get(name)
    sent = f"{kinds()[kind].sent(4, 1.0):g}" if kind else "0"
    types = f"{state(eqn.invars[0].aval)} | {state(eqn.outvars[0].aval)}"
    return f"| {label} | `{name}` | {types} | {kind or 'none'} | {sent} | {back} |"


def table():
    return "\n".join([HEAD, *[row(label, call) for label, call in CALLS.items()]])


def test_the_table_of_the_page():
    assert table() in PAGE.read_text()


def test_every_collective_of_lax_stands_in_it():
    public = {n for f in FILES for n in f.__all__} - NOT_IN_TABLE
    text = table()
    assert {n for n in public if f"`{n}" not in text} == set()


if __name__ == "__main__":
    print(table())
