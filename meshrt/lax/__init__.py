"""The operations below NumPy: no implicit broadcasting or promotion, close to StableHLO.

Names and signatures are JAX's. Every family file in `meshrt/primitives` lists its public functions in `__all__`; they
are collected here, beside what stands above `jit` and the primitives themselves (`add_p`, ...), which programs that
read Jaxprs compare with.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import meshrt.core.basic as _basic
import meshrt.primitives as _primitives
from meshrt import errors as _errors
from meshrt.core.primitive import Primitive as _Primitive
from meshrt.core.tracebacks import boundaries as _boundaries
from meshrt.lax.filled import broadcast_like, empty, full, full_like
from meshrt.lax.scaled import scaled_dot
from meshrt.lax.solves import custom_linear_solve, custom_root


def _collect() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for package in (_basic, _primitives):
        for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
            module = importlib.import_module(f"{package.__name__}.{info.name}")
            found |= {n: p for n, p in vars(module).items() if n.endswith("_p") and isinstance(p, _Primitive)}
            if package is _primitives:
                found |= {n: getattr(module, n) for n in getattr(module, "__all__", ()) if not n.startswith("_")}
    found |= {"broadcast_like": broadcast_like, "empty": empty, "full": full, "full_like": full_like}
    found |= {"scaled_dot": scaled_dot}
    found |= {"custom_linear_solve": custom_linear_solve, "custom_root": custom_root}
    return _boundaries(dict(sorted(found.items())), __name__)


_public = _collect()
globals().update(_public)
__all__ = list(_public)

from meshrt.lax import linalg  # noqa: E402, F401


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise _errors.missing_name("meshrt.lax", name, __all__)
