"""A function as StableHLO, with what has to be known to call it and to write it to a file."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshrt import errors, tree_util
from meshrt.core.dimensions.expression import DimExpr
from meshrt.core.dimensions.solving import Solution, solve
from meshrt.core.types import ShapedArray
from meshrt.export.artifact import read_artifact
from meshrt.export.checks import DisabledSafetyCheck
from meshrt.sharding.mesh import AbstractMesh, BaseMesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import UNCONSTRAINED, axes_of
from meshrt.sharding.typed import on
from meshrt.transforms.high import leaf_paths

__all__ = ["Record", "argument_names", "renamed", "result_types", "split_types"]


@dataclass(frozen=True, eq=False)
class Record:
    """A function lowered to StableHLO.

    fun_name                   the name of the function
    in_tree, in_avals          structure `(args, kwargs)` and types of the arguments; sizes may be symbolic
    out_tree, out_avals        likewise of the results
    in_shardings, out_shardings   over the AbstractMesh of the program; None where nothing is said
    nr_devices                 for how many devices it was exported; a program for one runs on any number, as it is,
                               others are partitioned again
    platforms                  "cpu", "cuda", ...: where it runs
    ordered_effects, unordered_effects   what running it does beside computing
    disabled_safety_checks     checks that its user turned off
    mlir_module_serialized     the program, a StableHLO portable artifact
    calling_convention_version of the module's arguments, see docs/export.md
    module_kept_var_idx        the arguments that the module takes; the others are not used
    uses_global_constants      whether it takes a platform's index or has symbolic sizes
    stablehlo_version          of which version the artifact is
    executables                compiled code that the file had, see `meshrt.export.executables`
    """

    fun_name: str
    in_tree: Any
    in_avals: tuple[ShapedArray, ...]
    out_tree: Any
    out_avals: tuple[ShapedArray, ...]
    in_shardings: tuple[NamedSharding | None, ...]
    out_shardings: tuple[NamedSharding | None, ...]
    nr_devices: int
    platforms: tuple[str, ...]
    ordered_effects: tuple[Any, ...]
    unordered_effects: tuple[Any, ...]
    disabled_safety_checks: tuple[DisabledSafetyCheck, ...]
    mlir_module_serialized: bytes
    calling_convention_version: int
    module_kept_var_idx: tuple[int, ...]
    uses_global_constants: bool
    stablehlo_version: str = ""
    mesh: AbstractMesh | None = None
    executables: tuple[Any, ...] = ()
    _get_vjp: Callable[[Any], Any] | None = field(default=None, repr=False)
    # By mesh, types of arguments and settings, the latest ones: see `meshrt.export.splits`.
    result_splits: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    # Mapped calls by types of members, the latest ones: see `meshrt.export.mapping`.
    at_once: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    # Itself over meshes of other sizes, the latest ones, and whether it is that of another: see
    # `meshrt.export.repartition`.
    repartitioned: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    is_repartitioned: bool = field(default=False, repr=False)
    # Whether this process wrote the module, or read it from bytes that anybody may have written.
    _is_trusted: bool = field(default=True, repr=False)

    # -- the module ----------------------------------------------------------------------------------------------------

    def mlir_module(self, serialized: bool = True) -> Any:
        """The module as text, or as an `ir.Module` if not `serialized`."""
        module = read_artifact(self.mlir_module_serialized, trusted=self._is_trusted)
        return module if not serialized else str(module)

    @functools.cached_property
    def solution(self) -> Solution:
        """How the variables in symbolic sizes follow from the sizes of arguments."""
        return solve([a.shape for a in self.in_avals], argument_names(self.in_tree))

    @property
    def split_mesh(self) -> AbstractMesh | None:
        """The mesh over which the program is split; None if it is not, as over the mesh of one device."""
        return None if self.mesh is None or self.mesh.size == 1 else self.mesh

    # -- shardings -----------------------------------------------------------------------------------------------------

    def in_shardings_jax(self, mesh: BaseMesh) -> tuple[NamedSharding | None, ...]:
        """The shardings of the arguments over another mesh of the same sizes, whose axes may have other names.

        Raises:
          MeshMismatchError: the sizes differ.
          ArgumentTypeError: no mesh.
        """
        return tuple(self._over(s, mesh) for s in self.in_shardings)

    def out_shardings_jax(self, mesh: BaseMesh) -> tuple[NamedSharding | None, ...]:
        """The shardings of the results over another mesh: see `in_shardings_jax`."""
        return tuple(self._over(s, mesh) for s in self.out_shardings)

    def _over(self, sharding: NamedSharding | None, mesh: BaseMesh) -> NamedSharding | None:
        if not isinstance(mesh, BaseMesh):
            raise errors.ArgumentTypeError(f"shardings are over a Mesh or an AbstractMesh. Got {mesh!r}")
        if sharding is None:
            return None
        own = sharding.mesh
        if own.axis_sizes != mesh.axis_sizes:
            raise errors.MeshMismatchError(
                f"NamedSharding new mesh {mesh} does not match the mesh used for export {own}: give a mesh with the "
                f"sizes {own.axis_sizes}, axes may have other names"
            )
        return renamed(sharding, mesh)

    # Under JAX's names.
    _has_named_shardings = property(lambda self: True)
    _in_named_shardings = property(lambda self: self.in_shardings)
    _out_named_shardings = property(lambda self: self.out_shardings)
    in_shardings_hlo = property(lambda self: (None,) * len(self.in_avals))
    out_shardings_hlo = property(lambda self: (None,) * len(self.out_avals))

    # -- derivatives ---------------------------------------------------------------------------------------------------

    def has_vjp(self) -> bool:
        """Whether the derivative of the function is known, so that calls can be differentiated."""
        return self._get_vjp is not None

    def vjp(self) -> Any:
        """The derivative, as an exported function of the arguments and of cotangents of the results.

        Raises:
          ArgumentValueError: it was not written with the function.
        """
        if self._get_vjp is None:
            raise errors.ArgumentValueError(
                f"No VJP is available for {self.fun_name}: serialize it with vjp_order=1, or as many derivatives as "
                "are taken (modules of others, from_stablehlo, have none)"
            )
        return self._derivative

    @functools.cached_property
    def _derivative(self) -> Any:
        return None if self._get_vjp is None else self._get_vjp(self)

    def __str__(self) -> str:
        return f"{type(self).__name__}(fun_name={self.fun_name}, ...)"

    __repr__ = __str__


def split_types(
    avals: Sequence[ShapedArray], shardings: Sequence[NamedSharding | None]
) -> tuple[ShapedArray, ...]:  # fmt: skip
    """Types of arguments or results, which files hold without shardings, with what Explicit axes split of them.

    ValueError if there are not as many shardings.
    """
    pairs = zip(avals, shardings, strict=True)
    return tuple(a if s is None else a.update(sharding=on(s, a.ndim)) for a, s in pairs)


def renamed(sharding: NamedSharding, mesh: BaseMesh) -> NamedSharding:
    """The sharding over a mesh of equal sizes, by the places of the axes."""
    names = dict(zip(sharding.mesh.axis_names, mesh.axis_names))
    spec = sharding.spec
    entries = [e if e is UNCONSTRAINED else tuple(names[a] for a in axes_of(e)) or None for e in spec.partitions]
    sums = {k: frozenset(names[a] for a in getattr(spec, k)) for k in ("unreduced", "reduced")}
    return sharding.update(mesh=mesh, spec=spec.update(partitions=entries, **sums))


def result_types(exported: Record, avals: Sequence[ShapedArray]) -> list[ShapedArray]:
    """The types of the results, with numbers for symbolic sizes, for arguments of these types."""
    values = exported.solution.of([a.shape for a in avals])
    return [
        a.update(shape=tuple(n.evaluate(values) if isinstance(n, DimExpr) else n for n in a.shape))
        for a in exported.out_avals
    ]


def argument_names(in_tree: Any) -> list[str]:
    """What messages call each argument: `args[0]`, `kwargs['b']`."""
    names = []
    for path in leaf_paths(in_tree):
        which = "args" if path and getattr(path[0], "idx", None) == 0 else "kwargs"
        names.append(which + tree_util.keystr(path[1:]))
    return names
