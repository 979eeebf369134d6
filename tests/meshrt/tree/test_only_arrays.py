"""Classes of users' whose registration makes them of arrays only: no placeholder reaches them. Beside JAX."""

from __future__ import annotations

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy
from meshrt import errors

VALUE = np.arange(32, dtype=np.float32).reshape(8, 4)


class Side:
    """A library, two meshes of it, and a class that it knows, which takes nothing but its arrays."""

    def __init__(self, lib):
        self.lib, self.np, self.P = lib, lib.numpy, lib.P
        auto, explicit = lib.sharding.AxisType.Auto, lib.sharding.AxisType.Explicit
        self.mesh = lib.make_mesh((4, 2), ("x", "y"), axis_types=(auto, auto))
        self.explicit = lib.make_mesh((4, 2), ("x", "y"), axis_types=(explicit, explicit))

        class Pair:
            def __init__(self, a, b):
                for x in (a, b):
                    if not isinstance(x, lib.Array | np.ndarray):
                        raise TypeError(f"{x!r} is no array")
                self.a, self.b = a, b

        lib.tree_util.register_pytree_node(Pair, lambda p: ((p.a, p.b), None), lambda _, parts: Pair(*parts))
        self.Pair = Pair

    def pair(self, rows=8):
        return self.Pair(self.np.asarray(VALUE[:rows]), self.np.asarray(VALUE))

    def changed(self, p):
        return self.Pair(p.a * 2, p.b + 1)

    def split(self, *spec, mesh=None):
        return self.lib.NamedSharding(mesh or self.mesh, self.P(*spec))

    def mapped(self, p, **given):
        given = {"mesh": self.mesh, "in_specs": self.P("x"), "out_specs": self.P("x"), **given}
        return self.lib.shard_map(self.changed, **given)(p)


def jitted(**options):
    """A jitted call; options are axes of shardings, or tuples of them for each argument."""

    def call(s):
        given = {
            k: tuple(s.split(a) for a in axes) if isinstance(axes, tuple) else s.split(axes)
            for k, axes in options.items()
        }
        return s.lib.jit(s.changed, **given)(s.pair())

    return call


def on_types(s):
    with s.lib.set_mesh(s.explicit):
        x = s.lib.device_put(VALUE, s.split("x", mesh=s.explicit))
        return s.lib.jit(s.lib.shard_map(s.changed, out_specs=s.P("x"), axis_names={"x", "y"}))(s.Pair(x, x))


def in_auto_mode(s):
    with s.lib.set_mesh(s.explicit):
        x = s.lib.device_put(VALUE, s.split("x", mesh=s.explicit))
        return s.lib.sharding.auto_axes(s.changed, out_sharding=s.P("x"))(s.Pair(x, x))


def staged(s):
    stage = s.lib.jit(s.changed, in_shardings=s.split("x"), out_shardings=s.split("y")).lower(s.pair())
    return stage.compile()(s.pair())


def donated(s):
    given = s.Pair(*s.lib.device_put([VALUE, VALUE + 1], s.split("x")))
    options = {"donate_argnums": 0, "in_shardings": s.split("x"), "out_shardings": s.split("x")}
    return s.lib.jit(s.changed, **options)(given), given.a.is_deleted()


USES = {
    "in_shardings": jitted(in_shardings="x"),
    "in_shardings in a tuple": jitted(in_shardings=("x",)),
    "out_shardings": jitted(out_shardings="x"),
    "both": jitted(in_shardings="y", out_shardings="x"),
    "beside a dict": lambda s: s.lib.jit(
        lambda p, d: (s.changed(p), d["k"]),
        in_shardings=(s.split("x"), {"k": s.split("y")}), out_shardings=(s.split("y"), s.split()),
    )(s.pair(), {"k": s.np.asarray(VALUE)}),
    "nested": lambda s: s.lib.jit(
        lambda p: s.lib.jit(s.changed, in_shardings=s.split("x"), out_shardings=s.split("y"))(p)
    )(s.pair()),
    "ahead of time": staged,
    "donated": donated,
    "shard_map": lambda s: s.mapped(s.pair()),
    "shard_map in jit": lambda s: s.lib.jit(s.mapped)(s.pair()),
    "specs in a tuple": lambda s: s.mapped(s.pair(), in_specs=(s.P("x"),)),
    "specs of types": on_types,
    "auto_axes": in_auto_mode,
    "vmap": lambda s: s.lib.vmap(s.changed)(s.pair()),
    "vmap with axes": lambda s: s.lib.vmap(s.changed, in_axes=(0,), out_axes=1)(s.pair()),
    "pmap": lambda s: s.lib.pmap(s.changed)(s.pair()),
    "pmap with axes": lambda s: s.lib.pmap(s.changed, in_axes=(0,), out_axes=0)(s.pair()),
    "device_put": lambda s: s.lib.device_put(s.pair(), s.split("x")),
    "constrained": lambda s: s.lib.jit(lambda p: s.lib.lax.with_sharding_constraint(p, s.split("x")))(s.pair()),
    "does not divide": lambda s: s.lib.jit(s.changed, in_shardings=s.split("x"))(s.pair(7)),
    "result does not divide": lambda s: s.lib.jit(s.changed, out_shardings=s.split("x"))(s.pair(7)),
    "lies elsewhere": lambda s: s.lib.jit(s.changed, in_shardings=s.split("x"))(
        s.Pair(s.lib.device_put(VALUE, s.split("y")), s.np.asarray(VALUE))
    ),
    "lie apart": lambda s: s.lib.jit(lambda p: p.a + p.b)(
        s.Pair(*(s.lib.device_put(VALUE, d) for d in s.lib.devices()[:2]))
    ),
    "pmap of sizes that differ": lambda s: s.lib.pmap(s.changed)(s.pair(3)),
    "other structure": lambda s: s.lib.jit(s.changed).lower(s.pair()).compile()([VALUE, VALUE]),
}  # fmt: skip


def found_by(use, s):
    try:
        out, structure = s.lib.tree_util.tree_flatten(use(s))
    except (TypeError, ValueError) as e:
        return next(k.__name__ for k in type(e).__mro__ if k.__module__ == "builtins"), "no array" in str(e)
    spec = lambda x: str(getattr(x.sharding, "spec", None)).replace("_internal_pmap_axis_name", "_pmap_axis")
    return [(spec(x), x.committed, x.tolist()) if hasattr(x, "sharding") else x for x in out], structure.num_leaves


@pytest.fixture(scope="module")
def sides():
    return Side(meshrt), Side(jax)


@pytest.mark.parametrize("name", USES)
def test_they_are_used_as_in_jax(name, sides):
    """Where JAX's own placeholders reach the class, ours do not."""
    ours, theirs = (found_by(USES[name], s) for s in sides)
    assert ours[1] is not True and (ours == theirs or theirs == ("TypeError", True))


# JAX fails in the class of the user's for these, and says nothing of what is wrong.
BAD = {
    "a tuple of two": (
        lambda s: s.lib.jit(s.changed, in_shardings=(s.split("x"), s.split("y")))(s.pair()), errors.TreeError,
        "a tuple or list of length 2 for an args tuple of length 1",
    ),
    "a list for it": (
        lambda s: s.lib.jit(s.changed, in_shardings=([s.split("x"), s.split("y")],))(s.pair()), errors.TreeError,
        r"in_shardings\[0\]\n.*the first has a list of 2 children, the second a Pair of 2 children\n.*is for p of",
    ),
    "a list for the result": (
        lambda s: s.lib.jit(s.changed, out_shardings=[s.split("x")])(s.pair()), errors.TreeError,
        "the first has a list of 1 child, the second a Pair of 2 children",
    ),
    "specs in a dict": (
        lambda s: s.mapped(s.pair(), out_specs={"k": s.P("x")}), errors.TreeError,
        "the first has a dict with the key 'k', the second a Pair of 2 children",
    ),
    "a result that varies": (
        lambda s: s.mapped(s.pair(), out_specs=s.P()), errors.ReplicationError, r"changed\(\*args\)\[<flat index 1>\]",
    ),
    "an argument that does not divide": (
        lambda s: s.mapped(s.pair(7)), errors.IndivisibleError, "of size 7",
    ),
    "axes in a list": (
        lambda s: s.lib.vmap(s.changed, in_axes=([0, 0],))(s.pair()), errors.TreeError,
        r"in_axes\[0\]\n.*a list of 2 children, the second a Pair of 2 children",
    ),
    "axes of a result in a list": (
        lambda s: s.lib.vmap(s.changed, out_axes=[0, 0])(s.pair()), errors.TreeError,
        "a list of 2 children, the second a Pair",
    ),
    "an axis that a result has not": (
        lambda s: s.lib.pmap(s.changed, out_axes=3)(s.pair()), errors.AxisError, r"result\[<flat index 0>\]",
    ),
    "another structure": (
        lambda s: s.lib.jit(s.changed).lower(s.pair()).compile()({"a": VALUE}), errors.ArgumentTypeError,
        r"at args\[0\], seen a <class.*Pair'> but now given a <class 'dict'>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_told(name, sides):
    use, kind, text = BAD[name]
    with pytest.raises(kind, match=text):
        use(sides[0])


def test_why_a_call_of_another_structure_is_not_known(sides):
    s = sides[0]
    step = meshrt.jit(lambda x: meshrt.tree_util.tree_leaves(x)[0] * 2)
    step(s.pair())
    assert "Pair" in str(meshrt.explain_cache_miss(step)([VALUE, VALUE]))


class Record(dict):
    """A dict that is registered by somebody, whose metadata are not its keys."""


meshrt.tree_util.register_pytree_node(Record, lambda r: (tuple(r.values()), None), lambda _, v: Record(zip("ab", v)))

RECORDS = {
    "prefix": (lambda r: meshrt.vmap(lambda r: r, in_axes=(Record(a=0),))(r), "Record of 1 child, the second one of 2"),
    "type": (lambda r: meshrt.vmap(lambda r: r, in_axes=({"a": 0},))(r), "the second a Record of 2 children"),
    "below": (lambda r: meshrt.vmap(lambda r: r, in_axes=(Record(a=0, b=[0]),))(r), "a list of 1 child"),
    "call": (
        lambda r: meshrt.jit(lambda r: r).lower(r).compile()(Record(a=VALUE)), "Record'> with 2 children but now given",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_of_classes_derived_from_dict_the_metadata_may_be_anything(name):
    use, text = RECORDS[name]
    with pytest.raises((errors.TreeError, errors.ArgumentTypeError), match=text):
        use(Record(a=VALUE, b=VALUE))
