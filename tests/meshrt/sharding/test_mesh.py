"""Meshes and specs: interning, attributes and the texts of their errors; JAX's objects are the judge."""

import copy
import pickle

import jax
import numpy as np
import pytest

import meshrt
from meshrt import errors
from meshrt.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, make_mesh
from meshrt.sharding import PartitionSpec as P
from meshrt.sharding.set_once import SetOnce

JP = jax.sharding.PartitionSpec
AUTO = (jax.sharding.AxisType.Auto,) * 2


@pytest.fixture(scope="module")
def xy():
    return make_mesh((4, 2), ("x", "y"), (AxisType.Auto,) * 2)


@pytest.mark.smoke
def test_interned(xy):
    assert make_mesh((4, 2), ("x", "y"), AxisType.Auto) is xy
    assert Mesh(np.array(meshrt.devices()).reshape(4, 2), ("x", "y")) is xy
    assert pickle.loads(pickle.dumps(xy)) is xy
    abstract = AbstractMesh((4, 2), ("x", "y"))
    assert abstract is xy.abstract_mesh and abstract is AbstractMesh((("x", 4), ("y", 2)))
    assert pickle.loads(pickle.dumps(abstract)) is abstract
    assert abstract is not AbstractMesh((4, 2), ("x", "y"), (AxisType.Auto, AxisType.Explicit))
    assert make_mesh((4, 2), ("x", "y"), AxisType.Auto, devices=meshrt.devices()[::-1]).abstract_mesh is abstract


def test_types_of_axes_that_are_not_given_are_those_of_jax():
    for lib in (meshrt, jax):
        sharding, devices = lib.sharding, np.array(lib.devices()).reshape(4, 2)
        assert lib.make_mesh((4, 2), ("x", "y")).axis_types == (sharding.AxisType.Explicit,) * 2
        for made in (sharding.Mesh(devices, ("x", "y")), sharding.AbstractMesh((4, 2), ("x", "y"))):
            assert made.axis_types == (sharding.AxisType.Auto,) * 2


def test_attributes_equal_jax(xy):
    theirs = jax.make_mesh((4, 2), ("x", "y"), axis_types=AUTO)
    assert str(xy) == str(theirs)
    for name in ("shape", "shape_tuple", "axis_names", "axis_sizes", "size", "empty", "auto_axes", "manual_axes",
                 "explicit_axes", "are_all_axes_auto", "is_multi_process"):  # fmt: skip
        assert getattr(xy, name) == getattr(theirs, name), name
    assert (xy.device_ids == theirs.device_ids).all()
    assert not xy.devices.flags.writeable
    assert xy.local_mesh is xy
    changed = xy.update_axis_types({"y": AxisType.Manual})
    assert changed.manual_axes == ("y",) and changed.devices is not xy.devices


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: AbstractMesh((2, 2), ("x", "x")), errors.MeshError, "'x' stands twice"),
        (lambda: AbstractMesh((2, 2), ("x", None)), errors.MeshError, "cannot be None"),
        (lambda: AbstractMesh((2,), ("x", "y")), errors.MeshError, "one size per axis"),
        (lambda: AbstractMesh((2, 0), ("x", "y")), errors.MeshError, "positive ints"),
        (lambda: AbstractMesh((2,), ("x",), ("Auto",)), TypeError, "AxisType"),
        (lambda: AbstractMesh((2, 2), ("x", "y"), (AxisType.Auto,)), ValueError, "Number of axis names should match"),
        (lambda: AbstractMesh(5), TypeError, "pairs"),
        (lambda: AbstractMesh((2,), ("x",)).devices, errors.MeshError, "has no devices"),
        (lambda: Mesh(meshrt.devices(), ("x", "y")), ValueError, r"devices.ndim == 1 and len\(axis_names\) == 2"),
        (lambda: Mesh(meshrt.devices()[:1] * 2, ("x",)), ValueError, "each device once"),
        (lambda: make_mesh((99,), ("x",)), ValueError, "Number of devices 8 must be >= the product"),
        (lambda: make_mesh((2.0,), ("x",)), ValueError, "sequence of ints"),
        (lambda: AbstractMesh((2,), ("x",)).update_axis_types({"q": AxisType.Auto}), ValueError, "'q' is not one of"),
    ],
)
def test_errors(make, kind, text):
    with pytest.raises(kind, match=text) as e:
        make()
    assert isinstance(e.value, errors.MeshrtError)


SPECS = [(), ("x",), ("x", None), (("x", "y"), None), (None, ("y",)), ([], "y"), ((), None)]


@pytest.mark.parametrize("entries", SPECS)
def test_specs_equal_jax(entries):
    ours, theirs = P(*entries), JP(*entries)
    assert repr(ours) == repr(theirs)
    assert tuple(ours) == tuple(theirs) and len(ours) == len(theirs)
    assert P(*entries) is ours and pickle.loads(pickle.dumps(ours)) is ours
    assert (ours == ("x",)) is False
    assert repr(ours + P("z")) == repr(theirs + JP("z"))


def test_spec_rules():
    assert repr(P("x", unreduced={"y"})) == repr(JP("x", unreduced={"y"})).replace(", unreduced_kind=sum", "")
    assert repr(P(P.UNCONSTRAINED)) == repr(JP(JP.UNCONSTRAINED))
    assert P("x").update(partitions=("y",)) is P("y") and P("x").index(("x",)) == 0
    for make, text in (
        (lambda: P([["x"]]), "flat tuple"),
        (lambda: P("x", unreduced={"x"}), "both in the partitions"),
        (lambda: P("x", unreduced=("y",)), "`frozenset` or `set`"),
        (lambda: P("x") + ["y"], "__add__"),
        (lambda: P("x", unreduced={"y"})[0], "dangerous"),
        (lambda: type("S", (P,), {}), "prohibited"),
    ):
        with pytest.raises((errors.MeshrtError, TypeError), match=text):
            make()


@pytest.mark.smoke
def test_context(xy):
    from meshrt.sharding import get_abstract_mesh, get_mesh, set_mesh, use_abstract_mesh
    from meshrt.sharding.context import context_source, tracing_mesh

    assert get_mesh().empty and get_abstract_mesh().empty
    with xy as entered:
        assert entered is xy and get_mesh() is xy and get_abstract_mesh() is xy.abstract_mesh
    with set_mesh(xy):
        assert get_mesh() is xy and __file__ in context_source()
        with pytest.raises(ValueError, match="cannot change the size"), use_abstract_mesh(AbstractMesh((3,), ("q",))):
            pass
        with tracing_mesh(xy.abstract_mesh):
            with pytest.raises(errors.MeshContextError, match="get_abstract_mesh"):
                get_mesh()
            with pytest.raises(errors.MeshContextError, match=r"outside of `meshrt.jit`"):
                set_mesh(xy)
    assert get_mesh().empty
    set_mesh(xy)
    assert get_mesh() is xy
    set_mesh(None)
    assert get_mesh().empty
    for bad, text in ((3, "Got 3"), (xy.abstract_mesh, "use_abstract_mesh")):
        with pytest.raises(TypeError, match=text):
            set_mesh(bad)
    with pytest.raises(ValueError, match=r"Manual"):
        set_mesh(xy.update_axis_types({"x": AxisType.Manual}))


def test_mesh_is_dropped_with_its_last_reference():
    import gc
    import weakref

    seen = weakref.ref(NamedSharding(make_mesh((2,), ("gone",)), P("gone")))
    gc.collect()
    assert seen() is None


class Chip:
    platform, process_index, device_kind = "tpu", 0, "TPU v5p"

    def __init__(self, i, coords):
        self.id, self.coords, self.core_on_chip = i, coords, 0


def test_torus_axes_go_to_mesh_axes():
    chips = [Chip(i, c) for i, c in enumerate((x, y, z) for z in range(2) for y in range(4) for x in range(2))]
    mesh = make_mesh((2, 8), ("data", "model"), devices=chips)
    for row in mesh.devices:
        assert len({c.coords for c in row}) == 8 and len({c.coords[0] for c in row} | {c.coords[2] for c in row}) <= 2
        assert len({c.coords[0] for c in row}) == 1 or len({c.coords[2] for c in row}) == 1
    with pytest.raises(errors.UnsupportedError, match="whole physical axes"):
        make_mesh((8, 2), ("a", "b"), devices=[Chip(i, (i % 4, i // 4, 0)) for i in range(16)])
    with pytest.raises(errors.PhysicalMeshError, match="hole"):
        make_mesh((3,), ("a",), devices=[Chip(0, (0, 0, 0)), Chip(1, (1, 0, 0)), Chip(2, (1, 1, 0))])


def test_what_all_axes_are():
    """A mesh without axes is of no kind."""
    kinds = (AxisType.Auto, AxisType.Explicit, AxisType.Manual)
    all_ = lambda m: (m.are_all_axes_auto, m.are_all_axes_explicit, m.are_all_axes_manual)
    assert all_(AbstractMesh((), ())) == (False, False, False)
    for k, kind in enumerate(kinds):
        assert all_(AbstractMesh((2, 4), ("x", "y"), axis_types=(kind,) * 2)) == tuple(i == k for i in range(3))
        mixed = AbstractMesh((2, 4), ("x", "y"), axis_types=(kind, kinds[k - 1]))
        assert all_(mixed) == (False, False, False)
        axes = dict(zip(kinds, (mixed.auto_axes, mixed.explicit_axes, mixed.manual_axes)))
        assert axes == {**dict.fromkeys(kinds, ()), kind: ("x",), kinds[k - 1]: ("y",)}


def test_which_specs_are_empty():
    for ours, theirs in ((P(), JP()), (P(None), JP(None)), (P("x"), JP("x")), (P(unreduced={"x"}), JP(unreduced={"x"})),
                         (P(reduced={"x"}), JP(reduced={"x"}))):  # fmt: skip
        assert bool(ours) == (len(theirs.unreduced | theirs.reduced) > 0 or len(ours.partitions) > 0)
    assert not P() and P("x") and P(None) and P(unreduced={"x"}) and P(reduced={"x"})


def test_a_mesh_of_nothing_is_empty():
    for lib in (meshrt, jax):
        mesh = lib.sharding.Mesh(np.empty((), dtype=object), [])
        assert mesh.empty and mesh.size == 0 and mesh.abstract_mesh.empty and mesh.abstract_mesh.size == 0


@pytest.mark.parametrize("types", ["Auto Auto", "Explicit Auto", "Explicit Explicit", "Manual Explicit", ""])
def test_texts_and_kinds_of_axes_equal_jax(types):
    def program(lib):
        names, kinds = ("x", "y")[: len(types.split())], lib.sharding.AxisType
        devices = np.array(lib.devices()).reshape(4, 2) if types else np.empty((), object)
        spread = lib.sharding.NamedSharding(
            lib.sharding.Mesh(np.array(lib.devices()), ("x",)), lib.sharding.PartitionSpec()
        )
        mesh = lib.sharding.Mesh(devices, names, axis_types=tuple(getattr(kinds, t) for t in types.split()))
        asked = ("auto", "explicit", "manual", "auto_or_manual")
        about = [
            [*(getattr(m, f"_any_axis_{k}") for k in asked), m._are_all_axes_explicit_or_manual]
            for m in (mesh, mesh.abstract_mesh)
        ]
        return repr(mesh), str(mesh), about, repr(spread)

    assert program(meshrt) == program(jax)


def test_what_is_interned_is_made_without_questions(monkeypatch):
    """Each assignment would ask whether the attribute is set, which is most of the time of making a value."""

    def ask(self, name, value):
        raise AssertionError(name)

    monkeypatch.setattr(SetOnce, "__setattr__", ask)
    mesh, spec = Mesh(np.array(meshrt.devices()[:4]), ("unasked",)), P("unasked")
    assert mesh.abstract_mesh.axis_sizes == (4,) and mesh.size == 4
    assert NamedSharding(mesh, spec).shard_shape((8,)) == (2,)
    assert NamedSharding(mesh.abstract_mesh, spec).mesh is mesh.abstract_mesh


def test_what_is_interned_is_not_changed():
    mesh = meshrt.make_mesh((4, 2), ("x", "y"))
    spec, sharding = meshrt.P("x"), meshrt.NamedSharding(mesh, meshrt.P("x"))
    one = meshrt.sharding.SingleDeviceSharding(meshrt.devices()[0])
    places = [
        (mesh, "axis_names"), (mesh, "size"), (mesh, "devices"), (mesh.abstract_mesh, "axis_sizes"),
        (spec, "partitions"), (spec, "unreduced"), (sharding, "spec"), (sharding, "mesh"), (sharding, "memory_kind"),
        (one, "device"),
    ]  # fmt: skip
    for value, name in places:
        before = getattr(value, name)
        with pytest.raises(errors.ImmutableError, match=f"cannot assign to '{name}'"):
            setattr(value, name, None)
        with pytest.raises(errors.ImmutableError, match=f"cannot delete '{name}'"):
            delattr(value, name)
        assert getattr(value, name) is before
        assert copy.copy(value) is value and copy.deepcopy(value) is value
