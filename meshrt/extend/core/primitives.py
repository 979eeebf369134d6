"""The primitives of Jaxprs, under JAX's names, for programs that compare with them."""

from __future__ import annotations

from typing import Any

from meshrt import errors as _errors
from meshrt import lax as _lax
from meshrt.core.basic.pointwise import add_any_p as _add_any_p
from meshrt.core.in_place import InPlace as _InPlace
from meshrt.core.primitive import Primitive as _Primitive
from meshrt.core.trace import eval_jaxpr as _eval_jaxpr
from meshrt.primitives.call import jit_p
from meshrt.random.gammas import random_gamma_p
from meshrt.transforms.checkpoint import checkpoint_p as remat_p
from meshrt.transforms.checkpoint_policies import name_p
from meshrt.transforms.custom_jvp import custom_jvp_call_p
from meshrt.transforms.custom_vjp import custom_vjp_call_p
from meshrt.transforms.custom_vjp import custom_vjp_linear_p as _custom_vjp_linear_p

# Of a function of flat arrays (`meshrt.extend.linear_util.wrap_init`) and of a Jaxpr.
call_p = _InPlace("call", lambda function, *args, **params: function.call_wrapped(*args))
closed_call_p = _InPlace(
    "closed_call", lambda *args, call_jaxpr, **params: _eval_jaxpr(call_jaxpr.jaxpr, call_jaxpr.consts, args)
)

# An array that nobody fills.
empty2_p = _InPlace("empty2", lambda *, dtype, memory_space=None: _lax.empty((), dtype), multiple_results=False)

_OTHERS: dict[str, _Primitive] = {
    "add_jaxvals_p": _add_any_p, "custom_lin_p": _custom_vjp_linear_p, "empty2_p": empty2_p,
    "call_p": call_p, "closed_call_p": closed_call_p,
    "custom_jvp_call_p": custom_jvp_call_p, "custom_vjp_call_p": custom_vjp_call_p, "jit_p": jit_p, "name_p": name_p,
    "random_gamma_p": random_gamma_p, "remat_p": remat_p,
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
