"""Decides how every value of a StableHLO program is sharded, from annotations on a few of them.

>>> text = '''
... sdy.mesh @mesh = <["data"=4, "model"=2]>
... func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>},
...                 %w: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}) -> tensor<8x32xf32> {
...   %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
...        : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
...   return %0 : tensor<8x32xf32> }'''
>>> decided = run(text)
>>> decided.result_shardings[0].to_text()
'#sdy.sharding<@mesh, [{"data"}, {"model"}]>'
>>> print(*decided.explain(decided.program.main.returned[0], 1)[0], sep="\\n")  # doctest: +ELLIPSIS
dimension 1 of <%2 tensor<8x32xf32>, result of stablehlo.dot_general 0> got axis 'model' through ...
dimension 1 of <%1 tensor<16x32xf32>, argument 1> is annotated with axis 'model' by the user (-:4)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import errors
    from .pipeline import STAGES, Options
    from .program import read
    from .propagated import Propagated, run
    from .rules import register_sharding_rule

__all__ = ["STAGES", "Options", "Propagated", "errors", "read", "register_sharding_rule", "run"]

# Start-up time: each of these takes 40 ms to import with all that it needs, and programs that are found on disk, or run
# on one device, need none.
_PLACES = {
    "STAGES": "pipeline", "Options": "pipeline", "Propagated": "propagated", "errors": None, "read": "program",
    "register_sharding_rule": "rules", "run": "propagated",
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = _PLACES[name]
    found: object = importlib.import_module(f".{place or name}", __name__)
    if place is not None:
        found = getattr(found, name)
    globals()[name] = found
    return found
