"""The forms in which axis types are given, and those that do not fit: statement 002-05."""

import numpy as np
import pytest

import meshrt
from meshrt import errors
from meshrt.sharding import AbstractMesh, AxisType, Mesh, make_mesh

TYPES = {
    "none": None,
    "one for all": AxisType.Explicit,
    "tuple": (AxisType.Auto, AxisType.Explicit),
    "list": [AxisType.Manual, AxisType.Auto],
    "old names": (AxisType.User, AxisType.Collective),
    "dict": {AxisType.Explicit: "y"},
    "dict of tuples": {AxisType.Manual: ("x", "y")},
    "whole dict": {AxisType.Auto: "y", AxisType.Explicit: ("x",)},
}
WANTED = {
    "none": "Auto Auto", "one for all": "Explicit Explicit", "tuple": "Auto Explicit", "list": "Manual Auto",
    "old names": "Explicit Manual", "dict": "Auto Explicit", "dict of tuples": "Manual Manual",
    "whole dict": "Explicit Auto",
}  # fmt: skip


@pytest.mark.parametrize("form", TYPES)
def test_002_05_forms_of_axis_types(form):
    wanted = tuple(AxisType[name] for name in WANTED[form].split())
    devices = np.array(meshrt.devices()).reshape(4, 2)
    for mesh in (
        Mesh(devices, ("x", "y"), TYPES[form]),
        make_mesh((4, 2), ("x", "y"), AxisType.Auto if form == "none" else TYPES[form]),
        AbstractMesh((4, 2), ("x", "y"), axis_types=TYPES[form]),
    ):
        assert mesh.axis_types == wanted and mesh._name_to_type == dict(zip("xy", wanted))
    assert meshrt.sharding.AxisTypes.Collective is AxisType.Manual and len(AxisType) == 3


@pytest.mark.parametrize(
    ("types", "kind", "text"),
    [
        ((AxisType.Auto,), ValueError, "Number of axis names should match the number of axis_types"),
        (("Auto", "Auto"), TypeError, "must be of type `meshrt.sharding.AxisType`"),
        ("Auto", TypeError, "must be an AxisType or a tuple"),
        ({"x": AxisType.Auto}, TypeError, "must be of type"),
        ({AxisType.Auto: "q"}, ValueError, "'q' Auto, which is not one of its axes"),
        ({AxisType.Auto: "x", AxisType.Manual: "x"}, ValueError, "both Auto and Manual"),
    ],
)
def test_002_05_axis_types_that_do_not_fit(types, kind, text):
    for make in (lambda: AbstractMesh((4, 2), ("x", "y"), types), lambda: make_mesh((4, 2), ("x", "y"), types)):
        with pytest.raises(kind, match=text) as e:
            make()
        assert isinstance(e.value, errors.MeshrtError)
