"""Why a dimension is sharded, or is not, in the names of the user's program: arguments, results and source lines.

Asked for `result:1` of `x @ w` with w split over "model" in its columns, it answers

dimension 1 of result (f32[128,256]) got axis 'model' through dot_general (train.py:31) from dimension 1 of w
  dimension 1 of w (f32[64,256]) is annotated with axis 'model' by the user
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

from meshrt.errors import InspectError
from meshrt.pipeline.names import path_of, type_text
from propagation import Propagated
from propagation.addresses import Address, resolve
from propagation.dataflow import EDGE
from propagation.errors import BadOptionError
from propagation.functions import original_name
from propagation.locations import CallSites, lines
from propagation.log import CHOSEN, Missing, ProvenanceStep
from propagation.program import Func, Op, Program, Value

__all__ = ["CONSTRAINTS", "Names", "explain", "missing"]

_CALL = "sdy.named_computation"  # a call, as propagation sees it
CONSTRAINTS = ("sdy.sharding_constraint", "sdy.reshard")
# What operations are to the user whose own names are not the user's.
_NAMES = {
    "stablehlo.while": "the loop", "stablehlo.case": "the branch", "stablehlo.if": "the branch",
    "sdy.manual_computation": "the manual computation",
} | dict.fromkeys(CONSTRAINTS, "the constraint")  # fmt: skip


def explain(propagated: Propagated, query: str, arg_names: Sequence[str], result_names: Sequence[str]) -> list[str]:
    """Why a dimension is sharded as it is: one line per step of propagation, from the value back to the annotation.

    `query` is VALUE:DIM, with VALUE the name of an argument or result (`params['w1']`) or its path (`params/w1`),
    `arg[0]`, `result[1]`, a name in the propagated module's text (`%3`), or a source line FILE:LINE, which stands for
    the values that are computed on that line and used on others. VALUE alone stands for all its dimensions.
    InspectError for what is none of these.
    """
    if not isinstance(query, str):
        raise InspectError(f"explain takes text such as 'result[0]:1', got {type(query).__name__}")
    found, dim = _asked(propagated, query, arg_names, result_names)
    names = Names(propagated, arg_names, result_names)
    lines: list[str] = []
    asked = [(at, d) for at in found for d in (range(at.value.type.rank) if dim is None else [dim])]
    fitting = [(at, d) for at, d in asked if d < at.value.type.rank]
    if dim is not None and not fitting:
        raise InspectError(
            f"explain {query!r}: {query.rpartition(':')[0]} has rank {max(at.value.type.rank for at in found)}, so no "
            f"dimension {dim}"
        )
    for at, d in fitting:
        chains = propagated.explain_address(at, d)
        if not chains:
            lines.append(_why_not(propagated, at, d, names))
        for chain in chains:
            lines += [("" if i == 0 else "  ") + names.line(step) for i, step in enumerate(chain)]
    return lines or [f"{query} is a scalar, which has no dimensions to split"]


def missing(propagated: Propagated, arg_names: Sequence[str], result_names: Sequence[str]) -> list[str]:
    """A line for each dimension that stayed unsharded next to a sharded one, with what kept the axes from coming:
    a conflict with another operand, a size that does not divide, a closed dimension."""
    names = Names(propagated, arg_names, result_names)
    return [m.text(names.of) for m in propagated.missing()]


def _why_not(propagated: Propagated, at: Address, dim: int, names: Names) -> str:
    stopped = [m for m in propagated.missing() if _is_of(m, at, dim)]
    reasons = "; ".join(c.text(names.of) for m in stopped for c in m.causes) or "no annotation reaches it"
    return f"dimension {dim} of {names.of(at.value)} is not sharded: {reasons}"


def _is_of(m: Missing, at: Address, dim: int) -> bool:
    return m.value is at.value and m.dim in (None, dim) and m.result in (None, at.result)


def _asked(
    propagated: Propagated, query: str, arg_names: Sequence[str], result_names: Sequence[str]
) -> tuple[list[Address], int | None]:
    """The values that a query names, and the dimension if it says one."""
    what, separator, number = query.rpartition(":")
    has_dim = bool(separator) and re.fullmatch("[0-9]{1,18}", number) is not None
    if has_dim and (found := _addressed(propagated, what, arg_names, result_names)) is not None:
        return found, int(number)
    if (found := _addressed(propagated, query, arg_names, result_names)) is not None:
        return found, None
    some = ", ".join([*arg_names[:4], *result_names[:2]])
    raise InspectError(
        f"explain: nothing is called {(what if has_dim else query)!r}, and no operation comes from such a line; try "
        f"one of {some} ... or FILE:LINE, with :DIM or for all dimensions"
    )


def _addressed(
    propagated: Propagated, what: str, arg_names: Sequence[str], result_names: Sequence[str]
) -> list[Address] | None:
    """The values that `what` names: in the program's own names, else as `propagation.addresses` reads it; None if it
    names none."""
    named = _named(what, arg_names, result_names)
    if named is not None:
        what = named
    try:
        if re.fullmatch(r"(arg|result)(\[\d+\]|\d+)|%.*|.*:\d+", what):
            return resolve(propagated, what)
    except BadOptionError:
        pass  # answered by who asks, in the names of this program
    return None


def _named(what: str, arg_names: Sequence[str], result_names: Sequence[str]) -> str | None:
    """`arg[0]` or `result[1]` of which `what` is the name as reports spell it (`params['w1']`), with other quotes, or
    the path by which annotations know it (`params/w1`); None if it is none's."""
    spellings: tuple[Callable[[str], str], ...] = (str, path_of)
    for spelled in spellings:
        for names, side in ((arg_names, "arg"), (result_names, "result")):
            for number, name in enumerate(names):
                if spelled(name) == spelled(what):
                    return f"{side}[{number}]"
    return None


class Names:
    """What the user calls the values of a program, of which arguments and results have these names."""

    def __init__(self, propagated: Propagated, arg_names: Sequence[str], result_names: Sequence[str]):
        self._named: dict[Value, str] = {}
        self._programs: list[Program] = []
        at: Propagated | None = propagated
        while at is not None:  # chains go on in the propagation before
            main = at.program.main
            self._programs.append(at.program)
            self._named |= dict(zip(main.returned, result_names))
            self._named |= dict(zip(main.args, arg_names))
            at = at.before

    def of(self, value: Value | None) -> str:
        """`x (f32[8,4])` for an argument or result, else `f32[8,4] of tanh (train.py:7)`."""
        if value is None:
            return "the result"
        name = self.given(value)
        if name is not None:
            return f"{name} ({type_text(value)})"
        op = value.op
        return f"{type_text(value)} of {self._entered(value) if op is None else _called(op) + self.place(op)}"

    def given(self, value: Value) -> str | None:
        """The name of an argument or result of the program; None for what lies in between."""
        return self._named.get(value)

    def line(self, step: ProvenanceStep) -> str:
        """The sentence of one step of an explanation."""
        head = f"dimension {step.dim} of {self.of(step.value)}"
        if step.is_chosen:
            return f"{head} has axis {step.axis.name!r} in {CHOSEN}, which send less"
        if step.is_inserted:
            return f"{head} got axis {step.axis.name!r} when reshards were put around it"
        if step.op is None:
            begun = step.constraint
            by = begun if begun is not None or step.value is None else step.value.op
            inside = "" if by is None or (called := _function_around(by)) is None else f", in {called}"
            if begun is not None:
                who = f"{_called(begun)} that uses it{self.place(begun)}"
            else:
                where = f" ({step.where})" if step.where else ""
                who = f"the user{where if by is None else self.place(by)}"
            return f"{head} is annotated with axis {step.axis.name!r} by {who}{inside}"
        through = _called(step.op) if isinstance(step.op, Op) else f"the return of {step.op.name}"
        text = f"{head} got axis {step.axis.name!r} through {through}{self.place(step.op)}"
        text += f" from dimension {step.source_dim} of {self.of(step.source)}"
        if step.factor is None:
            text += " as a member of its sharding group"
        return text + "".join(f"; there {c.text(self.of)}" for c in step.conflicts) + _order(step)

    def _entered(self, value: Value) -> str:
        """What a value that no operation makes is to the user: an argument of a called function, or what a loop or
        branch begins with."""
        owner = value.argument_of
        if isinstance(owner, Func):
            return f"argument {value.number} of {original_name(owner)}"
        if not isinstance(owner, Op):
            return "an argument"
        if owner.name == _CALL:
            return f"argument {value.number} of {owner.data['name']}{self.place(owner)}"
        return f"an argument of {_called(owner)}{self.place(owner)}"

    def place(self, op: Op | Func) -> str:
        """` (train.py:7)`; of an operation of a line that makes several for those who call its function,
        ` (helpers.py:5, called at train.py:31)`."""
        stack = lines(op)
        if not stack:
            return ""
        caller = self._sites.caller(stack)
        return f" ({stack[0]})" if caller is None else f" ({stack[0]}, called at {caller})"

    @functools.cached_property
    def _sites(self) -> CallSites:
        return CallSites(lines(op) for program in self._programs for op in program.ops())


def _order(step: ProvenanceStep) -> str:
    """When it was decided."""
    parts = [f"{step.strategy} strategy"] if step.strategy else []
    if step.round is not None:
        priority, number = step.round
        parts += [f"user priority {priority}"] if priority else []
        parts += [] if number is None else [f"round {number}"]
    return f" [{', '.join(parts)}]" if parts else ""


def _called(op: Op) -> str:
    if op.name == EDGE:  # stands for what carries values into and out of it
        op = op.data["edge"].op
    if op.name == _CALL:
        return f"the call of {op.data['name']}"
    return _NAMES.get(op.name) or op.name.rpartition(".")[2]


def _function_around(op: Op) -> str | None:
    """The called function in which an operation stands; None for one of the entry function."""
    around = op.parent_op
    while isinstance(around, Op):
        if around.name == _CALL:
            return str(around.data["name"])
        around = around.parent_op
    return original_name(around) if isinstance(around, Func) and around.name != "main" else None
