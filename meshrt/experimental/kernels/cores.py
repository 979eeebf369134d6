"""Meshes of the cores of a chip, and kernels that run once on each core."""

from __future__ import annotations

import enum
import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from meshrt import errors, lax, tree_util
from meshrt.core.references import is_ref
from meshrt.core.tracebacks import boundary
from meshrt.experimental.kernels.call import pallas_call
from meshrt.experimental.kernels.helpers import when
from meshrt.experimental.kernels.memory import MemorySpace, TpuMemorySpace
from meshrt.experimental.kernels.semaphores import semaphore_signal, semaphore_wait
from meshrt.experimental.kernels.specs import BlockSpec, GridSpec
from meshrt.transforms.arguments import fun_name

__all__ = [
    "CoreType", "TensorCore", "TensorCoreMesh", "core_barrier", "create_tensorcore_mesh", "kernel", "on_cores",
    "run_on_first_core",
]  # fmt: skip


class CoreType(enum.Enum):
    """The kinds of cores that a TPU has."""

    TC = "tc"
    SC_SCALAR_SUBCORE = "sc_scalar_subcore"
    SC_VECTOR_SUBCORE = "sc_vector_subcore"

    def __str__(self) -> str:
        return self.value


class TensorCore:
    """A core of a chip, by its number."""

    __slots__ = ("id",)

    def __init__(self, id: int):
        self.id = id

    def __eq__(self, other: object) -> bool:
        return type(other) is TensorCore and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"TensorCore(id={self.id})"


class TensorCoreMesh:
    """The cores of one chip in a grid with named dimensions: what `kernel` and `core_map` run a function on.

    >>> mesh = TensorCoreMesh(np.array([TensorCore(0), TensorCore(1)]), ["core"])
    >>> dict(mesh.shape)
    {'core': 2}
    """

    core_type = CoreType.TC
    default_memory_space = MemorySpace.ANY
    supported_memory_spaces = (
        TpuMemorySpace.VMEM, TpuMemorySpace.SMEM, TpuMemorySpace.CMEM, TpuMemorySpace.SEMAPHORE,
    )  # fmt: skip

    def __init__(self, devices: Any, axis_names: Sequence[Hashable]):
        self.devices = np.copy(devices)
        self.devices.setflags(write=False)
        self.axis_names = tuple(axis_names)

    @property
    def shape(self) -> OrderedDict[Hashable, int]:
        return OrderedDict(zip(self.axis_names, self.devices.shape))

    def _key(self) -> tuple[Any, ...]:
        return (self.devices.shape, tuple(self.devices.ravel()), self.axis_names)

    def __eq__(self, other: object) -> bool:
        return type(other) is TensorCoreMesh and other._key() == self._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"TensorCoreMesh({', '.join(f'{n}={size}' for n, size in self.shape.items())})"


@boundary
def create_tensorcore_mesh(
    axis_name: str, devices: Sequence[Any] | None = None, num_cores: int | None = None
) -> TensorCoreMesh:
    """The cores of a chip along one axis: `num_cores`, or as many as the first of `devices` has (1 if it does not say).

    Raises:
      ArgumentValueError: both are given.
    """
    if devices is not None and num_cores is not None:
        raise errors.ArgumentValueError("cannot specify both devices and num_cores")
    if num_cores is None:
        num_cores = int(getattr(devices[0], "num_cores", None) or 1) if devices else 1
    return TensorCoreMesh(np.array([TensorCore(i) for i in range(num_cores)]), [axis_name])


# ----------------------------------------------------------------------------------------------------------------------
# Kernels on every core


def need_cores(mesh: Any, what: str) -> TensorCoreMesh:
    """`mesh`, if it is one of cores."""
    if type(mesh) is not TensorCoreMesh:
        raise errors.ArgumentTypeError(
            f"{what} a TensorCoreMesh (pltpu.create_tensorcore_mesh), got {mesh!r}: other cores have no back end"
        )
    return mesh


def on_cores(
    body: Callable[..., None], mesh: TensorCoreMesh, out_type: Any, num_args: int, scratch: Any, options: dict[str, Any]
) -> Callable[..., Any]:
    """The function of arrays that runs `body` once per core of `mesh`, on references to whole arrays."""
    whole = BlockSpec(memory_space=mesh.default_memory_space)
    spec = GridSpec(
        tuple(mesh.shape.items()), [whole] * num_args, tree_util.tree_map(lambda _: whole, out_type, is_leaf=_is_type),
        scratch,
    )  # fmt: skip
    return pallas_call(body, out_type, grid_spec=spec, **options)


def _is_type(x: Any) -> bool:
    return hasattr(x, "get_ref_aval") or hasattr(x, "shape")


_NOT_GIVEN: Any = object()


@boundary
def kernel(
    body: Any = _NOT_GIVEN,
    out_type: Any = (),
    *,
    mesh: Any,
    scratch_types: Any = (),
    compiler_params: Any = None,
    interpret: Any = False,
    cost_estimate: Any = None,
    debug: bool = False,
    name: str | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Callable[..., Any]:
    """A function of arrays and references that runs `body` once on each core of `mesh`; without `body`, a decorator.

    Args:
      body: takes references to whole arguments and results, and to scratch memory; returns nothing. It may write to
        references that are arguments, or that it captures.
      out_type: a pytree of ShapeDtypeStructs: the results.
      scratch_types: types of references that each core has its own of.

    >>> import meshrt, meshrt.numpy as jnp
    >>> mesh = create_tensorcore_mesh("core", num_cores=2)
    >>> @kernel(out_type=meshrt.ShapeDtypeStruct((2,), np.int32), mesh=mesh)
    ... def double(x_ref, o_ref):
    ...     i = meshrt.lax.axis_index("core")
    ...     o_ref[i] = 2 * x_ref[i]
    >>> double(jnp.arange(2))
    Array([0, 2], dtype=int32)
    """
    if isinstance(body, Sequence):
        raise errors.UnsupportedError(
            "pl.kernel with several bodies runs each on cores of another kind; only the tensor cores of a chip have a "
            "back end: write a body that asks lax.axis_index"
        )
    if body is _NOT_GIVEN:
        return lambda f: kernel(
            f, out_type, mesh=mesh, scratch_types=scratch_types, compiler_params=compiler_params, interpret=interpret,
            cost_estimate=cost_estimate, debug=debug, name=name, metadata=metadata,
        )  # fmt: skip
    if isinstance(mesh, Sequence):
        raise errors.ArgumentValueError("mesh cannot be a sequence when body is a single callable.")
    cores = need_cores(mesh, "pl.kernel takes")
    options = {
        "compiler_params": compiler_params, "interpret": interpret, "cost_estimate": cost_estimate, "debug": debug,
        "name": name or fun_name(body), "metadata": metadata,
    }  # fmt: skip
    out = tuple(out_type) if isinstance(out_type, list) else out_type

    @boundary
    def run(*args: Any) -> Any:
        leaves, tree = tree_util.tree_flatten(args)
        arrays = [x for x in leaves if not is_ref(x)]

        @functools.wraps(body)
        def with_refs(*refs: Any, **keywords: Any) -> None:
            given = iter(refs)
            own = [x if is_ref(x) else next(given) for x in leaves]
            return body(*tree_util.tree_unflatten(tree, own), *given, **keywords)

        return on_cores(with_refs, cores, out, len(arrays), scratch_types, options)(*arrays)

    return run


@boundary
def run_on_first_core(core_axis_name: str) -> Callable[[Callable[[], None]], None]:
    """A decorator: runs a function, which returns nothing, on the first core of an axis alone."""
    return when(lax.axis_index(core_axis_name) == 0 if lax.axis_size(core_axis_name) > 1 else True)


@boundary
def core_barrier(sem: Any, *, core_axis_name: str) -> None:
    """Lets all cores of an axis wait for each other, by a semaphore that each has."""
    count, own = lax.axis_size(core_axis_name), lax.axis_index(core_axis_name)
    if count == 1:
        return
    for other in range(count):
        when(own != other)(functools.partial(semaphore_signal, sem, 1, core_index=other))
    semaphore_wait(sem, count - 1)
