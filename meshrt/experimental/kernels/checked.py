"""Checks of users inside of kernels: `checkify` looks into the loop that a kernel means."""

from __future__ import annotations

from meshrt import errors
from meshrt.core.jaxpr import Eqn
from meshrt.experimental.checkify.checks import debug_check
from meshrt.experimental.checkify.walk import take_as
from meshrt.experimental.kernels.call_primitive import pallas_call_p
from meshrt.experimental.kernels.loop import loop_program
from meshrt.primitives.call import call_params, jit_p

__all__ = ["debug_check"]


def _as_call(eqn: Eqn) -> Eqn:
    """A kernel's call as a call of the Jaxpr that it means."""
    program = loop_program(eqn.params)
    if program.consts:
        raise errors.UnsupportedError(
            f"checkify of the kernel {eqn.params['kernel']}, whose loop captures arrays: pass them as arguments"
        )
    params = call_params(program.jaxpr, eqn.params["name"])
    return Eqn(jit_p, eqn.invars, eqn.outvars, params, eqn.source, program.jaxpr.effects)


take_as(pallas_call_p, _as_call)
