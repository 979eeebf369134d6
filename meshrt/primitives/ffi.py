"""Calls of functions of other languages, which were registered with XLA's foreign function interface.

    ffi_call[target result_avals attributes ...] operands  ->  results

Nothing is known of such a function but what its caller says: how it is mapped (`vmap_method`), how it may be split
(`sharding_rule`), which buffers it writes into.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.shapes import broadcast_in_dim, move_dim
from meshrt.core.effects import IO
from meshrt.core.explicit import Application, Spec
from meshrt.core.jaxpr import NO_EFFECTS, Effects, Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.source import capture
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.lowering.explicit import by_rule
from meshrt.lowering.types import dense, element_type
from meshrt.primitives.control import scan
from meshrt.sharding.rules import ShardingRule, parse_rule, with_batch
from propagation.model import FactorType, OpRule
from propagation.quoting import quote

__all__: list[str] = []

VMAP_METHODS = ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized", None)

Layouts = Sequence[tuple[int, ...]]  # of each array, dimensions from the minor to the major one, as XLA has them


class Target(NamedTuple):
    """What is called, and what its caller says of it.

    `levels` are the vmaps around the call: the size of each, and of every operand "all" if it has it as its leading
    dimension, "one" if that was added with size 1, "" if not.
    """

    name: str
    attributes: str
    api_version: int
    config: str | None
    vmap_method: str | None
    has_side_effect: bool
    aliases: tuple[tuple[int, int], ...]
    rule: ShardingRule | None
    levels: tuple[tuple[int, tuple[str, ...]], ...] = ()


def _infer(*avals: ShapedArray, result_avals: Sequence[ShapedArray], **_: Any) -> Any:
    return result_avals


def _lower(ctx: LoweringContext, eqn: Eqn, *operands: Any) -> Any:
    target, outs = eqn.params["target"], eqn.params["result_avals"]
    rule = None
    if ctx.module.mesh is not None:
        try:
            rule = _rule(target, [a.aval for a in eqn.invars], outs)
        except errors.ShardingRuleError as e:
            raise errors.ShardingRuleError(
                f"the sharding rule of the ffi_call of {target.name!r} at {eqn.source}: {e}"
            ) from None
    return write_call(ctx, operands, outs, target, eqn.params["in_layouts"], eqn.params["out_layouts"], rule)


def write_call(
    ctx: LoweringContext, operands: Sequence[Any], outs: Sequence[ShapedArray], target: Target, in_layouts: Layouts,
    out_layouts: Layouts, rule: OpRule | None, marks: str = "",
) -> Sequence[Any]:  # fmt: skip
    """Writes the call of a target; what it gives. The rule is written where there is a mesh, `marks` beside it."""
    single = len(outs) == 1
    aliases = ", ".join(
        f"#stablehlo.output_operand_alias<output_tuple_indices = [{'' if single else o}], operand_index = {i}, "
        "operand_tuple_indices = []>"
        for i, o in target.aliases
    )
    config = target.attributes if target.api_version >= 4 else quote(target.config or "")
    attrs = (
        f"call_target_name = {quote(target.name)}, api_version = {target.api_version} : i32, "
        f"has_side_effect = {'true' if target.has_side_effect else 'false'}, backend_config = {config}, "
        f"operand_layouts = {_layouts_text(in_layouts)}, result_layouts = {_layouts_text(out_layouts)}"
        + (f", output_operand_aliases = [{aliases}]" if aliases else "")
    )
    carried = [marks] if marks else []
    if rule is not None and ctx.module.mesh is not None:
        carried.append(f"sdy.sharding_rule = #sdy.op_sharding_rule<{rule.to_text()}>")
    return ctx.ops("stablehlo.custom_call", operands, outs, attrs, discardable=", ".join(carried))


def _layouts_text(layouts: Layouts) -> str:
    one = lambda order: f"dense<{list(order) if order else ''}> : tensor<{len(order)}xindex>"
    return f"[{', '.join(map(one, layouts))}]"


def _rule(target: Target, ins: Sequence[ShapedArray], outs: Sequence[ShapedArray]) -> OpRule | None:
    """The user's rule with a factor for each mapped dimension. Without one all that a target works within is gathered,
    and what it is mapped over stays split; a target with side effects must have a rule."""
    if target.rule is None and target.has_side_effect:
        return None
    depths = [sum(flags[i] != "" for _, flags in target.levels) for i in range(len(ins))]
    shapes = [a.shape[d:] for a, d in zip(ins, depths)]
    results = [a.shape[len(target.levels) :] for a in outs]
    rule = whole_rule(shapes, results) if target.rule is None else target.rule.bind(shapes, results)
    for size, flags in target.levels:
        expanded = [f == "one" for f in flags]
        if any(expanded):
            rule = with_batch(rule, 1, expanded, [False] * len(outs))
        rule = with_batch(rule, size, [f == "all" for f in flags], [True] * len(outs))
    return rule


def whole_rule(ins: Sequence[Sequence[int]], outs: Sequence[Sequence[int]]) -> OpRule:
    """Every dimension of everything is needed whole."""
    sizes: list[int] = []

    def mapped(shapes: Sequence[Sequence[int]]) -> tuple[tuple[tuple[int, ...], ...], ...]:
        found = []
        for shape in shapes:
            found.append(tuple((len(sizes) + i,) for i in range(len(shape))))
            sizes.extend(shape)
        return tuple(found)

    operands, results = mapped(ins), mapped(outs)
    return OpRule(sizes, operands, results, [FactorType.NEED_REPLICATION] * len(sizes), custom=True)


def _explicit(app: Application) -> list[Spec] | None:
    rule = _rule(app.params["target"], [a.bare() for a in app.avals], app.types)
    return None if rule is None else by_rule(app, rule)


def _batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    target: Target = params["target"]
    method = target.vmap_method
    if method in ("sequential", "sequential_unrolled"):
        mapped = [move_dim(a, d, 0) for a, d in zip(args, dims) if d is not None]

        def body(_: Any, elements: Sequence[Any]) -> tuple[Any, Any]:
            rest = iter(elements)
            return (), list(ffi_call_p.bind(*[a if d is None else next(rest) for a, d in zip(args, dims)], **params))

        outs = scan(body, (), mapped, unroll=method == "sequential_unrolled")[1]
        return outs, [0] * len(outs)
    if method is None:
        raise errors.UnsupportedError(
            "vmap is only supported for the ffi_call primitive when vmap_method is one of 'sequential', "
            f"'sequential_unrolled', 'expand_dims', 'broadcast_all', or 'legacy_vectorized'. Got vmap_method=None for "
            f"the call of {target.name!r} at {capture()}"
        )
    new = {"broadcast_all": size, "expand_dims": 1}.get(method, 0)
    moved = [(_repeated(a, new) if new else a) if d is None else move_dim(a, d, 0) for a, d in zip(args, dims)]
    flags = tuple("all" if d is not None or new == size else "one" if new else "" for d in dims)
    results = tuple(a.with_shape((size, *a.shape)) for a in params["result_avals"])
    outs = ffi_call_p.bind(
        *moved, target=target._replace(levels=(*target.levels, (size, flags))), result_avals=results,
        in_layouts=tuple(_deeper(order) if f else order for order, f in zip(params["in_layouts"], flags)),
        out_layouts=tuple(map(_deeper, params["out_layouts"])),
    )  # fmt: skip
    return outs, [0] * len(outs)


def _repeated(x: Any, size: int) -> Any:
    shape = aval_of(x).shape
    return broadcast_in_dim(x, (size, *shape), tuple(range(1, len(shape) + 1)))


def _deeper(order: tuple[int, ...]) -> tuple[int, ...]:
    """The layout with one more dimension, the first and the major one."""
    return (*[d + 1 for d in order], 0)


def _effects(*_: ShapedArray, target: Target, **__: Any) -> Effects:
    return frozenset([IO]) if target.has_side_effect else NO_EFFECTS


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, target: Target, **_: Any) -> Any:
    raise errors.ArgumentValueError(
        f"The FFI call to `{target.name}` cannot be differentiated. You can use `jax.custom_jvp` or `jax.custom_vjp` "
        f"around the call to say what its derivative is. It is called at {capture()}"
    )


ffi_call_p = Primitive(
    "ffi_call", _infer, lower=_lower, jvp=_jvp, batch=_batch, explicit=_explicit, multiple_results=True,
    effects=_effects, absent={
        "transpose": "it is not known to be linear in any operand",
    },
)  # fmt: skip


def ffi_call(
    target_name: str,
    result_shape_dtypes: Any,
    *,
    has_side_effect: bool = False,
    vmap_method: str | None = None,
    input_layouts: Sequence[Any] | None = None,
    output_layouts: Any = None,
    input_output_aliases: Mapping[int, int] | None = None,
    custom_call_api_version: int = 4,
    legacy_backend_config: str | None = None,
    sharding_rule: str | ShardingRule | None = None,
) -> Callable[..., Any]:
    """A function that calls a registered target (`meshrt.ffi.register_ffi_target`) on arrays.

    Args:
      target_name: the name that the target is registered by.
      result_shape_dtypes: an object with `shape` and `dtype`, or a sequence of them: the type of the result, or of
      each. has_side_effect: the call is made although nobody uses its results.
      vmap_method: how the call is mapped: "sequential" and "sequential_unrolled" call for each element, "expand_dims"
      and
        "broadcast_all" once, with leading dimensions of size 1, or of the mapped size, for operands that are not
        mapped, "legacy_vectorized" with those as they are.
      input_layouts, output_layouts: of each operand and result the dimensions from the major to the minor one; None for
        row-major order.
      input_output_aliases: operand number -> number of the result that is written into its buffer.
      custom_call_api_version: of the target; 4 is the typed interface.
      legacy_backend_config: attributes as one text, for versions below 4.
      sharding_rule: along which dimensions the target may be run on shards (`meshrt.experimental.custom_partitioning`);
        sums over reduction factors are added up. Without one its operands are gathered, which the plan's findings say;
        mapped dimensions stay split.

    The function takes arrays by position; keywords are attributes of the call: bools, ints, floats, texts, NumPy
    scalars and arrays, tuples and dictionaries of these.

    Raises ArgumentValueError or ArgumentTypeError for arguments that do not fit each other.

    >>> a = jnp.array([[4.0, 2.0], [2.0, 5.0]])
    >>> results = (meshrt.ShapeDtypeStruct((2, 2), "float32"), meshrt.ShapeDtypeStruct((), "int32"))
    >>> columns = {"input_layouts": [(1, 0)], "output_layouts": [(1, 0), ()]}  # LAPACK's matrices lie by columns
    >>> potrf = meshrt.ffi.ffi_call("lapack_spotrf_ffi", results, **columns)
    >>> factor, info = potrf(a, uplo=np.uint8(ord("L")))
    >>> jnp.tril(factor)
    Array([[2., 0.],
           [1., 2.]], dtype=float32)
    """
    if vmap_method not in VMAP_METHODS:
        raise errors.ArgumentValueError(
            f"vmap_method must be on of the allowed methods {list(VMAP_METHODS)}, but got: {vmap_method}"
        )
    if custom_call_api_version >= 4 and legacy_backend_config is not None:
        raise errors.ArgumentValueError(
            "The use of the legacy_backend_config parameter requires custom_call_api_version < 4; got "
            f"{custom_call_api_version}."
        )
    several = isinstance(result_shape_dtypes, Sequence)
    outs = tuple(itertools.starmap(_result, enumerate(result_shape_dtypes if several else [result_shape_dtypes])))
    out_layouts = _layouts(outs, output_layouts if several or output_layouts is None else (output_layouts,), "outputs")
    rule = parse_rule(sharding_rule) if isinstance(sharding_rule, str) else sharding_rule
    if rule is not None and not isinstance(rule, ShardingRule):
        raise errors.ArgumentTypeError(f"sharding_rule must be text or a SdyShardingRule, got {rule!r}")

    def call(*args: Any, **attributes: Any) -> Any:
        ins = [aval_of(a) for a in args]
        if custom_call_api_version < 4 and attributes:
            raise errors.ArgumentValueError(
                "The use of ffi_call attributes requires a custom call API version of at least 4; got api_version="
                f"{custom_call_api_version}."
            )
        in_layouts = _layouts(ins, input_layouts, "input arguments")
        aliases = _aliases(input_output_aliases or {}, ins, outs, in_layouts, out_layouts)
        target = Target(
            target_name, _text(attributes, target_name), custom_call_api_version, legacy_backend_config, vmap_method,
            has_side_effect, aliases, rule,
        )  # fmt: skip
        results = ffi_call_p.bind(
            *args, target=target, result_avals=outs, in_layouts=in_layouts, out_layouts=out_layouts
        )
        return (tuple(results) if isinstance(result_shape_dtypes, tuple) else list(results)) if several else results[0]

    return call


def _result(position: int, x: Any) -> ShapedArray:
    """The type of a result. Of 64 bits too, also where arrays of ours are not: the target writes what it writes."""
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        raise errors.ArgumentValueError(
            f"All elements of result_shape_dtypes must have 'shape' and 'dtype' attributes. Got {x!r} at position "
            f"{position}. Give a meshrt.ShapeDtypeStruct."
        )
    return ShapedArray(tuple(x.shape), dtypes.named_dtype(x.dtype))


def _layouts(avals: Sequence[ShapedArray], given: Sequence[Any] | None, what: str) -> Layouts:
    if given is None:
        return tuple(tuple(reversed(range(a.physical().ndim))) for a in avals)  # keys are rows of numbers
    if len(given) != len(avals):
        raise errors.ArgumentValueError(
            f"The number of {what} ({len(avals)}) must equal the number of layouts for them ({len(given)})."
        )
    found = []
    for aval, layout in zip(avals, given):
        order = getattr(layout, "major_to_minor", layout)
        order = tuple(range(aval.ndim)) if order is None else tuple(order)
        if sorted(order) != list(range(aval.ndim)):
            raise errors.ArgumentValueError(
                f"a layout names each dimension once, from the major to the minor one; got {order} for an array of "
                f"rank {aval.ndim}"
            )
        found.append(order[::-1])
    return tuple(found)


def _aliases(
    given: Mapping[int, int], ins: Sequence[ShapedArray], outs: Sequence[ShapedArray], in_layouts: Layouts,
    out_layouts: Layouts,
) -> tuple[tuple[int, int], ...]:  # fmt: skip
    for i, o in given.items():
        said = f"input_output_aliases contains the mapping '{i}:{o}' "
        for number, count, name in ((i, len(ins), "input"), (o, len(outs), "output")):
            if not 0 <= number < count:
                raise errors.ArgumentValueError(f"{said}with {name} index {number} outside the range [0, {count}).")
        if (ins[i].shape, ins[i].dtype) != (outs[o].shape, outs[o].dtype):
            raise errors.ArgumentValueError(
                f"{said}referring to an input with abstract value {ins[i]} and an output with a different abstract "
                f"value {outs[o]}."
            )
        if in_layouts[i] != out_layouts[o]:
            raise errors.ArgumentValueError(
                f"{said}referring to an input with layout {in_layouts[i][::-1]} and an output with a different layout "
                f"{out_layouts[o][::-1]}."
            )
    return tuple(sorted((int(i), int(o)) for i, o in given.items()))


def _text(value: Any, target: str) -> str:
    """A value as an MLIR attribute."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{quote(str(k))} = {_text(v, target)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(_text(v, target) for v in value)}]"
    if isinstance(value, np.dtype):
        return element_type(value)
    if isinstance(value, np.ndarray) and value.ndim:
        return dense(value)
    if isinstance(value, int | float | np.number | np.ndarray):
        return _scalar(np.asarray(value))
    raise errors.ArgumentTypeError(
        f"an attribute of the ffi_call of {target!r} is of type {type(value).__name__}; they are bools, ints, floats, "
        "texts, NumPy scalars and arrays, tuples and dictionaries of these"
    )


def _scalar(value: np.ndarray) -> str:
    if value.dtype.kind in "iu":
        return f"{int(value)} : {element_type(value.dtype)}"
    if value.dtype.kind == "c":
        raise errors.ArgumentTypeError(
            f"Unsupported scalar attribute type: {value.dtype}; pass an array of one element"
        )
    bits = int.from_bytes(value.tobytes(), "little")
    return f"0x{bits:0{2 * value.dtype.itemsize}X} : {element_type(value.dtype)}"
