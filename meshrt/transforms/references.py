"""What may not be done with references, and with boxes: to pass one twice, and to return one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from meshrt import errors, tree_util
from meshrt.core.jaxpr import Jaxpr
from meshrt.core.primitive import Primitive
from meshrt.core.references import AccumEffect, WriteEffect, is_ref, is_ref_type
from meshrt.core.spaces import DEVICE
from meshrt.core.tracer import Tracer
from meshrt.core.types import aval_of
from meshrt.transforms.arguments import ArgumentNames
from meshrt.transforms.tools import WeakCache

__all__ = [
    "check_aliases", "check_distinct", "paths_of", "refuse_mutable", "refuse_returned", "refuse_returned_by_rule",
    "set_moved_ref", "with_moved_refs", "written_refs",
]  # fmt: skip


def made_at(ref: Any) -> str:
    """` (made at line)`, where that is known."""
    where = getattr(ref, "source", None)
    return f" (made at {where})" if where is not None and not isinstance(where, str) else ""


_NO_KEYWORDS = tree_util.tree_structure({})


def paths_of(fun: Any, tree: Any) -> Callable[[], Sequence[str]]:
    """Names what a function takes by position, where `tree` is the structure of these arguments, once it is asked."""
    return ArgumentNames(fun, tree_util.treedef_tuple([tree, _NO_KEYWORDS]))


def check_distinct(
    what: str, name: str, args: Sequence[Any], captured: Sequence[Any], paths: Callable[[], Sequence[str]]
) -> None:
    """ArgumentValueError if a reference is given twice, or given and captured, to the function `name` for `what` (jit,
    scan): two names of one array would hide from each other what is written. `paths` names the arguments.
    """
    if not any(map(is_ref, args)):
        return
    seen: dict[int, int] = {}
    held = {id(c) for c in captured if is_ref(c)}
    for i, x in enumerate(args):
        if not is_ref(x):
            continue
        first = seen.setdefault(id(x), i)
        if first != i:
            names = paths()
            raise errors.ArgumentValueError(
                "only one reference to a mutable array may be passed as an argument to a function, but when tracing "
                f"{name} for {what} the mutable array reference of type {aval_of(x)}{made_at(x)} appeared at both "
                f"{names[first]} and {names[i]}. Pass it once"
            )
        if id(x) in held:
            raise errors.ArgumentValueError(
                f"when tracing {name} for {what}, a mutable array reference of type {aval_of(x)}{made_at(x)} was both "
                f"closed over and passed as the argument {paths()[i]}. Do one of both"
            )


def refuse_returned_by_rule(kind: str, name: str, values: Sequence[Any], arguments: Sequence[Any] = ()) -> None:
    """ArgumentValueError if a function with custom derivatives, or a rule of one, as `kind` says, returns a reference
    that is not among its `arguments`."""
    known = {id(a) for a in arguments}
    for value in values:
        if is_ref(value) and id(value) not in known:
            raise errors.ArgumentValueError(
                f"custom_vjp {kind} function {name} returned a mutable array reference of type {aval_of(value)}"
                f"{made_at(value)}, but mutable array references cannot be returned there. Return what it holds, "
                "ref[...]"
            )


def refuse_returned(what: str, name: str, ref: Any, path: str = "") -> NoReturn:
    """The error for a function that returns a reference."""
    at = f" at output tree path {path}" if path else ""
    origin = ref.origin() if hasattr(ref, "origin") else ""
    if origin.startswith("is "):
        origin = "was passed in as the " + origin.removeprefix("is ")
    made = origin or made_at(ref).removesuffix(")").replace(" (", "was ", 1)
    raise errors.ArgumentValueError(
        f"function {name} traced for {what} returned a mutable array reference of type {aval_of(ref)}{at}, but mutable "
        "array references cannot be returned."
        + (f"\n\nThe returned mutable array {made}." if made else "")
        + " Return what it holds, ref[...], instead"
    )


def refuse_mutable(what: str, name: str, aval: Any, path: str) -> NoReturn:
    """The error for a function that returns a mutable value of a high type, such as a Box, of type `aval` at `path`."""
    raise errors.ArgumentValueError(
        f"function {name} traced for {what} returned a mutable value of type {aval.aval.short()} at output tree "
        f"path {path}, but what is written to it later would not be seen by who else has it. Return what it holds (of "
        "a Box box.get()), and pass it as an argument or close over it"
    )


def _no_operations(ref: Any, dim: int, place: int) -> Any:
    raise errors.InternalError("meshrt.primitives.state, which has the operations on references, is not imported")


_moved: Callable[[Any, int, int], tuple[Any, Callable[[], None]]] = _no_operations


def set_moved_ref(rule: Callable[[Any, int, int], tuple[Any, Callable[[], None]]]) -> None:
    """Sets what makes of a reference one to the same values with a dimension at another place, and a function that
    writes what this one holds then to the first. `meshrt.primitives.state`, which stands above, does it."""
    global _moved
    _moved = rule


def with_moved_refs(
    primitive: Primitive, apply: Callable[..., Any], values: Sequence[Any], dims: Sequence[Any],
    params: dict[str, Any], place: int,
) -> Any:  # fmt: skip
    """`apply(values, dims)`, an application of `primitive`, with references whose dimension in `dims` is not at `place`
    as ones to the same values in which it is: programs inside of operations have a batch in front, loops over
    references behind their own dimension. What the operation writes goes back.
    """
    chosen = [
        i for i, (x, d) in enumerate(zip(values, dims))
        if isinstance(d, int) and d != place and is_ref(x) and aval_of(x).memory_space is DEVICE  # (others in kernels)
    ]  # fmt: skip
    if not chosen:
        return apply(values, dims)
    values, dims, backs = list(values), list(dims), []
    written = written_refs(primitive, tuple(map(aval_of, values)), params)
    for i in chosen:
        values[i], back = _moved(values[i], dims[i], place)
        dims[i] = place
        if i in written:
            backs.append(back)
    out = apply(values, dims)
    for back in backs:
        back()
    return out


_written: WeakCache = WeakCache()


def written_refs(primitive: Primitive, avals: Sequence[Any], params: dict[str, Any]) -> frozenset[int]:
    """The positions of the operands that are references which an application of `primitive` may write or add to."""
    if not any(type(e) in (WriteEffect, AccumEffect) for e in primitive.effects(tuple(avals), params)):
        return frozenset()
    if primitive.applies is None:
        return frozenset([i for i, a in enumerate(avals) if is_ref_type(a)])
    return frozenset(
        [at for jaxpr, positions in primitive.applies(params) for k, at in enumerate(positions) if k in _writes(jaxpr)]
    )


def _writes(jaxpr: Jaxpr) -> frozenset[int]:
    """The positions of the arguments that a program may write or add to."""
    found: frozenset[int] = _written.get(jaxpr, "writes", lambda: _find_writes(jaxpr))
    return found


def _find_writes(jaxpr: Jaxpr) -> frozenset[int]:
    variables = {
        id(eqn.invars[i])
        for eqn in jaxpr.eqns
        if eqn.effects
        for i in written_refs(eqn.primitive, [a.aval for a in eqn.invars], eqn.params)
    }
    return frozenset([i for i, v in enumerate(jaxpr.invars) if id(v) in variables])


def check_aliases(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> None:
    """ArgumentValueError if an application under `vmap` takes one reference by two names, that of the whole and that of
    its members, and writes to it: a loop, branch or call has what each name holds apart.
    """
    seen: dict[int, int] = {}
    for i, x in enumerate(args):
        if not is_ref(x):
            continue
        root = x
        while isinstance(root, Tracer) and root.below() is not None:
            root = root.below()
        first = seen.setdefault(id(root), i)
        if args[first] is x or not {first, i} & written_refs(primitive, tuple(map(aval_of, args)), params):
            continue
        raise errors.ArgumentValueError(
            f"under vmap, a '{primitive}' writes to a mutable array reference of type {aval_of(root)}{made_at(root)} "
            "that it has by two names: closed over, and as the argument that is mapped. Use one of both in it"
        )
