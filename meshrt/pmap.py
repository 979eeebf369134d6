"""`pmap`: a function mapped over a dimension of its arguments, each element on a device of its own.

It is `jit` of a `shard_map` over a mesh of one axis: the mapped dimension is split over as many devices as it has
elements, and what is left of it on a device, a dimension of size 1, is taken away inside and put back at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshrt import errors, tree_util
from meshrt.core.basic.shapes import move_dim
from meshrt.core.naming import take_names, wraps
from meshrt.core.source import capture
from meshrt.core.trace import EVAL, current_trace
from meshrt.core.tracebacks import boundary
from meshrt.core.types import aval_of
from meshrt.jit import JitFunction, jit
from meshrt.pipeline.lowered import Lowered
from meshrt.pipeline.requested import OneByOne
from meshrt.primitives.reshape import expand_dims, squeeze
from meshrt.runtime import backend as runtime
from meshrt.runtime.assembly import global_of_host, host_of_global
from meshrt.shard_map import shard_map
from meshrt.sharding.context import context_source, get_abstract_mesh
from meshrt.sharding.mesh import AxisType, Mesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import PartitionSpec
from meshrt.sharding.typed import abstract
from meshrt.transforms.arguments import StaticValue, as_tuple, fun_name
from meshrt.transforms.high import leaf_paths, opened
from meshrt.transforms.mapped import mapped_dims, mapped_size, result_dims

__all__ = ["pmap"]

# What the axis is called where the user gives no name.
_UNNAMED = "_pmap_axis"
# How many programs a function keeps, which differ in static arguments, structure, mapped dimensions or devices.
_KEPT = 64


def pmap(
    fun: Callable[..., Any],
    axis_name: Any = None,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    static_broadcasted_argnums: Any = (),
    devices: Sequence[Any] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: Any = (),
) -> Callable[..., Any]:
    """Maps `fun` over a dimension of its arguments, as `vmap` does, and runs each element on a device of its own.

    New programs say more with `shard_map`, or with `jit` and shardings; this is for those that have `pmap`.

    >>> import meshrt, meshrt.numpy as jnp
    >>> meshrt.pmap(lambda x: x / meshrt.lax.psum(x, "i"), axis_name="i")(jnp.ones(meshrt.device_count())).sum()
    Array(1., dtype=float32)

    Args:
      fun: a function of pytrees of arrays, and of static arguments.
      axis_name: the name by which collectives in `fun` call the mapped dimension.
      in_axes: which dimension of each positional argument is mapped, None for those that every device gets whole: an
        int, or a pytree prefix of the arguments. Keyword arguments are mapped over dimension 0.
      out_axes: where the mapped dimension stands in the results, likewise. A result at None is taken to be the same on
        all devices.
      static_broadcasted_argnums: positions of arguments that are Python values, hashable; each new value means a new
        trace.
      devices: the devices to use, by default the first ones of all, as many as the mapped dimension has elements.
      backend: the platform whose devices are used.
      axis_size: the size of the mapped dimension, over all processes; needed only where no argument is mapped.
      donate_argnums: positions of arguments whose buffers may be reused for results; they are deleted by the call.

    With several processes each one gives and gets its own devices' elements.

    The result has a method `lower`, as what `jit` returns.

    Raises:
      ArgumentTypeError: `fun` is no function, or axes are no ints. ArgumentValueError: `devices` are empty, sizes of
      mapped dimensions differ or are not `axis_size`, a static argument is missing or not hashable. IndivisibleError:
      there are fewer devices than elements. MeshMismatchError: it is called where a mesh is in context, or inside of
      another pmap. TreeError: axes are no prefix of arguments or results.
    """
    return _Pmapped(
        fun, _UNNAMED if axis_name is None else axis_name, in_axes, out_axes, as_tuple(static_broadcasted_argnums),
        None if devices is None else tuple(devices), backend, axis_size, as_tuple(donate_argnums),
    )._face()  # fmt: skip


class _Program(NamedTuple):
    """A function for arguments of one structure, over one mesh."""

    mesh: Mesh
    in_specs: tuple[PartitionSpec, ...]
    run: JitFunction  # with shardings of its arguments and results
    stage: JitFunction  # for a call inside of another program


class _Pmapped:
    """A function and what `pmap` was told of it."""

    def __init__(
        self, fun: Callable[..., Any], axis_name: Any, in_axes: Any, out_axes: Any, static: tuple[int, ...],
        devices: tuple[Any, ...] | None, backend: str | None, axis_size: int | None, donated: tuple[int, ...],
    ):  # fmt: skip
        if not callable(fun):
            raise errors.ArgumentTypeError(f"pmap: Expected a callable value, got {fun!r} of type {type(fun).__name__}")
        if devices is not None and not devices:
            raise errors.ArgumentValueError(
                "'devices' argument to pmap must be non-empty, or None, which stands for the first of all devices"
            )
        for what, axes in (("in_axes", in_axes), ("out_axes", out_axes)):
            if not all(type(a) is int for a in tree_util.tree_leaves(axes)):
                raise errors.ArgumentTypeError(
                    f"pmap {what} must be an int, None, or (nested) container with those types as leaves, but got "
                    f"{axes} for {fun_name(fun)}"
                )
        self.fun, self.axis_name, self.in_axes, self.out_axes = fun, axis_name, in_axes, out_axes
        self.static, self.devices, self.backend = static, devices, backend
        self.axis_size, self.donated = axis_size, donated
        self._programs: dict[Any, _Program] = {}

    def _face(self) -> Callable[..., Any]:
        """The function that users call."""

        @wraps(self.fun)
        @boundary
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(args, kwargs)

        @boundary
        def lower(*args: Any, **kwargs: Any) -> Lowered:
            """The program for arguments of these types, as `jit(f).lower` gives it."""
            program, args, kwargs = self._program(args, kwargs)
            return program.run.lower(*args, **kwargs)

        call.lower = lower  # type: ignore[attr-defined]  # as JAX's
        return call

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        program, args, kwargs = self._program(args, kwargs)
        if current_trace() is not EVAL:
            return program.stage(*args, **kwargs)
        if program.mesh.is_multi_process:
            return self._call_in_all_processes(program, args, kwargs)
        return program.run(*args, **kwargs)

    def _call_in_all_processes(self, program: _Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, tree = tree_util.tree_flatten((args, kwargs))
        args, kwargs = tree.unflatten([global_of_host(x, program.mesh, s) for x, s in zip(leaves, program.in_specs)])
        leaves, tree = tree_util.tree_flatten(program.run(*args, **kwargs))
        dims = [
            d if d is None else d % x.ndim for d, x in zip(result_dims("pmap", self.fun, self.out_axes, tree), leaves)
        ]
        return tree.unflatten([host_of_global(x, program.mesh, self._spec(d)) for x, d in zip(leaves, dims)])

    # -- programs ------------------------------------------------------------------------------------------------------

    def _program(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[_Program, tuple[Any, ...], dict[str, Any]]:
        """What a call runs, with the arguments that are arrays."""
        args, kwargs = opened((args, kwargs))
        fixed, positions = self._fixed(args)
        dynamic = tuple(args[i] for i in positions)
        leaves, tree = tree_util.tree_flatten((dynamic, kwargs))
        dims = mapped_dims("pmap", self.fun, self._axes_of(positions, len(args)), dynamic, kwargs)
        multi_process = runtime.process_count(self.backend) > 1
        avals = [abstract(x) for x in leaves]
        size = mapped_size("pmap", self.fun, avals, dims, None if multi_process else self.axis_size, tree)
        dims = [d if d is None else d % a.ndim for d, a in zip(dims, avals)]
        devices = self._devices(size, multi_process)
        key = (fixed, tree, tuple(dims), devices)
        try:
            program = self._programs.get(key)
        except TypeError:
            raise self._unhashable(fixed) from None
        if program is None:
            while len(self._programs) >= _KEPT:
                self._programs.pop(next(iter(self._programs)), None)
            program = self._programs[key] = self._make(fixed, positions, tree, dims, devices)
        self._check_context(program.mesh)
        return program, dynamic, kwargs

    def _fixed(self, args: tuple[Any, ...]) -> tuple[tuple[tuple[int, StaticValue], ...], tuple[int, ...]]:
        """The static arguments with their positions, and the positions of the others."""
        count = len(args)
        if not self.static:
            return (), tuple(range(count))
        if any(not -count <= i < count for i in self.static):
            raise errors.ArgumentValueError(
                f"pmapped function has static_broadcasted_argnums={self.static} but was called with only {count} "
                f"positional argument{'s' if count > 1 else ''}. All static broadcasted arguments must be "
                f"passed positionally. The function is {fun_name(self.fun)}"
            )
        static = sorted({i % count for i in self.static})
        return tuple((i, StaticValue(args[i])) for i in static), tuple(i for i in range(count) if i not in static)

    def _axes_of(self, positions: tuple[int, ...], count: int) -> Any:
        """`in_axes` of the arguments that are arrays."""
        if isinstance(self.in_axes, tuple) and len(positions) < count == len(self.in_axes):
            return tuple(self.in_axes[i] for i in positions)
        return self.in_axes

    def _devices(self, size: int, multi_process: bool) -> tuple[Any, ...]:
        """The devices for a mapped dimension with `size` elements in this process."""
        if multi_process and current_trace() is not EVAL:
            return tuple(runtime.local_devices(backend=self.backend)[:size])
        wanted = size
        if multi_process:
            wanted = self.axis_size or size * runtime.process_count(self.backend)
        if self.devices is not None:
            found = self.devices
        else:  # those of a process beside one another
            found = tuple(sorted(runtime.devices(self.backend), key=lambda d: d.process_index))
        if len(found) < wanted:
            where = "its argument `devices` has" if self.devices is not None else "there are"
            raise errors.IndivisibleError(
                f"pmap of {fun_name(self.fun)} requires {wanted} devices, one for each element of the mapped "
                f"dimension, but {where} only {len(found)} XLA devices: map fewer elements at a time, with vmap inside "
                "over the rest"
            )
        return tuple(found[:wanted])

    def _check_context(self, mesh: Mesh) -> None:
        around = get_abstract_mesh()
        if around.empty or around is mesh.abstract_mesh:
            return
        if around.manual_axes:
            raise errors.MeshMismatchError(
                f"The context mesh {around!r} should match the mesh of pmap: pmap of {fun_name(self.fun)} at "
                f"{capture()} stands inside of another pmap or shard_map, and each device is busy with one element of "
                "that. Use vmap inside, or one shard_map over a mesh with an axis for each"
            )
        if context_source() is None:
            return  # that of an argument of the program: over the devices of pmap's own, or their mismatch is told
        raise errors.MeshMismatchError(
            f"The context mesh {around!r}, set at {context_source()}, should match the mesh of pmap, but pmap of "
            f"{fun_name(self.fun)} at {capture()} makes its own: call it where no mesh is in context, or use shard_map"
        )

    def _unhashable(self, fixed: tuple[tuple[int, StaticValue], ...]) -> errors.ArgumentValueError:
        for i, static in fixed:
            try:
                hash(static)
            except TypeError:
                return errors.ArgumentValueError(
                    "Non-hashable static arguments are not supported, as no trace could be found by them: argument "
                    f"{i} of {fun_name(self.fun)} is of type {type(static.value)}. Pass a tuple or another hashable "
                    "value, or take it out of static_broadcasted_argnums"
                )
        raise errors.InternalError(f"no static argument of {fun_name(self.fun)} is to blame")

    def _spec(self, dim: int | None) -> PartitionSpec:
        return PartitionSpec() if dim is None else PartitionSpec(*[None] * dim, self.axis_name)

    def _make(
        self, fixed: tuple[tuple[int, StaticValue], ...], positions: tuple[int, ...], tree: Any,
        dims: Sequence[int | None], devices: tuple[Any, ...],
    ) -> _Program:  # fmt: skip
        mesh = Mesh(np.array(devices), (self.axis_name,), axis_types=(AxisType.Auto,))
        in_specs = tuple(map(self._spec, dims))
        # A dimension that is counted from the end is found once the result is known; it comes out as the first.
        spec_of = lambda d: self._spec(d if d is None else max(d, 0))
        out_specs = tree_util.tree_map(spec_of, self.out_axes, is_leaf=_is_none)
        static = {i: s.value for i, s in fixed}

        def element(*leaves: Any) -> Any:
            here = [x if d is None else squeeze(x, (d,)) for x, d in zip(leaves, dims)]
            dynamic, kwargs = tree.unflatten(here)
            given = {**static, **dict(zip(positions, dynamic))}
            outs, out_tree = tree_util.tree_flatten(opened(self.fun(*[given[i] for i in range(len(given))], **kwargs)))
            wanted = result_dims("pmap", self.fun, self.out_axes, out_tree)
            self._check_out_axes(wanted, outs, out_tree)
            return out_tree.unflatten([x if d is None else expand_dims(x, (max(d, 0),)) for x, d in zip(outs, wanted)])

        mapped = shard_map(element, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)

        def whole(*dynamic: Any, **kwargs: Any) -> Any:
            outs, out_tree = tree_util.tree_flatten(mapped(*tree_util.tree_leaves((dynamic, kwargs))))
            wanted = result_dims("pmap", self.fun, self.out_axes, out_tree)
            placed = [x if d is None or d >= 0 else move_dim(x, 0, d % aval_of(x).ndim) for x, d in zip(outs, wanted)]
            return out_tree.unflatten(placed)

        if static:
            whole.__name__ = whole.__qualname__ = fun_name(self.fun)
        else:
            take_names(whole, self.fun)
        count = len(static) + len(positions)
        donated = [i for i, p in enumerate(positions) if p in {d % count for d in self.donated}]
        sharding_of = lambda d: None if d is not None and d < 0 else NamedSharding(mesh, self._spec(d))
        shardings: dict[str, Any] = {"out_shardings": tree_util.tree_map(sharding_of, self.out_axes, is_leaf=_is_none)}
        if not tree.children()[1].num_leaves:  # jit takes none beside keyword arguments; propagation finds the same
            shardings["in_shardings"] = OneByOne([NamedSharding(mesh, s) for s in in_specs])
        run = jit(whole, donate_argnums=donated, **shardings)
        return _Program(mesh, in_specs, run, jit(whole, donate_argnums=donated))

    def _check_out_axes(self, dims: Sequence[int | None], outs: Sequence[Any], out_tree: Any) -> None:
        for i, (x, dim) in enumerate(zip(outs, dims)):
            ndim = aval_of(x).ndim + 1
            if dim is not None and not -ndim <= dim < ndim:
                path = tree_util.keystr(leaf_paths(out_tree)[i])
                raise errors.AxisError(
                    f"pmap out_axes={dim}: axis {dim} is out of bounds for result{path} of {fun_name(self.fun)}, "
                    f"which has {ndim} dimensions with the mapped one"
                )


def _is_none(x: Any) -> bool:
    return x is None
