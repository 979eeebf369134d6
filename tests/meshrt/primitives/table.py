"""All rows of the judge."""

from tests.meshrt.primitives import (
    rows_control,
    rows_elementwise,
    rows_index,
    rows_linalg,
    rows_named,
    rows_random,
    rows_shape,
    rows_window,
)

CASES = [
    *rows_control.CASES,
    *rows_elementwise.CASES,
    *rows_shape.CASES,
    *rows_index.CASES,
    *rows_window.CASES,
    *rows_random.CASES,
    *rows_linalg.CASES,
    *rows_named.CASES,
]
_names = [c.name for c in CASES]
assert len(set(_names)) == len(_names), sorted({n for n in _names if _names.count(n) > 1})
