"""The primitives of Jaxprs, under JAX's names, for programs that compare with them."""

from __future__ import annotations

from typing import Any

from meshrt import errors as _errors
from meshrt import lax as _lax
from meshrt.core.primitive import Primitive as _Primitive
from meshrt.primitives.call import jit_p
from meshrt.transforms.checkpoint import checkpoint_p as remat_p
from meshrt.transforms.checkpoint_policies import name_p
from meshrt.transforms.custom_jvp import custom_jvp_call_p
from meshrt.transforms.custom_vjp import custom_vjp_call_p

_OTHERS: dict[str, _Primitive] = {
    "custom_jvp_call_p": custom_jvp_call_p, "custom_vjp_call_p": custom_vjp_call_p, "jit_p": jit_p, "name_p": name_p,
    "remat_p": remat_p,
}  # fmt: skip
_FOUND = {n: p for n, p in vars(_lax).items() if isinstance(p, _Primitive)} | _OTHERS
globals().update(_FOUND)
__all__ = sorted(_FOUND)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise _errors.MissingFunctionError(
        f"meshrt.extend.core.primitives.{name} is not implemented: no program of meshrt has this primitive"
    )
