"""What reverse mode saves between its passes, and where each value comes from: for people who look at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from meshrt import tree_util
from meshrt.core.jaxpr import Eqn, Jaxpr, Literal, Var
from meshrt.core.trace import JaxprTrace, set_trace
from meshrt.core.types import aval_of
from meshrt.transforms.arguments import argument_paths, fun_name
from meshrt.transforms.checkpoint import checkpoint_p
from meshrt.transforms.checkpoint_policies import name_p
from meshrt.transforms.high import flatten
from meshrt.transforms.linearize import linearize_flat
from meshrt.transforms.tools import dce

__all__ = ["print_saved_residuals", "saved_residuals"]


def saved_residuals(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> list[tuple[Any, str]]:
    """What reverse mode of `fun` at these arguments saves between the passes: types and where each value comes from.

    Constants and arguments come first, then what the function computes, in its order.

    >>> from meshrt.ad_checkpoint import saved_residuals
    >>> [str(aval) for aval, why in saved_residuals(lambda x: jnp.sin(jnp.sin(x)), 1.0)]
    ['~float32[]', '~float32[]']
    """
    leaves, tree = flatten((args, kwargs))
    trace = JaxprTrace(fun_name(fun), requires_low=False)
    inputs = [trace.argument(aval_of(x), f"argument {i}") for i, x in enumerate(leaves)]

    def flat(*values: Any) -> list[Any]:
        positional, keywords = tree_util.tree_unflatten(tree, values)
        return tree_util.tree_leaves(fun(*positional, **keywords))

    with set_trace(trace):
        _, recorded = linearize_flat(flat, inputs, [x.aval.is_differentiable for x in inputs])
        tangents = [t for t in recorded.outs if t is not None]
        linear, residuals = recorded.trace.to_jaxpr([t for t in recorded.inputs if t is not None], tangents)
        _, needed = dce(linear)
        program = trace.close(inputs, [value for value, need in zip(residuals, needed) if need]).jaxpr
    origins = dict(_origins(program, argument_paths(fun, tree)))
    found = [(a.aval, "from a literal") for a in program.outvars if type(a) is Literal]
    wanted = {v for v in program.outvars if type(v) is Var}
    return found + [(v.aval, why) for v, why in origins.items() if v in wanted]


def _origins(program: Jaxpr, paths: Sequence[str]) -> Iterator[tuple[Var, str]]:
    """Each variable of a program and where its value comes from, in order."""
    for v in program.constvars:
        yield v, "from a constant"
    for v, path in zip(program.invars, paths):
        yield v, f"from the argument {path}"
    for eqn in program.eqns:
        yield from _computed(eqn)


def _computed(eqn: Eqn) -> Iterator[tuple[Var, str]]:
    """The results of an equation and where their values come from; those of checkpoint's come from the lines inside."""
    if eqn.primitive is checkpoint_p:
        inside = eqn.params["jaxpr"]
        outside: dict[Any, list[Var]] = {}
        for own, result in zip(inside.outvars, eqn.outvars):
            outside.setdefault(own, []).append(result)
        for own, why in _origins(inside, ["of a checkpointed function"] * len(inside.invars)):
            yield from ((result, why) for result in outside.get(own, ()))
        return
    name = eqn.primitive.name
    if eqn.primitive is name_p:
        what = f"named {eqn.params['name']!r}"
    elif name == "jit":
        what = f"output of jitted function {eqn.params['name']!r}"
    else:
        what = f"output of {name}"
    for v in eqn.outvars:
        yield v, f"{what} from {eqn.source.with_column}"


def print_saved_residuals(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Prints `saved_residuals`, one value a line.

    >>> from meshrt.ad_checkpoint import print_saved_residuals
    >>> print_saved_residuals(meshrt.checkpoint(lambda x: jnp.sin(jnp.sin(x))), 1.0)
    f32[] from the argument x
    """
    for aval, where in saved_residuals(fun, *args, **kwargs):
        print(f"{aval.short()} {where}")
