"""Where an argument lies, what in_shardings say and the mesh in context, drawn together: values, types, devices and
errors are JAX's."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy

from .beside import builtin_kinds, outcome

_MESHES = {
    f"{name}{kind}": (ids, shape, axes, kind)
    for kind in ("Auto", "Explicit")
    for name, ids, shape, axes in [
        ("one", [0], (1,), ("x",)),
        ("fourth", [3], (1,), ("x",)),
        ("two", [0, 1], (2,), ("x",)),
        ("turned", [1, 0], (2,), ("x",)),
        ("others", [2, 3], (2,), ("x",)),
        ("square", [0, 1, 2, 3], (2, 2), ("x", "y")),
    ]
}
_SPLIT = [f"{name} {spec}" for name in _MESHES for spec in ("whole", "x")]
_PLACES = ["host", "number", "uncommitted", "device 0", "device 3", *_SPLIT]
_GIVEN = ["none", "P()", "P('x')", "device 0", "device 3", *_SPLIT]
_CASES = list(itertools.product(_PLACES, _GIVEN, ["none", *_MESHES]))

# Found by the whole table, each by its cause: types come from arguments; a PartitionSpec is over the mesh in context,
# to which arrays move; an array over an Explicit axis of size 1 goes to a device with its type.
_FOUND = [
    ("oneExplicit x", "device 3", "none"),
    ("fourthExplicit whole", "device 0", "none"),
    ("device 0", "P()", "twoAuto"),
    ("device 0", "P('x')", "fourthAuto"),
    ("turnedExplicit x", "P('x')", "othersExplicit"),
    ("device 0", "squareExplicit whole", "squareAuto"),
    ("fourthExplicit x", "oneAuto whole", "oneExplicit"),
    ("oneAuto whole", "fourthExplicit x", "fourthExplicit"),
    ("twoExplicit x", "turnedAuto x", "turnedAuto"),
]


def _mesh(library: Any, name: str) -> Any:
    ids, shape, axes, kind = _MESHES[name]
    devices = np.array([library.devices()[i] for i in ids]).reshape(shape)
    return library.sharding.Mesh(devices, axes, axis_types=(getattr(library.sharding.AxisType, kind),) * len(axes))


def _sharding(library: Any, what: str) -> Any:
    if what in ("none", "P()", "P('x')"):
        return {"none": None, "P()": library.P(), "P('x')": library.P("x")}[what]
    name, _, spec = what.partition(" ")
    if name == "device":
        return library.sharding.SingleDeviceSharding(library.devices()[int(spec)])
    return library.NamedSharding(_mesh(library, name), library.P(*(() if spec == "whole" else ("x",))))


def _argument(library: Any, where: str) -> Any:
    value = np.arange(8, dtype=np.float32)
    if where in ("host", "number"):
        return value if where == "host" else 2.0
    return library.numpy.arange(8.0) if where == "uncommitted" else library.device_put(value, _sharding(library, where))


def _run(library: Any, where: str, given: str, around: str) -> tuple[Any, str]:
    seen = []

    def double(x: Any) -> Any:
        seen.append(str(library.typeof(x)))
        return x * 2

    x, options = _argument(library, where), {} if given == "none" else {"in_shardings": _sharding(library, given)}
    with contextlib.nullcontext() if around == "none" else library.set_mesh(_mesh(library, around)):
        return library.jit(double, **options)(x), seen[0]


def _check(case: tuple[str, str, str]) -> None:
    theirs, ours = outcome(lambda L: _run(L, *case), jax), outcome(lambda L: _run(L, *case), meshrt)
    if isinstance(theirs, Exception):
        if "Length of device assignment" in str(theirs) and not isinstance(ours, Exception):
            return  # JAX traces, and finds then that it does not know the devices of a type
        assert all(isinstance(ours, kind) for kind in builtin_kinds(theirs)), (case, ours, theirs)
        return
    assert not isinstance(ours, Exception), (case, ours)
    assert ours[1] == theirs[1], case
    np.testing.assert_array_equal(ours[0], theirs[0])
    assert {d.id for d in ours[0].devices()} == {d.id for d in theirs[0].devices()}, case
    assert ours[0].committed == theirs[0].committed, case


@pytest.mark.parametrize("case", _FOUND, ids=str)
def test_where_arguments_lie_and_what_in_shardings_say(case):
    _check(case)


def test_a_draw_of_the_table():
    """One in 60 of the cases, always the same."""
    for case in _CASES[7::60]:
        _check(case)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(12))
def test_the_table(part):
    for case in _CASES[part::36]:
        _check(case)
