"""Shardings, judged by JAX's on the same meshes, specs and shapes, and by MLIR's parser for their text."""

import itertools
import pickle

import jax
import numpy as np
import pytest

import meshrt
from meshrt import errors
from meshrt.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    SingleDeviceSharding,
    make_mesh,
    mesh_to_sdy_text,
    spec_from_sdy,
    spec_from_sdy_text,
    to_sdy_text,
)
from meshrt.sharding import PartitionSpec as P
from meshrt.xla import jaxlib_api

ENTRIES = [None, "x", "y", ("x", "y"), ("y", "x")]
SPECS = [s for n in range(3) for s in itertools.product(ENTRIES, repeat=n)
         if len(set(f := [a for e in s if e for a in ([e] if isinstance(e, str) else e)])) == len(f)]  # fmt: skip
ORDERS = [list(range(8)), [3, 1, 2, 0, 7, 5, 6, 4]]


def pair(order, spec, shape=(4, 2)):
    ours = Mesh(np.array([meshrt.devices()[i] for i in order]).reshape(shape), ("x", "y"))
    theirs = jax.sharding.Mesh(np.array([jax.devices()[i] for i in order]).reshape(shape), ("x", "y"))
    return NamedSharding(ours, P(*spec)), jax.sharding.NamedSharding(theirs, jax.sharding.PartitionSpec(*spec))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("spec", SPECS)
def test_layout_equals_jax(order, spec):
    ours, theirs = pair(order, spec)
    shape = (16, 24)
    assert ours.shard_shape(shape) == theirs.shard_shape(shape)
    assert ours.is_fully_replicated == theirs.is_fully_replicated and ours.num_devices == theirs.num_devices
    mine = {d.id: i for d, i in ours.devices_indices_map(shape).items()}
    assert mine == {d.id: i for d, i in theirs.devices_indices_map(shape).items()}
    tiles = ours.tile_indices(2)
    hlo = jaxlib_api.hlo_sharding(8, ours.tiling(2), tiles)
    wanted = theirs._to_xla_hlo_sharding(2)
    # Both kinds of text are XLA's own for the same assignment of tiles to devices.
    assert hlo.is_replicated() == wanted.is_replicated()
    if not hlo.is_replicated():
        assert list(hlo.tile_assignment_dimensions()) == list(wanted.tile_assignment_dimensions())
        assert list(hlo.tile_assignment_devices()) == list(wanted.tile_assignment_devices())


def test_equivalence_agrees_with_jax():
    all_pairs = [pair(o, s, shape) for o in ORDERS for s in SPECS[::3] for shape in ((4, 2), (2, 4), (8, 1))]
    for (a, ja), (b, jb) in itertools.product(all_pairs[:24], all_pairs):
        assert a.is_equivalent_to(b, 2) == ja.is_equivalent_to(jb, 2), (a, b)


def test_named_sharding_over_an_abstract_mesh():
    mesh = make_mesh((4, 2), ("x", "y"), AxisType.Auto)
    s = NamedSharding(mesh.abstract_mesh, P("x"))
    assert s is NamedSharding(AbstractMesh((4, 2), ("x", "y")), P("x")) is NamedSharding(mesh, P("x")).abstract()
    assert s.shard_shape((8, 3)) == (2, 3) and s.num_devices == 8 and not s.is_concrete
    assert pickle.loads(pickle.dumps(s)) is s and s.replicated_axes == {"y"}
    assert s.is_equivalent_to(NamedSharding(mesh.abstract_mesh, P("x", None)), 2)
    for attribute in ("device_set", "device_assignment", "addressable_devices", "is_fully_addressable"):
        with pytest.raises(errors.MeshError, match="no devices"):
            getattr(s, attribute)


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda m: NamedSharding(m, P("q")), errors.UnknownAxisError, "Resource axis: q of P\\('q',\\) is not found"),
        (lambda m: NamedSharding(m, P("x", "x")), errors.DuplicateAxisError, "duplicate entries for `x`"),
        (lambda m: NamedSharding(m, ("x",)), TypeError, "Write P"),
        (lambda m: NamedSharding("m", P("x")), TypeError, "must be a Mesh"),
        (lambda m: NamedSharding(m, P("x", unreduced={"y"})), errors.ShardingError, "refer to mesh axes that are"),
        (lambda m: NamedSharding(m, P("x", "y")).shard_shape((8,)), errors.RankMismatchError, "rank at least 2"),
        (lambda m: NamedSharding(m, P(("x", "y"))).shard_shape((12,)), errors.IndivisibleError,
         r"array axis 0 is partitioned 8 times.*but the dimension size is 12.*Make the dimension 8 or 16"),
        (lambda m: SingleDeviceSharding(3), TypeError, "takes a device"),
    ],
)  # fmt: skip
def test_errors(make, kind, text):
    with pytest.raises(kind, match=text) as e:
        make(make_mesh((4, 2), ("x", "y"), AxisType.Auto))
    assert isinstance(e.value, errors.MeshrtError)


def test_single_device():
    device = meshrt.devices()[3]
    s = SingleDeviceSharding(device)
    assert s is SingleDeviceSharding(device) is pickle.loads(pickle.dumps(s))
    assert s.shard_shape((3, 5)) == (3, 5) and s.is_fully_replicated and s.device_set == {device}
    one = NamedSharding(make_mesh((1,), ("x",), devices=[device]), P("x"))
    assert s.is_equivalent_to(one, 2) and one.is_equivalent_to(s, 2)


@pytest.mark.parametrize("spec", [P(), P("x"), P(None, ("y", "x")), P(P.UNCONSTRAINED, "x"), P(None, None, "y")])
def test_sdy_text_round_trip(spec):
    mesh = AbstractMesh((4, 2), ("x", "y"))
    text = to_sdy_text(NamedSharding(mesh, spec), 3, "m")
    name, back = spec_from_sdy_text(text)
    assert name == "m" and back.padded(3) == spec.padded(3)
    module = jaxlib_api.parse(
        f"module {{ sdy.mesh @m = {mesh_to_sdy_text(mesh)}\n"
        f"func.func @f(%a: tensor<8x8x8xf32> {{sdy.sharding = {text}}}) {{ return }} }}"
    )
    (arg,) = module.body.operations[1].arg_attrs
    assert spec_from_sdy_text(str(arg["sdy.sharding"]))[1].padded(3) == spec.padded(3)


def test_sdy_edges():
    assert to_sdy_text(P("x"), 2) == '#sdy.sharding<@mesh, [{"x"}, {}]>'
    assert spec_from_sdy([(["x"], False), ([], True)]) is P("x", P.UNCONSTRAINED)
    assert spec_from_sdy_text('#sdy.sharding<@mesh, [{"a", "b", ?}p0, {}], replicated={"c"}, unreduced={"d"}>') == (
        "mesh",
        P(("a", "b"), None, unreduced={"d"}),
    )
    with pytest.raises(errors.UnsupportedError, match="a part of axis 'x'"):
        spec_from_sdy_text('#sdy.sharding<@mesh, [{"x":(1)2}]>')
    for bad in (
        "",
        "#sdy.sharding<@mesh>",
        '#sdy.sharding<@m, [{"x]>',
        "#sdy.sharding<@m, [{x}]>",
        "#sdy.sharding<@m, [q]>",
    ):
        with pytest.raises(errors.ShardingError):
            spec_from_sdy_text(bad)
    with pytest.raises(errors.UnsupportedError, match="named by strings"):
        to_sdy_text(P(3), 1)


def test_partial_sums_are_not_replicated():
    mesh = AbstractMesh((4, 1), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    replicated = {P(): True, P("x"): False, P("y"): True, P(None, "y"): True, P(unreduced={"x"}): False,
                  P("y", unreduced={"x"}): False, P(reduced={"x"}): True}  # fmt: skip
    for spec, expected in replicated.items():
        assert NamedSharding(mesh, spec).is_fully_replicated == expected, spec


@pytest.mark.parametrize("spec", ["P('x', None)", "P(('x', 'y'), P.UNCONSTRAINED)", "P(None, 'y', unreduced={'x'})"])
def test_shardys_form_equals_jax(spec):
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    def program(lib):
        kind = lib.sharding.AxisType.Explicit if "unreduced" in spec else lib.sharding.AxisType.Auto
        mesh = lib.make_mesh((4, 2), ("x", "y"), (kind,) * 2)
        found = lib.sharding.NamedSharding(mesh, eval(spec, {"P": lib.sharding.PartitionSpec}))._to_sdy_sharding(3)
        with ir.Context() as context:
            sdy.register_dialect(context)
            return repr(found), [(d.axes, d.is_open) for d in found.dim_shardings], str(found.build({}))

    assert program(meshrt) == program(jax)


def test_an_axis_used_twice_has_jaxs_name():
    with pytest.raises(meshrt.errors.DuplicateSpecError, match="has duplicate entries for `x`"):
        meshrt.sharding.NamedSharding(meshrt.make_mesh((8,), ("x",)), meshrt.sharding.PartitionSpec("x", "x"))


@pytest.mark.parametrize("slots", [None, (), ("note",)])
def test_subclasses(slots):
    """With room for attributes of their own, and without."""
    cls = type("Mine", (NamedSharding,), {} if slots is None else {"__slots__": slots})
    made = cls(AbstractMesh((7,), (f"of {slots}",)), P(f"of {slots}"))
    assert type(made) is cls and made.shard_shape((14, 3)) == (2, 3)
    if slots != ():
        made.note = 3
        assert made.note == 3
    with pytest.raises(errors.ImmutableError):
        made.spec = P()
