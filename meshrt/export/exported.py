"""`Exported`: a function as StableHLO that can be called and written to a file."""

from __future__ import annotations

from typing import Any

from meshrt.export.calling import call_exported
from meshrt.export.record import Record
from meshrt.export.saving import serialize

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
            the symbolic ones, another platform, another number of devices.
        """
        return call_exported(self, args, kwargs)

    def serialize(
        self, vjp_order: int = 0, *, tier: str = "stable", stablehlo_version: str | int | None = None
    ) -> bytearray:
        """The function as bytes, with its first `vjp_order` derivatives.

        Args:
          tier: "stable" for an artifact that other versions read, "bytecode" or "text" for this version's MLIR.
          stablehlo_version: of the artifact; by default the one it was exported for.

        Raises:
          TreeError: the arguments or results have nodes of a class that was not registered for files.
          ArgumentValueError: an unknown tier or version; more derivatives than there are.
        """
        return serialize(self, vjp_order, tier=tier, stablehlo_version=stablehlo_version)
