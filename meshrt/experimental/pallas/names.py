"""Names that kernels were written with for earlier versions of JAX, and what is said of those that are not here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshrt import errors
from meshrt.core.tracebacks import boundary
from meshrt.experimental.kernels import loads
from meshrt.experimental.kernels.buffered import BufferedRef
from meshrt.experimental.kernels.memory import MemorySpace, SemaphoreType, TpuMemorySpace
from meshrt.experimental.kernels.params import TpuCompilerParams
from meshrt.experimental.kernels.scopes import run_scoped
from meshrt.experimental.kernels.simulator.params import InterpretParams
from meshrt.experimental.kernels.specs import Element

__all__ = ["EARLIER", "EARLIER_TPU", "absent"]


@boundary
def load(
    x_ref_or_view: Any, idx: Any, *, mask: Any = None, other: Any = None, cache_modifier: str | None = None,
    eviction_policy: str | None = None, volatile: bool = False,
) -> Any:  # fmt: skip
    """What a reference shows at an index; where `mask` is False anything, or `other` if that is given.

    `cache_modifier`, `eviction_policy` and `volatile` change no value, and are not passed on.
    """
    return loads.load(x_ref_or_view.at[idx], mask=mask, other=other)


@boundary
def swap(
    x_ref_or_view: Any, idx: Any, val: Any, *, mask: Any = None, eviction_policy: str | None = None
) -> Any:  # fmt: skip
    """Replaces what a reference shows at an index, where `mask` is True; returns what was there.

    `eviction_policy` changes no value, and is not passed on.
    """
    return loads.swap(x_ref_or_view.at[idx], val, mask=mask)


@boundary
def store(
    x_ref_or_view: Any, idx: Any, val: Any, *, mask: Any = None, eviction_policy: str | None = None
) -> None:  # fmt: skip
    """Replaces what a reference shows at an index, where `mask` is True.

    `eviction_policy` changes no value, and is not passed on.
    """
    loads.store(x_ref_or_view.at[idx], val, mask=mask)


# Of pl: reading and writing by an index, steps that other programs see whole, blocks by elements.
EARLIER: Mapping[str, Any] = {
    "load": load, "store": store, "swap": swap, "Unblocked": Element, "SemaphoreType": SemaphoreType,
    **{name: getattr(loads, name) for name in loads.__all__ if name.startswith("atomic_")},
}  # fmt: skip
# Of pltpu.
EARLIER_TPU: Mapping[str, Any] = {
    "ANY": MemorySpace.ANY, "TPUMemorySpace": TpuMemorySpace, "TPUCompilerParams": TpuCompilerParams,
    "TPUInterpretParams": InterpretParams, "run_scoped": run_scoped, "BufferedRefBase": BufferedRef,
}  # fmt: skip

_ADVICE = {
    "mosaic_gpu": "kernels for GPUs are written for Triton here (meshrt.experimental.pallas.triton), which "
    "`pallas_call` is lowered to; warps, tensor memory and barriers of Mosaic GPU have no back end",
    "tpu_sc": "the sparse cores of TPUs have no back end; `pallas_call` runs on the tensor cores",
    "fuser": "kernels are not fused with what computes their operands: apply that in the kernel",
}


_MATRIX_UNIT = "kernels do not drive matrix units step by step: write a product (jnp.dot), which becomes that"


def absent(module: str, known: Sequence[str], earlier: Mapping[str, Any] | None = None) -> Callable[[str], Any]:
    """The `__getattr__` of a module of names: `earlier` ones, and an error that says what is used instead of others.

    Raises:
      MissingFunctionError: there is no such name.
    """
    found = {} if earlier is None else earlier

    def get(name: str) -> Any:
        if name in found:
            return found[name]
        error = errors.missing_name(module, name, [*known, *found])
        advice = _MATRIX_UNIT if name.startswith("matmul_") else _ADVICE.get(module.rpartition(".")[2])
        if advice is None or name.startswith("__"):
            raise error
        raise errors.MissingFunctionError(f"{error}. Of {module}: {advice}")

    return get
