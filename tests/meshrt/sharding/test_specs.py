"""PartitionSpecs as values, beside JAX's: errors, sums and updates, unreduced axes; shardings over abstract meshes."""

import jax
import pytest

import meshrt
from meshrt import errors
from meshrt.sharding import AxisType, NamedSharding, UnreducedKind, make_mesh
from meshrt.sharding import PartitionSpec as P

JP = jax.sharding.PartitionSpec


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: P("x", unreduced=["y"]), TypeError, "`frozenset` or `set`"),
        (lambda: P("x", reduced=("y",)), TypeError, "`frozenset` or `set`"),
        (lambda: P(unreduced={None}), ValueError, "unreduced cannot contain None"),
        (lambda: P(reduced={None}), ValueError, "reduced cannot contain None"),
        (lambda: P("x", unreduced={"x"}), ValueError, "partitions cannot overlap with unreduced"),
        (lambda: P(("x", "y"), reduced={"y"}), ValueError, "partitions cannot overlap with reduced"),
        (lambda: P(unreduced={"x"}, reduced={"x"}), ValueError, "`unreduced` and `reduced` argument to PartitionSpec"),
        (lambda: P("x", unreduced={"y"})[0], ValueError, "is dangerous when PartitionSpec has non-empty"),
        (lambda: [*P("x", reduced={"y"})], ValueError, "is dangerous when PartitionSpec has non-empty"),
        (lambda: P("x", unreduced={"y"}) + ("z",), TypeError, "`__add__`"),
        (lambda: ("z",) + P("x", reduced={"y"}), TypeError, "`__radd__`"),
    ],
)  # fmt: skip
def test_spec_errors_are_of_the_kinds_of_jax(make, kind, text):
    with pytest.raises(kind):
        make.__globals__["P"], make.__globals__["P"] = None, JP
        try:
            make()
        finally:
            make.__globals__["P"] = meshrt.P
    with pytest.raises(kind, match=text) as e:
        make()
    assert isinstance(e.value, errors.MeshrtError)


def test_specs_add_and_change_as_in_jax():
    for ours, theirs in (
        (P("x") + P("y"), JP("x") + JP("y")),
        (P("x") + ("y", None), JP("x") + ("y", None)),
        (("y", None) + P("x"), ("y", None) + JP("x")),
        (P("x", unreduced={"y"}) + P("z"), JP("x", unreduced={"y"}) + JP("z")),
        (P("x", unreduced={"y"}).update(partitions=("z",)), JP("x", unreduced={"y"}).update(partitions=("z",))),
        (P("x", unreduced={"y"}).update(unreduced=set()), JP("x", unreduced={"y"}).update(unreduced=set())),
        (P("x", unreduced={"y"}, reduced={"z"}).to_ct_spec(), JP("x", unreduced={"y"}, reduced={"z"}).to_ct_spec()),
        (P("x", reduced={"z"}).to_tangent_spec(), JP("x", reduced={"z"}).to_tangent_spec()),
    ):
        assert ours.partitions == theirs.partitions and ours.unreduced == theirs.unreduced
        assert ours.reduced == theirs.reduced
    assert P("x").to_lo() == [P("x")] and P("x", unreduced={"y"}).index("x") == 0


def test_kinds_of_unreduced_axes():
    largest = P("x", unreduced={"y"}, unreduced_kind=UnreducedKind.max)
    assert largest is not P("x", unreduced={"y"}) and P("x", unreduced={"y"}).unreduced_kind is UnreducedKind.sum
    assert P("x").unreduced_kind is None and repr(largest) == "P('x', unreduced={'y'}, unreduced_kind=max)"
    assert largest.update(partitions=(None,)).unreduced_kind is UnreducedKind.max
    assert largest.update(unreduced=set()) is P("x") and (largest + P("z")).unreduced_kind is UnreducedKind.max
    for make, kind, text in (
        (lambda: P("x", unreduced={"y"}, unreduced_kind="max"), TypeError, "UnreducedKind"),
        (lambda: P("x", unreduced_kind=UnreducedKind.max), ValueError, "unreduced is empty"),
        (lambda: largest + P("z", unreduced={"w"}), ValueError, "two kinds"),
    ):
        with pytest.raises(kind, match=text):
            make()


def test_shardings_over_abstract_meshes_and_partial_values():
    explicit = make_mesh((2, 2), ("x", "y"), AxisType.Explicit)
    partial = NamedSharding(explicit, P("x", unreduced={"y"}))
    assert not partial.is_fully_replicated and partial.replicated_axes == frozenset()
    assert NamedSharding(explicit, P("x", reduced={"y"})).replicated_axes == frozenset()
    assert NamedSharding(make_mesh((1,), ("x",), AxisType.Explicit), P(unreduced={"x"})).is_fully_replicated
    abstract = NamedSharding(explicit.abstract_mesh, P("x"))
    for name in ("device_set", "_device_assignment", "is_fully_addressable", "addressable_devices"):
        with pytest.raises(ValueError, match=f"{name} is not implemented for `meshrt.sharding.AbstractMesh`"):
            getattr(abstract, name)
    for name in ("devices", "device_ids", "local_devices", "local_mesh", "is_multi_process", "__enter__"):
        with pytest.raises(ValueError, match=f"AbstractMesh does not implement {name}"):
            value = getattr(explicit.abstract_mesh, name)
            value()
    with pytest.raises(errors.RankMismatchError, match=r"For scalars the PartitionSpec should be P\(\)"):
        abstract.check_compatible_aval(())
