"""The primitives of Jaxprs, under JAX's names, for programs that compare with them."""

from __future__ import annotations

from collections.abc import Callable as _Callable
from typing import Any

from meshrt import errors as _errors
from meshrt import lax as _lax
from meshrt.core.primitive import Primitive as _Primitive
from meshrt.core.trace import eval_jaxpr as _eval_jaxpr
from meshrt.primitives.call import jit_p
from meshrt.random.gammas import random_gamma_p
from meshrt.transforms.checkpoint import checkpoint_p as remat_p
from meshrt.transforms.checkpoint_policies import name_p
from meshrt.transforms.custom_jvp import custom_jvp_call_p
from meshrt.transforms.custom_vjp import custom_vjp_call_p


class _InPlace(_Primitive):
    """A call that is written in place: `bind` does what is called, so that no program has an equation of it."""

    __slots__ = ("_call",)

    def __init__(self, name: str, call: _Callable[..., list[Any]]):
        super().__init__(name, multiple_results=True)
        self._call = call

    def bind(self, *args: Any, **params: Any) -> list[Any]:
        return self._call(*args, **params)


# Of a function of flat arrays (`meshrt.extend.linear_util.wrap_init`) and of a Jaxpr.
call_p = _InPlace("call", lambda function, *args, **params: function.call_wrapped(*args))
closed_call_p = _InPlace(
    "closed_call", lambda *args, call_jaxpr, **params: _eval_jaxpr(call_jaxpr.jaxpr, call_jaxpr.consts, args)
)

_OTHERS: dict[str, _Primitive] = {
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
