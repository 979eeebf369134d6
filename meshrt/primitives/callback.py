"""Python functions called back by programs: `pure_callback`, `io_callback`, `debug.callback` and `debug.print`.

    debug_callback[callback ordered partitioned threaded] (token) operands...  ->  (token)
    pure_callback[callback result_avals vmap_method] operands...  ->  results...
    io_callback[callback ordered result_avals threaded] (token) operands...  ->  (token) results...

All three lower to one custom call, which XLA's runtimes on CPUs and GPUs know by name. It stands on one device, the
first or the one that `sharding=` names (a *maximal* sharding): the partitioner gathers its operands, lets that device
call, and hands everybody the results. Inside a manual computation each device calls for itself. `threaded` calls carry
the token of `meshrt.transforms.ordering`.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import config, dtypes, errors, tree_util
from meshrt.core.axes import axes_in_scope
from meshrt.core.basic.shapes import move_dim
from meshrt.core.effects import DEBUG, IO, ORDERED_DEBUG, ORDERED_IO
from meshrt.core.jaxpr import Atom, Effects, Eqn, Jaxpr, Var
from meshrt.core.primitive import Primitive, also
from meshrt.core.source import capture
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.callback_mapping import one_by_one, repeated, whole_along
from meshrt.primitives.sharding import Caller
from meshrt.primitives.slice import index_in_dim
from meshrt.runtime.array import Array
from meshrt.runtime.callbacks import HostCallback, checked_results, local_cpu
from meshrt.runtime.results import require_finite
from meshrt.runtime.transfer import from_numpy, put_value
from meshrt.sharding.mesh import Mesh
from meshrt.sharding.named import NamedSharding, SingleDeviceSharding
from meshrt.sharding.spec import PartitionSpec
from meshrt.transforms.arguments import fun_name
from meshrt.transforms.high import opened
from meshrt.transforms.ordering import TOKEN
from propagation.asm import Ref

# Not functions of `meshrt.lax`: `meshrt.debug`, `meshrt` and `meshrt.experimental` publish them.
__all__: list[str] = []

_VMAP_METHODS = ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized", None)
# How XLA's runtimes call Python, by platform.
_TARGETS = {"cpu": "cpu", "cuda": "gpu", "rocm": "gpu"}


class Callback:
    """A function of pytrees over flat values; `fixed` are the leaves that are no arrays, by position.

    Equal for equal functions and structures, so that equal calls are equal parameters.
    """

    __slots__ = ("api", "fixed", "function", "tree")

    def __init__(self, function: Callable[..., Any], tree: Any, api: str, fixed: tuple[tuple[int, Any], ...] = ()):
        self.function, self.tree, self.api, self.fixed = function, tree, api, fixed

    def __call__(self, *values: Any) -> list[Any]:
        leaves = list(values)
        for position, value in self.fixed:
            leaves.insert(position, value)
        args, kwargs = tree_util.tree_unflatten(self.tree, leaves)
        return tree_util.tree_leaves(self.function(*args, **kwargs))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Callback)
            and not self.fixed
            and not other.fixed
            and (self.function, self.tree, self.api) == (other.function, other.tree, other.api)
        )

    def __hash__(self) -> int:
        try:
            return hash((self.function, self.tree))
        except TypeError:
            return id(self)

    @property
    def __name__(self) -> str:
        return fun_name(self.function)


# ---------------------------------------------------------------------------------------------------------------------
# Lowering


def _lower(ctx: LoweringContext, eqn: Eqn, *operands: Ref) -> Sequence[Ref]:
    """The custom call, placed on device 0 of a mesh; on each device of a manual computation."""
    p = eqn.params
    takes_token = p.get("threaded", False)
    count = 1 if takes_token else 0
    in_avals, out_avals = [a.aval for a in eqn.invars], [v.aval for v in eqn.outvars]
    host = HostCallback(
        _discarding(p["callback"]) if "partitioned" in p else p["callback"],
        f"the callback {p['callback'].__name__} of {p['callback'].api} at {eqn.source}",
        in_avals[count:], out_avals[count:], takes_token,
    )  # fmt: skip
    return _write(ctx, host, operands, in_avals, out_avals, bool(eqn.effects), p.get("partitioned", False), eqn)


def write_call(
    ctx: LoweringContext, function: Callable[..., Sequence[Any]], name: str, operands: Sequence[Ref],
    in_avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray], has_side_effect: bool, partitioned: bool = False,
) -> Sequence[Ref]:  # fmt: skip
    """Writes a call of a function of Arrays that returns a sequence of them, for lowering rules of other primitives.

    Args:
      name: what is called and where, for messages.
      partitioned: each device calls with its part, rather than the first one with the whole.
    """
    host = HostCallback(function, name, in_avals, out_avals, False)
    return _write(ctx, host, operands, in_avals, out_avals, has_side_effect, partitioned, None)


def _write(
    ctx: LoweringContext, host: HostCallback, operands: Sequence[Ref], in_avals: Sequence[ShapedArray],
    out_avals: Sequence[ShapedArray], has_side_effect: bool, partitioned: bool, eqn: Eqn | None,
) -> Sequence[Ref]:  # fmt: skip
    device = _TARGETS.get(ctx.module.platform)
    if device is None or ctx.module.is_export:
        what = "an exported program" if ctx.module.is_export else f"a program for {ctx.module.platform}"
        said = "serialization of host_callbacks is not yet implemented: " if ctx.module.is_export else ""
        raise errors.UnsupportedError(
            f"{said}{host.name}: {what} cannot call Python functions of this process; programs for CPUs and GPUs can. "
            "Take the callback out of it"
        )
    index = len(ctx.module.callbacks)
    ctx.module.callbacks.append(host)
    target = f"xla_ffi_{'partitioned_' if partitioned else ''}python_{device}_callback"
    attrs = (
        f'call_target_name = "{target}", api_version = 4 : i32, backend_config = {{index = {index} : ui64}}, '
        f"has_side_effect = {'true' if has_side_effect else 'false'}, operand_layouts = {_layouts(in_avals)}, "
        f"result_layouts = {_layouts(out_avals)}"
    )
    placed = _placed(ctx, eqn, len(out_avals))
    return ctx.ops("stablehlo.custom_call", operands, out_avals, attrs, discardable=placed)


def _discarding(function: Callable[..., Any]) -> Callable[..., Sequence[Any]]:
    def call(*values: Any) -> Sequence[Any]:
        function(*values)
        return ()

    return call


def _layouts(avals: Sequence[ShapedArray]) -> str:
    """Row-major, as NumPy's arrays are."""
    ranks = [a.physical().ndim for a in avals]
    one = lambda n: f"dense<[{', '.join(map(str, reversed(range(n))))}]> : tensor<{n}xindex>"
    return f"[{', '.join(['dense<> : tensor<0xindex>' if n == 0 else one(n) for n in ranks])}]"


def _placed(ctx: LoweringContext, eqn: Eqn | None, num_results: int) -> str:
    """The sharding of a call that stands on one device: one entry for each result, or one for a call without any."""
    device = None if eqn is None else eqn.params.get("device")
    if eqn is not None and ctx.manual is not None and device is not None:
        raise errors.UnsupportedError(
            f"callbacks do not support specifying sharding inside spmd computations: {eqn.params['callback'].api} of "
            f"{eqn.params['callback'].__name__} at {eqn.source} stands in a shard_map, where each device calls for "
            "itself; leave sharding= out"
        )
    if ctx.module.mesh is None or ctx.manual is not None:
        return ""
    place = 0 if device is None else ctx.module.callers[device]
    texts = ", ".join([ctx.module.on_one_device(place)] * max(1, num_results))
    return f"sdy.sharding = #sdy.sharding_per_value<[{texts}]>"


def _thread(eqn: Eqn, token: Atom, threaded: Callable[[Jaxpr], Jaxpr]) -> tuple[list[Eqn], Atom]:
    new = Var(TOKEN)
    return [eqn.replace([token, *eqn.invars], [new, *eqn.outvars], {**eqn.params, "threaded": True})], new


def _pure_infer(*avals: ShapedArray, result_avals: Sequence[ShapedArray], **_: Any) -> Sequence[ShapedArray]:
    """In a manual region a result differs where an operand does."""
    vma = frozenset[str]().union(*[a.vma for a in avals])
    return [a.update(vma=vma) for a in result_avals] if vma else result_avals


def _with_token(threaded: bool, avals: Sequence[ShapedArray]) -> list[ShapedArray]:
    return [TOKEN, *avals] if threaded else list(avals)


# ---------------------------------------------------------------------------------------------------------------------
# On values


def _call_now(callback: Callback, args: Sequence[Any], enable_x64: bool) -> list[Any]:
    """Calls with the operands on a CPU device, and with nothing of the caller's context around."""
    device = local_cpu()
    sharding = SingleDeviceSharding(device)
    with config.override(default_device=device, enable_x64=enable_x64):
        return callback(*[put_value(a, sharding, may_alias=False) for a in args])


def _evaluate_debug(*args: Any, callback: Callback, **_: Any) -> list[Any]:
    contextvars.Context().run(_call_now, callback, args, config.settings.enable_x64)
    return []


def _evaluate(*args: Any, callback: Callback, result_avals: Sequence[ShapedArray], **_: Any) -> list[Any]:
    where = capture()
    try:
        results = contextvars.Context().run(_call_now, callback, args, config.settings.enable_x64)
        values = checked_results(results, result_avals)
    except Exception as e:
        raise errors.CallbackError(
            f"the callback {callback.__name__} of {callback.api} at {where} failed: {type(e).__name__}: {e}"
        ) from e
    return require_finite([from_numpy(v, _beside(args)) for v in values], callback.api)


def _beside(args: Sequence[Any]) -> Any:
    """Where results go: to all devices of an operand that was put somewhere, else to the default device."""
    for a in args:
        if type(a) is Array and a.committed:
            sharding = a.sharding
            if isinstance(sharding, NamedSharding):
                return NamedSharding(sharding.mesh, PartitionSpec())
            return sharding
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Rules


def _debug_effects(*_: ShapedArray, ordered: bool, **__: Any) -> Effects:
    return frozenset((ORDERED_DEBUG if ordered else DEBUG,))


def _io_effects(*_: ShapedArray, ordered: bool, **__: Any) -> Effects:
    return frozenset((ORDERED_IO if ordered else IO,))


def _debug_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    return debug_callback_p.bind(*primals, **params), []


def _no_derivative(get: Callable[[], Primitive]) -> Callable[..., Any]:
    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        if any(t is not None for t in tangents):
            raise _underivable(params["callback"].api, "JVP")
        outs = get().bind(*primals, **params)
        return outs, [None] * len(outs)

    return jvp


def _no_transpose(*_: Any, callback: Callback, **__: Any) -> Any:
    raise _underivable(callback.api, "transpose")


def _underivable(api: str, what: str) -> errors.DifferentiationError:
    kind = {"pure_callback": "Pure", "io_callback": "IO", "buffer_callback": "Buffer"}[api]
    way = f"Please use `meshrt.custom_{'jvp' if what == 'JVP' else 'vjp'}` to use callbacks while taking gradients"
    if kind == "IO":
        way = "Use `meshrt.debug.callback` to look at values, or define a custom derivative"
    return errors.DifferentiationError(f"{kind} callbacks do not support {what}. {way}. (used at {capture()})")


def _batch_debug(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    """One call for each element, in order."""
    args = [a if d is None else whole_along(a, d) for a, d in zip(args, dims)]
    for i in range(size):
        debug_callback_p.bind(
            *[a if d is None else index_in_dim(a, i, d, keepdims=False) for a, d in zip(args, dims)], **params
        )
    return [], []


def _batch_pure(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    method = params["vmap_method"]
    if method in ("sequential", "sequential_unrolled"):
        bind = functools.partial(pure_callback_p.bind, **params)
        return one_by_one(bind, args, dims, method == "sequential_unrolled")
    if method is None:
        raise errors.UnsupportedError(
            f"vmap is only supported for the {params['callback'].api} primitive when vmap_method is one of "
            "'sequential', 'sequential_unrolled', 'expand_dims', 'broadcast_all', or 'legacy_vectorized'. "
            f"Got vmap_method={method}. Say how {params['callback'].__name__} is mapped (used at {capture()})"
        )
    moved = [a if d is None else move_dim(a, d, 0) for a, d in zip(args, dims)]
    if method != "legacy_vectorized":
        new = size if method == "broadcast_all" else 1
        moved = [repeated(a, new) if d is None else a for a, d in zip(moved, dims)]
    results = tuple(a.with_shape((size, *a.shape)) for a in params["result_avals"])
    outs = pure_callback_p.bind(*moved, **{**params, "result_avals": results})
    return outs, [0] * len(outs)


def _batch_io(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    if params["ordered"]:
        raise errors.ArgumentValueError(
            f"Cannot `vmap` ordered IO callback: {params['callback'].__name__} at {capture()} would have to be called "
            "for all elements at once; make it unordered (ordered=False), or loop with meshrt.lax.map"
        )
    return one_by_one(functools.partial(io_callback_p.bind, **params), args, dims)


def _caller(params: dict[str, Any]) -> tuple[str, Any]:
    return params["callback"].api, Caller(params["device"]) if "device" in params else None


debug_callback_p: Primitive = Primitive(
    "debug_callback", lambda *avals, threaded, **_: _with_token(threaded, ()), lower=_lower, jvp=_debug_jvp,
    transpose=lambda cts, *operands, **_: [None] * len(operands), batch=_batch_debug, effects=_debug_effects,
    thread=_thread, impl=_evaluate_debug, multiple_results=True, cache_types=False,
)  # fmt: skip
pure_callback_p: Primitive = Primitive(
    "pure_callback", _pure_infer, shown=also("sharding", "vmap_method"), lower=_lower,
    jvp=_no_derivative(lambda: pure_callback_p), transpose=_no_transpose, batch=_batch_pure, impl=_evaluate,
    multiple_results=True, cache_types=False, place=_caller,
)  # fmt: skip
io_callback_p: Primitive = Primitive(
    "io_callback", lambda *avals, result_avals, threaded, **_: _with_token(threaded, result_avals), lower=_lower,
    jvp=_no_derivative(lambda: io_callback_p), transpose=_no_transpose, batch=_batch_io, effects=_io_effects,
    thread=_thread, impl=_evaluate, multiple_results=True, cache_types=False, place=_caller,
)  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# What users call


def bind_debug(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], api: str, ordered: bool,
    partitioned: bool,
) -> None:  # fmt: skip
    """Calls `function(*args, **kwargs)` when the program gets there; leaves that are no arrays go as they are."""
    leaves, tree = tree_util.tree_flatten((opened(args), opened(kwargs)))
    arrays, fixed = [], []
    for i, leaf in enumerate(leaves):
        try:
            aval_of(leaf)
            arrays.append(leaf)
        except TypeError:
            fixed.append((i, leaf))
    callback = Callback(function, tree, api, tuple(fixed))
    debug_callback_p.bind(
        *arrays, callback=callback, ordered=bool(ordered), partitioned=bool(partitioned), threaded=None
    )


def _results(result_shape_dtypes: Any, api: str) -> tuple[tuple[ShapedArray, ...], Any]:
    leaves, tree = tree_util.tree_flatten(result_shape_dtypes)
    avals = []
    for path, leaf in zip(tree_util.tree_leaves_with_path(result_shape_dtypes), leaves):
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise errors.ArgumentTypeError(
                f"{api}: result_shape_dtypes{tree_util.keystr(path[0])} must have a shape and a dtype, as "
                f"meshrt.ShapeDtypeStruct has, but is {leaf!r} of type {type(leaf).__name__}"
            )
        dtype = np.dtype(leaf.dtype)
        if dtypes.canonicalize_dtype(dtype) != dtype:
            raise errors.ArgumentValueError(
                f"{api}: result_shape_dtypes{tree_util.keystr(path[0])} cannot specify 64-bit types when "
                f"`jax_enable_x64` is disabled, but is {dtype}; ask for a 32-bit one, or set enable_x64"
            )
        avals.append(ShapedArray(tuple(leaf.shape), dtype))
    return tuple(avals), tree


def _calling(sharding: Any, api: str) -> dict[str, Any]:
    """The parameter that names the device which calls, if one is named."""
    if sharding is None:
        return {}
    alone = isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh) and sharding.mesh.size == 1
    if not alone and not isinstance(sharding, SingleDeviceSharding):
        raise errors.UnsupportedError(
            f"{api} only supports SingleDeviceSharding, but got {type(sharding)}: {sharding!r}. One device calls for "
            "all; name it with meshrt.sharding.SingleDeviceSharding(device)"
        )
    return {"device": sharding.device_assignment[0]}


def pure_callback(
    callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, sharding: Any = None,
    vmap_method: str | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """Calls a Python function without side effects from a program.

    The function may be called any number of times, or not at all if nobody uses its result. Of operands that are split
    over devices it gets the whole values; inside `shard_map` each device calls it with its own.

    Args:
      callback: takes `args` and `kwargs` with Arrays on a CPU device as leaves; returns arrays (Arrays, NumPy's,
        scalars) in the structure, of the shapes and the dtypes of `result_shape_dtypes`.
      result_shape_dtypes: a pytree of things with `shape` and `dtype`.
      sharding: a SingleDeviceSharding of the device that calls, one of the program's; by default the first one.
        Evaluated outside of programs nobody asks for it.
      vmap_method: how it is mapped: "sequential" and "sequential_unrolled" call it for each element, "expand_dims"
        once, with a dimension of size 1 in front of operands that are not mapped, "broadcast_all" once, with all
        operands repeated, "legacy_vectorized" once, with unmapped operands as they are.

    Raises:
      DifferentiationError: it is differentiated; use custom_jvp or custom_vjp around it.
      UnsupportedError: it is mapped without a `vmap_method`; `sharding` is another one, or inside `shard_map`.
      ArgumentValueError: when it is compiled, `sharding` names a device that the program does not run on.
      CallbackError: `callback` raised, when the program runs.

    >>> import meshrt, numpy as np
    >>> f = lambda x: meshrt.pure_callback(np.sin, meshrt.ShapeDtypeStruct(x.shape, x.dtype), x)
    >>> meshrt.jit(f)(meshrt.numpy.zeros(2))
    Array([0., 0.], dtype=float32)
    """
    if vmap_method not in _VMAP_METHODS:
        raise errors.ArgumentValueError(
            f"vmap_method must be on of the allowed methods {list(_VMAP_METHODS)}, but got: {vmap_method}"
        )
    return call_purely("pure_callback", callback, result_shape_dtypes, args, kwargs, vmap_method, sharding)


def call_purely(
    api: str, callback: Callable[..., Any], result_shape_dtypes: Any, args: Any, kwargs: Any, vmap_method: str | None,
    sharding: Any = None,
) -> Any:  # fmt: skip
    """`pure_callback` of a function that the user gave to `api`, which messages name."""
    placed = _calling(sharding, api)
    leaves, tree = tree_util.tree_flatten((opened(args), opened(kwargs)))
    avals, out_tree = _results(result_shape_dtypes, api)
    outs = pure_callback_p.bind(
        *leaves, callback=Callback(callback, tree, api), result_avals=avals, vmap_method=vmap_method, **placed
    )
    return tree_util.tree_unflatten(out_tree, outs)


def io_callback(
    callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, sharding: Any = None, ordered: bool = False,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """Calls a Python function with side effects from a program, once for each time that the program gets there.

    Args:
      callback, result_shape_dtypes, sharding: as for `pure_callback`; the result may be None.
      ordered: calls happen in the order of the program, also with respect to other ordered callbacks.

    Raises:
      DifferentiationError: it is differentiated.
      ArgumentValueError: an ordered one is mapped.
      CallbackError: `callback` raised, when the program runs.

    >>> import meshrt
    >>> from meshrt.experimental import io_callback
    >>> seen = []
    >>> _ = meshrt.jit(lambda x: io_callback(lambda v: seen.append(float(v)), None, x, ordered=True))(2.0)
    >>> seen
    [2.0]
    """
    return call_with_effects("io_callback", callback, result_shape_dtypes, args, kwargs, sharding, ordered)


def call_with_effects(
    api: str, callback: Callable[..., Any], result_shape_dtypes: Any, args: Any, kwargs: Any, sharding: Any = None,
    ordered: bool = False,
) -> Any:  # fmt: skip
    """`io_callback` of a function that the user gave to `api`, which messages name."""
    placed = _calling(sharding, api)
    leaves, tree = tree_util.tree_flatten((opened(args), opened(kwargs)))
    avals, out_tree = _results(result_shape_dtypes, api)
    # In a manual region each device may get another answer.
    vma = frozenset(a.name for a in axes_in_scope() if a.is_manual and a.is_checked)
    avals = tuple(a.update(vma=vma) for a in avals) if vma else avals
    outs = io_callback_p.bind(
        *leaves, callback=Callback(callback, tree, api), result_avals=avals, ordered=bool(ordered), threaded=None,
        **placed,
    )  # fmt: skip
    return tree_util.tree_unflatten(out_tree, outs)
