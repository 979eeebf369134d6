"""Errors as values: checks inside of compiled programs. Names are ``jax.experimental.checkify``'s.

A program on devices raises nothing. `checkify(f)` returns a function that gives an `Error` beside f's result: the
first failed `check`, or, where asked for, the first NaN, division by zero or index out of bounds.

>>> def f(x):
...     check(x > 0, "{x} has to be positive", x=x)
...     return meshrt.numpy.log(x)
>>> error, out = meshrt.jit(checkify(f))(-3.0)
>>> error.get()
'-3.0 has to be positive (`check` failed)'

`failures` has the errors, `checks` the operation `check` and what users write, `sites` where errors may arise in a
program and what is known of them, `walk` runs a program with the error beside its values, `automatic` says which
operations fail when.
"""

from meshrt.experimental.checkify.checks import check, check_error, debug_check
from meshrt.experimental.checkify.failures import (
    Error,
    ErrorCategory,
    JaxRuntimeError,
    all_checks,
    automatic_checks,
    div_checks,
    float_checks,
    index_checks,
    init_error,
    nan_checks,
    user_checks,
)
from meshrt.experimental.checkify.walk import checkify

__all__ = [
    "Error", "ErrorCategory", "JaxRuntimeError", "all_checks", "automatic_checks", "check", "check_error", "checkify",
    "debug_check", "div_checks", "float_checks", "index_checks", "init_error", "nan_checks", "user_checks",
]  # fmt: skip
