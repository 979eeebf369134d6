"""Why a dimension is sharded, in the names of the user's program: arguments, results, and lines."""

from __future__ import annotations

from collections.abc import Sequence

from meshrt.inspect.model import InspectError, type_text
from propagation import Propagated
from propagation.log import Step
from propagation.program import Func, Op, Value, location_text

__all__ = ["explain"]

# Operations that stand for something else than a computation of the user's.
_NAMES = {"sdy.data_flow_edge": "the loop or branch", "stablehlo.while": "the loop", "stablehlo.case": "the branch"}


def explain(propagated: Propagated, query: str, arg_names: Sequence[str], result_names: Sequence[str]) -> list[str]:
    """Why a dimension is sharded as it is: one line per step, from the value back to the user's annotation.

    `query` is VALUE:DIM, with VALUE the name of an argument or result, or a source line FILE:LINE, which stands for
    what is computed there for other lines.
    """
    what, separator, number = query.rpartition(":")
    if not separator or not number.isdigit():
        raise InspectError(
            f"--explain {query}: expected VALUE:DIM, such as {arg_names[0] if arg_names else 'arg0'}:0 or train.py:57:0"
        )
    dim, values = int(number), _values_named(propagated, what, arg_names, result_names)
    names = _Names(propagated, arg_names, result_names)
    lines: list[str] = []
    fitting = [v for v in values if dim < v.type.rank]
    if not fitting:
        raise InspectError(
            f"--explain {query}: {what} has rank {max(v.type.rank for v in values)}, so no dimension {dim}"
        )
    for value in fitting:
        chains = propagated.explain(value, dim)
        if not chains:
            lines.append(f"dimension {dim} of {names.of(value)} is not sharded: no annotation reaches it")
        for chain in chains:
            lines += [("" if i == 0 else "  ") + names.line(step) for i, step in enumerate(chain)]
    return lines


def _values_named(
    propagated: Propagated, what: str, arg_names: Sequence[str], result_names: Sequence[str]
) -> list[Value]:
    program = propagated.program
    named = {f"result{i}": v for i, v in enumerate(program.main.returned)}
    named |= {f"arg{i}": v for i, v in enumerate(program.main.args)}
    named |= {**dict(zip(result_names, program.main.returned)), **dict(zip(arg_names, program.main.args))}
    if what in named:
        return [named[what]]
    found = [
        v
        for op in program.ops()
        if (location_text(op.loc) or "").endswith(what)
        for v in op.results
        if v.type.is_tensor
    ]
    if not found or ":" not in what:
        some = ", ".join([*arg_names[:4], *result_names[:2]])
        raise InspectError(
            f"--explain: nothing is called {what!r}, and no operation comes from such a line; try one of {some} ... "
            f"or FILE:LINE"
        )
    return found


class _Names:
    """What the user calls the values of a program."""

    def __init__(self, propagated: Propagated, arg_names: Sequence[str], result_names: Sequence[str]):
        main = propagated.program.main
        self._named = {v.index: name for v, name in zip(main.returned, result_names)}
        self._named |= {v.index: name for v, name in zip(main.args, arg_names)}

    def of(self, value: Value | None) -> str:
        """`x (f32[8,4])` for an argument or result, else `f32[8,4] of tanh (train.py:7)`."""
        if value is None:
            return "the result"
        name = self._named.get(value.index)
        if name is not None:
            return f"{name} ({type_text(value)})"
        op = value.op
        return f"{type_text(value)} of {_called(op) + _place(op) if op is not None else 'the body of a loop or branch'}"

    def line(self, step: Step) -> str:
        head = f"dimension {step.dim} of {self.of(step.value)}"
        if step.op is None:
            begun = step.constraint
            who = "the user" if begun is None else f"the {_called(begun)} that uses it{_place(begun)}"
            return f"{head} is annotated with axis {step.axis.name!r} by {who}"
        through = _called(step.op) if isinstance(step.op, Op) else f"the return of {step.op.name}"
        text = f"{head} got axis {step.axis.name!r} through {through}{_place(step.op)}"
        text += f" from dimension {step.source_dim} of {self.of(step.source)}"
        if step.factor is None:
            text += " as a member of its sharding group"
        return text + "".join(f"; there {c.reason}" for c in step.conflicts) + _order(step)


def _order(step: Step) -> str:
    """When it was decided."""
    parts = [f"{step.strategy} strategy"] if step.strategy else []
    if step.round is not None:
        priority, number = step.round
        parts += [f"user priority {priority}"] if priority else []
        parts += [] if number is None else [f"round {number}"]
    return f" [{', '.join(parts)}]" if parts else ""


def _called(op: Op) -> str:
    return _NAMES.get(op.name) or op.name.rpartition(".")[2]


def _place(op: Op | Func) -> str:
    where = location_text(op.loc)
    return f" ({where})" if where else ""
