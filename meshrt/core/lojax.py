"""Lowering of programs over high types (`meshrt.core.high`) to programs over the arrays that their values consist of.

    { high lambda ; a:QArray[4,3] b:f32[3] c:Box{int32[]}. let ... in (q,) leaving c:Box{f32[]} }
    { lambda ; a1:i8[4,3] a2:f32[4] b:f32[3] c1:i32[]. let ... in (q1, q2, c2) }

Each argument and result of a high type becomes its arrays, in order. What is written to a mutable argument becomes
further results, the contents that it has in the end. Applications with high Jaxprs are lowered in this way
(`opened_call` and its like in `meshrt.primitives`), and so are whole programs (`lower_to_lojax`).

`every` distinguishes the two uses: True takes all high types apart, for whoever requires low types; False the mutable
ones only, into what they hold (which may be of high types itself), so that derivatives and batches of that are those of
ordinary arguments and results.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from meshrt import errors
from meshrt.core.high import HiType, says_arrays
from meshrt.core.jaxpr import ClosedJaxpr, Jaxpr, final_states
from meshrt.core.naming import body_name
from meshrt.core.placed import placed
from meshrt.core.trace import JaxprTrace, eval_high, set_trace
from meshrt.core.types import aval_of, in_program

__all__ = [
    "Opened",
    "OpenedCache",
    "arrays_of",
    "completed",
    "inlined_call",
    "lower_to_lojax",
    "may_unbox",
    "open_jaxpr",
    "opened_call",
    "raised",
]


def takes_apart(aval: Any, every: bool) -> bool:
    """Whether values of a type are replaced by their arrays."""
    return bool(aval.is_high and (every or aval.mutable))


def _parts(aval: Any, every: bool) -> list[Any]:
    """The types of what a value of a type that is taken apart becomes."""
    return [in_program(t) for t in aval.lo_ty()] if every else aval.aval.held_types(aval.state)


def arrays_of(values: Sequence[Any], every: bool = True) -> list[Any]:
    """The arrays that values consist of, those of no high type as they are. With `every` False what mutable ones hold,
    and all others as they are."""
    out: list[Any] = []
    for value in values:
        kind: Any = aval_of(value)
        if not takes_apart(kind, every):
            out.append(value)
        else:
            out += kind.lower_val(value) if every else kind.aval.read_held(kind.state, value)
    return out


def lo_types(avals: Sequence[Any], every: bool = True) -> list[list[Any]]:
    """For each type those of the arrays of its values."""
    return [_parts(a, every) if takes_apart(a, every) else [a] for a in avals]


def raised(avals: Sequence[Any], arrays: Iterator[Any], every: bool = True) -> list[Any]:
    """Values of these types, made of arrays."""
    return [_raised(a, arrays, every) if takes_apart(a, every) else next(arrays) for a in avals]


def _raised(aval: Any, arrays: Iterator[Any], every: bool) -> Any:
    mine = islice(arrays, len(_parts(aval, every)))
    return aval.raise_val(*mine) if every else aval.aval.new_from_held(aval.state, *mine)


def completed(
    types: Sequence[Any], avals: Sequence[Any], compute: Callable[..., Sequence[Any]], name: str
) -> list[Any]:
    """The result types of an operation on high types, with the Manual axes over which results vary.

    Authors of operations state shapes and dtypes; types of arrays that say nothing of Manual axes say that a result is
    the same on all devices, and where it is not, the cotangents are added up over devices that have one each. So those
    vary as what `compute` makes of the operands does: it alone knows what is selected, or summed over devices. An axis
    that a type names stays, and so do the types of operations on mutable values, which speak of their contents.

    Args:
      types: the stated types. avals: those of the operands.
      compute: the operation on values that consist of traced arrays.
      name: of the operation, for errors.
    """
    if any(a.mutable for a in avals) or not any(_says_nothing(t) for t in types):
        return list(types)
    if not any(a.vma or (a.is_high and _varies_inside(a)) for a in avals):
        return list(types)
    trace = JaxprTrace(name, requires_low=True)
    arrays = [trace.argument(t) for parts in lo_types(avals) for t in parts]
    with set_trace(trace):
        found = compute(*raised(avals, iter(arrays)))
    return [_as_found(t, x) if _says_nothing(t) else t for t, x in zip(types, found)]


def _says_nothing(kind: Any) -> bool:
    """Whether a type may lack the axes over which its values vary."""
    return says_arrays(kind) if kind.is_high else not kind.vma


def _as_found(kind: Any, value: Any) -> Any:
    """A stated type with the axes over which a value of it varies."""
    if not kind.is_high:
        return kind.update(vma=aval_of(value).vma)
    return placed(kind, [aval_of(x).vma for x in kind.lower_val(value)])


def _varies_inside(aval: Any) -> bool:
    return type(aval).lo_ty is not HiType.lo_ty and any(t.vma for t in aval.lo_ty())


class Opened(NamedTuple):
    """A program whose high arguments and results were taken apart.

    closed     the Jaxpr without constvars, and the values to pass before the arguments
    ins        for each argument of the original the types of its arrays
    outs       for each result likewise
    written    positions of the mutable arguments whose contents in the end are further results
    finals     the types that these arguments have then
    """

    closed: ClosedJaxpr
    ins: list[list[Any]]
    outs: list[list[Any]]
    out_avals: list[Any]
    written: tuple[int, ...]
    finals: tuple[Any, ...]
    every: bool

    def finish(self, args: Sequence[Any], arrays: Sequence[Any], out_avals: Sequence[Any] | None = None) -> list[Any]:
        """The results of an application, and what it writes to its operands, from the results of the opened one."""
        found = iter(arrays)
        outs = raised(self.out_avals if out_avals is None else out_avals, found, self.every)
        self.write(args, found)
        return outs

    def final_types(self) -> list[Any]:
        """The types of the contents that are further results."""
        return [t for final in self.finals for t in _parts(final, self.every)]

    def write(self, args: Sequence[Any], contents: Iterator[Any]) -> None:
        """Writes contents to those operands that an application writes to."""
        for i, final in zip(self.written, self.finals):
            write = final.aval.update_from_loval if self.every else final.aval.update_from_held
            write(final.state, args[i], *islice(contents, len(_parts(final, self.every))))


def open_jaxpr(jaxpr: Jaxpr, every: bool, written: tuple[int, ...] | None = None) -> Opened:
    """`jaxpr` (without constvars) with its high arguments and results taken apart. Kept as long as `jaxpr` lives.

    `written` are the arguments whose contents become results, where that are more than those that it writes to.
    """
    return _cache.get(jaxpr, (every, written), lambda: _open(jaxpr, (), every, written))


class OpenedCache:
    """Results by Jaxpr, dropped with it (as `meshrt.transforms.tools.WeakCache`, which stands above the core).

    `remembered` looks into a table; `meshrt.sharding`, which stands above, sets it.
    """

    remembered: ClassVar[Callable[[dict[Any, Any], Any, Callable[[], Any]], Any]]

    def __init__(self) -> None:
        self._entries: weakref.WeakKeyDictionary[Jaxpr, dict[Any, Opened]] = weakref.WeakKeyDictionary()

    def get(self, jaxpr: Jaxpr, key: Any, make: Callable[[], Opened]) -> Opened:
        found: Opened = OpenedCache.remembered(self._entries.setdefault(jaxpr, {}), key, make)
        return found


_cache = OpenedCache()


def _open(jaxpr: Jaxpr, consts: Sequence[Any], every: bool, written: tuple[int, ...] | None = None) -> Opened:
    trace = JaxprTrace(jaxpr.name, requires_low=every)
    trace.cells = {}
    ins = lo_types(jaxpr.in_avals, every)
    args: list[Any] = []
    values: list[Any] = []
    for aval, types in zip(jaxpr.in_avals, ins):
        mine = [trace.argument(t) for t in types]
        args += mine
        values += raised([aval], iter(mine), every)
        if aval.mutable:
            trace.cells[id(values[-1])] = values[-1]
    if written is None:
        states = final_states(jaxpr)
        written = tuple(i for i, v in enumerate(jaxpr.invars) if v in states)
    with set_trace(trace):
        outs = eval_high(jaxpr, consts, values)
        out_avals = [aval_of(o) if takes_apart(aval_of(o), every) else v.aval for o, v in zip(outs, jaxpr.outvars)]
        finals = tuple(aval_of(values[i]) for i in written)
        results = [*arrays_of(outs, every), *arrays_of([values[i] for i in written], every)]
        closed = trace.close(args, results)
    low = closed.jaxpr
    hoisted = Jaxpr(
        (), (*low.constvars, *low.invars), low.outvars, low.eqns, low.effects, is_high=low.is_high, name=low.name
    )
    out_types = lo_types(out_avals, every)
    return Opened(_Hoisted(hoisted, closed.consts), ins, out_types, out_avals, written, finals, every)


class _Hoisted(ClosedJaxpr):
    __slots__ = ()

    def __init__(self, jaxpr: Jaxpr, consts: Sequence[Any]):
        self.jaxpr, self.consts = jaxpr, list(consts)


def lower_to_lojax(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program over the arrays that the high arguments and results of `closed` consist of, in their order.

    Behind the results stand the contents of the mutable arguments that it writes to (`closed.jaxpr.mut_types`).
    """
    if not closed.is_high:
        return closed
    if any(v.aval.mutable for v in closed.jaxpr.constvars):
        raise errors.InternalError(f"{closed.jaxpr.name} captures a mutable value, which has to be an argument of it")
    opened = _open(closed.jaxpr, closed.consts, True)
    jaxpr, count = opened.closed.jaxpr, len(opened.closed.consts)
    low = Jaxpr(
        jaxpr.invars[:count],
        jaxpr.invars[count:],
        jaxpr.outvars,
        jaxpr.eqns,
        jaxpr.effects,
        is_high=jaxpr.is_high,
        name=jaxpr.name,
    )
    return ClosedJaxpr(low, opened.closed.consts)


def opened_call(bind: Callable[..., Any], every: bool) -> Callable[..., Any]:
    """The lowering of a primitive that calls the Jaxpr in its parameter `jaxpr` with its operands."""

    def lowered(*args: Any, jaxpr: Jaxpr, **params: Any) -> list[Any]:
        opened = open_jaxpr(jaxpr, every)
        flat = arrays_of(args, every)
        return opened.finish(args, bind(*opened.closed.consts, *flat, jaxpr=opened.closed.jaxpr, **params))

    return lowered


def may_unbox(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> bool:
    """Whether an application is to be transformed with its mutable operands taken apart.

    Not where an operation with a rule of its own gets one: the rule may keep it, for the backward pass for example.
    """
    if primitive.unbox is None or not any(aval_of(a).mutable for a in args):
        return False
    return not any(_keeps_mutable(jaxpr) for jaxpr, _ in primitive.applies(params))


def _keeps_mutable(jaxpr: Jaxpr) -> bool:
    for e in jaxpr.eqns:
        if e.primitive.boxes is None and any(a.aval.mutable for a in e.invars):
            inner = () if e.primitive.applies is None else e.primitive.applies(e.params)
            if e.primitive.unbox is None or any(_keeps_mutable(j) for j, _ in inner):
                return True
    return False


def inlined_call(*args: Any, **params: Any) -> list[Any]:
    """The lowering of a primitive that does what the Jaxpr among its parameters does, with other derivatives."""
    return eval_high(params[body_name(params)], (), args)
