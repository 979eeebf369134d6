"""`Exported`: a function as StableHLO that can be called and written to a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from meshrt import errors
from meshrt.export.calling import call_exported
from meshrt.export.executables import Sizes
from meshrt.export.planning import plan_of
from meshrt.export.record import Record
from meshrt.export.repartition import Axes, repartitioned, require_mesh
from meshrt.export.saving import serialize
from meshrt.sharding.mesh import AbstractMesh, Mesh

if TYPE_CHECKING:
    from collectives.plan.communication import CommunicationPlan

__all__ = ["Exported"]


class Exported(Record):
    """A function lowered to StableHLO: `call` runs it, in other programs too, `serialize` writes it to bytes.

    Its fields are those of `meshrt.export.record.Record`, and JAX's. `export` and `deserialize` make one.

    >>> import meshrt, numpy as np
    >>> from meshrt import export
    >>> exported = export.export(meshrt.jit(lambda x: 2 * x))(meshrt.ShapeDtypeStruct((3,), np.float32))
    >>> exported.in_avals, exported.platforms
    ((ShapedArray(float32[3]),), ('cpu',))
    """

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function on arrays, or stages it into the program being traced.

        Raises:
          TreeError: arguments of another structure.
          ArgumentValueError: arguments of other ranks, dtypes or sizes than those exported for, sizes that do not fit
            the symbolic ones, another platform.
          MeshMismatchError, IndivisibleError, UnsupportedError: another number of devices, where `over` raises it.
        """
        return call_exported(self, args, kwargs)

    def over(self, mesh: Mesh | AbstractMesh, axes: Axes | None = None) -> Exported:
        """The function over a mesh of other sizes, as calls on other numbers of devices use it: partitioned again.

        Its shardings (`in_shardings_jax(mesh)`), its derivatives and the files that are written of it are over a mesh
        of these sizes.

        >>> import meshrt, numpy as np
        >>> from meshrt import export
        >>> from meshrt.sharding import AbstractMesh
        >>> eight = AbstractMesh((4, 2), ("data", "model"))
        >>> split = meshrt.NamedSharding(eight, meshrt.P("data", "model"))
        >>> x = meshrt.ShapeDtypeStruct((8, 8), np.float32, sharding=split)
        >>> exported = export.export(meshrt.jit(lambda x: x @ x))(x)
        >>> exported.over(AbstractMesh((2,), ("model",))).in_shardings[0].spec
        P(None, 'model')
        >>> exported.over(AbstractMesh((2,), ("rows",)), {"data": "rows"}).in_shardings[0].spec
        P('data', None)

        Args:
          mesh: a mesh, or an AbstractMesh.
          axes: for axes that it was exported with, which axis of `mesh` each is, or None for one that splits nothing
            there, as those that are left out. By default axes of the same names are the same; if no name is the same,
            those in the same places.

        Raises:
          MeshMismatchError: the function has a shard_map or collectives, which are written for its devices, or
            shardings over parts of axes.
          IndivisibleError: a size does not divide into the parts that it would have, as `jit` raises.
          ArgumentValueError: `axes` names an axis that is not there, or one twice.
          UnsupportedError: its module has shardings over several meshes.
          ArgumentTypeError: no mesh; `axes` that are no dict.
        """
        if axes is not None and not isinstance(axes, Mapping):
            raise errors.ArgumentTypeError(f"axes of over(mesh, axes) is a dict of axes by axes. Got {axes!r}")
        return repartitioned(self, require_mesh(mesh, "over(mesh)"), axes)

    def plan(self, mesh: Mesh | AbstractMesh, **sizes: int) -> CommunicationPlan:
        """What a call on a mesh communicates: every collective with its cause and its bytes. Nothing is compiled.

        >>> import meshrt, numpy as np
        >>> from meshrt import export
        >>> mesh = meshrt.sharding.AbstractMesh((4,), ("data",))
        >>> x = meshrt.ShapeDtypeStruct((8, 2), np.float32, sharding=meshrt.NamedSharding(mesh, meshrt.P("data")))
        >>> exported = export.export(meshrt.jit(lambda x: x.sum(0)))(x)
        >>> [c.kind for c in exported.plan(mesh).entries]
        ['all_reduce']

        Args:
          mesh: a mesh, or an AbstractMesh. If it has as many devices as the function was exported for, axes go by
            their places and may have other names; where its sizes are others the arguments are taken as propagation
            leaves them. Else it is the plan of `over(mesh)`.
          sizes: a number for each variable in symbolic sizes, by its name.

        Raises:
          ArgumentValueError: a variable without a number, a name of no variable, or numbers that no size allows.
          ArgumentTypeError: a number that is no int; no mesh.
          MeshMismatchError, IndivisibleError, UnsupportedError: another number of devices, where `over` raises it.
        """
        return plan_of(self, require_mesh(mesh, "plan(mesh)"), sizes)

    def serialize(
        self, vjp_order: int = 0, *, tier: str = "stable", stablehlo_version: str | int | None = None,
        with_executable: Sizes = False,
    ) -> bytearray:  # fmt: skip
        """The function as bytes, with its first `vjp_order` derivatives.

        Args:
          tier: "stable" for an artifact that other versions read, "bytecode" or "text" for this version's MLIR.
          stablehlo_version: of the artifact; by default the one it was exported for.
          with_executable: whether compiled code for the hardware that is here is written as well, which
            `deserialize(..., with_executable=True)` uses: True, or with symbolic sizes a number for each, {"b": 8}, or
            several of these.

        Raises:
          TreeError: the arguments or results have nodes of a class that was not registered for files.
          ArgumentValueError: an unknown tier or version; more derivatives than there are; code for a platform or more
            devices than are here, or for sizes that are not all given, or not the function's.
          ArgumentTypeError: sizes that are no ints.
        """
        return serialize(
            self, vjp_order, tier=tier, stablehlo_version=stablehlo_version, with_executable=with_executable
        )
