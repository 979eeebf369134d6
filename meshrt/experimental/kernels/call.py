"""`pallas_call`: a function over references, run at each step of a grid.

    results... = pallas_call[jaxpr grid_mapping input_output_aliases ...] references... sizes... scalars... inputs...

The primitive's Jaxpr is the kernel: `meshrt.experimental.kernels.mapping.GridMapping` says what it takes. Lowering asks
the back end of the platform (`meshrt.experimental.kernels.backends`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from meshrt import config, errors, tree_util
from meshrt.core.axes import Here, NamedAxis, axes_in_scope, bind_axes
from meshrt.core.basic.shapes import broadcast_in_dim_p
from meshrt.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Literal
from meshrt.core.references import AbstractRef, is_ref
from meshrt.core.source import UNKNOWN, named_scope
from meshrt.core.trace import EVAL, current_trace, trace_to_jaxpr
from meshrt.core.tracebacks import boundary
from meshrt.core.types import ShapedArray, aval_of
from meshrt.experimental.kernels.call_primitive import pallas_call_p
from meshrt.experimental.kernels.devices import COMMUNICATION, chip_axes
from meshrt.experimental.kernels.grid import DYNAMIC, GridFrame, in_grid
from meshrt.experimental.kernels.mapping import INDEX, GridMapping, KernelArguments, described, grid_mapping
from meshrt.experimental.kernels.modes import interpreted
from meshrt.experimental.kernels.params import CostEstimate, by_platform
from meshrt.experimental.kernels.prng import STATE, StateNeededError, drawing_from
from meshrt.experimental.kernels.specs import GridSpec, no_block_spec
from meshrt.jit import jit
from meshrt.primitives.carried_refs import carrying_references
from meshrt.primitives.conversion import convert_element_type
from meshrt.sharding.mesh_caches import remembered
from meshrt.sharding.typed import abstract
from meshrt.transforms.arguments import fun_name
from meshrt.transforms.high import flatten

__all__ = ["pallas_call"]

_NO_ALIASES: Mapping[int, int] = {}


@boundary
def pallas_call(
    kernel: Callable[..., None],
    out_shape: Any,
    *,
    grid_spec: GridSpec | None = None,
    grid: Any = (),
    in_specs: Any = no_block_spec,
    out_specs: Any = no_block_spec,
    scratch_shapes: Any = (),
    input_output_aliases: Mapping[int, int] = _NO_ALIASES,
    debug: bool = False,
    interpret: Any = False,
    name: str | None = None,
    compiler_params: Any = None,
    cost_estimate: CostEstimate | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Callable[..., Any]:
    """A function of arrays that runs `kernel` at each step of a grid, on references to blocks of them.

    Args:
      kernel: takes a reference per argument, per result and per scratch type, in this order; returns nothing.
      out_shape: a pytree of ShapeDtypeStructs: the results.
      grid: how many steps there are along each dimension: ints, or int32 scalars that are computed.
      in_specs, out_specs: pytrees of BlockSpecs as arguments and results have; by default steps see whole arrays.
      grid_spec: all of these in one object, instead.
      scratch_shapes: types of references that all steps share, as `pltpu.VMEM(shape, dtype)` makes them; a dictionary
        of them is given to the kernel by keywords.
      input_output_aliases: position of an argument (of all leaves) -> position of the result that begins as it.
      debug: prints the kernel's Jaxpr.
      interpret: True runs it as a loop of array operations, which is also what CPUs do; `InterpretParams(...)` in a
        simulator of a chip's memories that finds races and the like.
      name: what the call is called in programs.
      compiler_params: an object of the platform: `pltpu.CompilerParams`, `pltriton.CompilerParams`; or those of
        several, `{"mosaic": ..., "triton": ...}`.
      cost_estimate: what the call costs; compilers cannot know it.
      metadata: strings that are noted beside the call.

    >>> import meshrt, meshrt.numpy as jnp, numpy as np
    >>> from meshrt.experimental import pallas as pl
    >>> def add_one(x_ref, y_ref):
    ...     y_ref[...] = x_ref[...] + 1
    >>> block = pl.BlockSpec((2,), lambda i: (i,))
    >>> f = pallas_call(add_one, meshrt.ShapeDtypeStruct((4,), np.int32), grid=2, in_specs=[block], out_specs=block)
    >>> f(jnp.arange(4))
    Array([1, 2, 3, 4], dtype=int32)

    Raises:
      ArgumentValueError: specifications do not fit the arrays, or the kernel captures arrays or returns something.
    """
    if grid_spec is None:
        grid_spec = GridSpec(grid, in_specs, out_specs, scratch_shapes)
    else:
        _refuse_both(grid=(grid, ()), in_specs=(in_specs, no_block_spec), out_specs=(out_specs, no_block_spec),
                     scratch_shapes=(scratch_shapes, ()))  # fmt: skip
    params = {
        "interpret": interpreted(interpret), "compiler_params": by_platform(compiler_params),
        "cost_estimate": cost_estimate, "debug": debug,
        "metadata": None if metadata is None else tuple(sorted(metadata.items())),
    }  # fmt: skip
    if isinstance(out_shape, list):
        out_shape = tuple(out_shape)
    spec = grid_spec
    staged: dict[Any, Any] = {}

    def run(dynamic: Sequence[Any], args: tuple[Any, ...]) -> Any:
        with nullcontext() if name is None else named_scope(name):
            return _bind(kernel, spec, out_shape, dict(input_output_aliases), name, params, staged, dynamic, args)

    run.__name__ = run.__qualname__ = name or fun_name(kernel)
    jitted = jit(run)

    @boundary
    @functools.wraps(kernel)
    def wrapped(*args: Any) -> Any:
        dynamic = [g for g in spec.grid if not isinstance(g, int)]
        return jitted(dynamic, args) if current_trace() is EVAL else run(dynamic, args)

    return wrapped


def _refuse_both(**given: tuple[Any, Any]) -> None:
    for what, (value, default) in given.items():
        if value is not default and value != default:
            shown = "no_block_spec" if default is no_block_spec else "()"
            raise errors.ArgumentValueError(
                f"If `grid_spec` is specified, then `{what}` must be `{shown}`. It is {value}"
            )


def _bind(
    kernel: Callable[..., None], spec: GridSpec, out_shape: Any, aliases: dict[int, int], name: str | None,
    params: dict[str, Any], staged: dict[Any, Any], dynamic: Sequence[Any], args: tuple[Any, ...],
) -> Any:  # fmt: skip
    leaves, tree = flatten(args)
    avals = tuple([aval_of(x) for x in leaves])
    key = (tree, avals, config.trace_key(), axes_in_scope())
    make = lambda: _stage(kernel, spec, out_shape, aliases, name, tree, avals)
    is_lasting = lambda made: not made[2]  # references are captured anew
    mapping, jaxpr, captured, out_avals, out_tree = remembered(staged, key, make, is_lasting)
    if params["debug"]:
        print(f"The kernel jaxpr in pallas_call {described(kernel)}:\n{jaxpr}")
    varying: frozenset[Any] = frozenset().union(*[a.vma for a in avals])
    results = [a.update(vma=a.vma.union(varying)) if varying else a for a in out_avals]
    is_simulated = hasattr(params["interpret"], "lower")
    outs = pallas_call_p.bind(
        *captured, *[convert_element_type(d, INDEX.dtype) for d in dynamic], *leaves,
        jaxpr=jaxpr, grid_mapping=mapping, input_output_aliases=tuple(aliases.items()), out_avals=tuple(results),
        name=name or fun_name(kernel), kernel=described(kernel),
        axes=chip_axes() if is_simulated or COMMUNICATION in jaxpr.effects else (), **params,
    )  # fmt: skip
    return tree_util.tree_unflatten(out_tree, outs)


def _stage(
    kernel: Callable[..., None], spec: GridSpec, out_shape: Any, aliases: dict[int, int], name: str | None, tree: Any,
    avals: Sequence[Any],
) -> tuple[Any, ...]:  # fmt: skip
    """(grid mapping, kernel, references that it captured, types of results, their structure)."""
    types = tree_util.tree_unflatten(tree, avals)
    origins = [f"args{tree_util.keystr(path)}" for path, _ in tree_util.tree_leaves_with_path(types)]
    is_type = lambda x: hasattr(x, "get_array_aval")
    out_paths = tree_util.tree_leaves_with_path(out_shape, is_leaf=is_type)
    out = tree_util.tree_map(_out_type, out_shape, is_leaf=is_type)
    out_origins = [f"outputs{tree_util.keystr(path)}" for path, _ in out_paths]
    mapping, arguments = grid_mapping(spec, types, origins, out, out_origins)
    out_avals, out_tree = tree_util.tree_flatten(out)
    _check_aliases(aliases, avals, origins, out_avals, out_origins)
    try:
        jaxpr, captured = trace_kernel(kernel, mapping, arguments, name)
    except StateNeededError:
        jaxpr, captured = trace_kernel(kernel, mapping, arguments, name, (STATE,))
        mapping = dataclasses.replace(mapping, scratch_avals=(*mapping.scratch_avals, STATE))
    return mapping, jaxpr, captured, out_avals, out_tree


def _out_type(ty: Any) -> ShapedArray:
    if hasattr(ty, "get_array_aval"):
        made: ShapedArray = ty.get_array_aval()
        return made
    if not (hasattr(ty, "shape") and hasattr(ty, "dtype")):
        raise errors.ArgumentValueError(
            f"Invalid out_shape type: {type(ty)}: give ShapeDtypeStruct(shape, dtype) for each result"
        )
    return abstract(ty)


def _check_aliases(
    aliases: Mapping[int, int], ins: Sequence[Any], in_names: Sequence[str], outs: Sequence[Any],
    out_names: Sequence[str],
) -> None:  # fmt: skip
    for i, o in aliases.items():
        what = f"input_output_aliases contains the mapping '{i}:{o}'"
        if i not in range(len(ins)):
            raise errors.ArgumentValueError(f"{what} with input index {i} outside the range [0, {len(ins)})")
        if o not in range(len(outs)):
            raise errors.ArgumentValueError(f"{what} with output index {o} outside the range [0, {len(outs)})")
        if ins[i].shape != outs[o].shape or ins[i].dtype != outs[o].dtype:
            raise errors.ArgumentValueError(
                f"{what} referring to input{in_names[i].removeprefix('args')} with abstract value {ins[i]} and to "
                f"output{out_names[o].removeprefix('outputs')} with a different abstract value {outs[o]}."
            )


def trace_kernel(
    kernel: Callable[..., Any], mapping: GridMapping, arguments: KernelArguments, name: str | None,
    state: tuple[AbstractRef, ...] = (),
) -> tuple[Jaxpr, list[Any]]:  # fmt: skip
    """The kernel's Jaxpr and the references that it captured, which are its first arguments. `state` is the type of
    what random numbers are drawn from, its last one, if the kernel draws."""
    scratch = arguments.scratch
    positional = (*arguments.scalars, *arguments.inputs, *arguments.outputs)
    args = (positional, scratch) if isinstance(scratch, dict) else ((*positional, *scratch), {})
    avals, tree = tree_util.tree_flatten(args)
    count, dims = mapping.num_leading, len(mapping.kernel_dims)

    def flat(*values: Any) -> list[Any]:
        sizes = iter(values[dims:count])
        grid = [next(sizes) if g is DYNAMIC else g for g in mapping.grid]
        given, keywords = tree_util.tree_unflatten(tree, values[count : count + len(avals)])
        # Types inside say nothing of the region around: kernels work on each chip's own memory.
        around = [a._replace(is_checked=False) for a in chip_axes()]
        named = [
            NamedAxis(name, size, here=Here(index))
            for name, size, index in zip(mapping.grid_names or (), grid, values)
            if name is not None
        ]
        drawn = drawing_from(values[-1] if state else None)
        with in_grid(GridFrame(values[:dims], grid)), bind_axes([*around, *named]), drawn, carrying_references():
            out = kernel(*given, **keywords)
        if tree_util.tree_structure(out) != tree_util.tree_structure(None):
            raise errors.ArgumentValueError(
                f"The kernel function in the pallas_call {described(kernel)} should return None. It returns a PyTree: "
                f"{tree_util.tree_structure(out)}. Write to a reference what is to be kept"
            )
        return []

    types: list[Any] = [*[INDEX] * count, *avals, *state]
    closed = _single_numbers_written(trace_to_jaxpr(flat, types, name or fun_name(kernel), requires_low=False))
    arrays = [c for c in closed.consts if not is_ref(c)]
    if arrays:
        shown = ", ".join(aval_of(c).short() for c in arrays)
        raise errors.ArgumentValueError(
            f"The kernel function in the pallas_call {described(kernel)} captures constants [{shown}]. You should pass "
            "them as inputs."
        )
    jaxpr = closed.jaxpr
    whole = Jaxpr((), (*jaxpr.constvars, *jaxpr.invars), jaxpr.outvars, jaxpr.eqns, jaxpr.effects, name=jaxpr.name)
    return whole, list(closed.consts)


def _single_numbers_written(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Constants of NumPy of one element, as functions make them of a Python number, as numbers that are broadcast."""
    jaxpr, single = closed.jaxpr, [type(c) is np.ndarray and c.size == 1 for c in closed.consts]
    if not any(single):
        return closed
    made = [
        Eqn(broadcast_in_dim_p, [Literal(c.reshape(())[()], v.aval.with_shape(()))], [v],
            {"shape": v.aval.shape, "broadcast_dimensions": ()}, UNKNOWN)
        for c, v, s in zip(closed.consts, jaxpr.constvars, single) if s
    ]  # fmt: skip
    kept = [(c, v) for c, v, s in zip(closed.consts, jaxpr.constvars, single) if not s]
    rest = jaxpr.replace(constvars=tuple(v for _, v in kept), eqns=[*made, *jaxpr.eqns])
    return ClosedJaxpr(rest, [c for c, _ in kept])
