"""The code made for one structure agrees with the registry, for any structure, and is never used for another one."""

import collections
import copy
import dataclasses
import pickle

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshrt
import meshrt.numpy as jnp
from meshrt import tree_util
from meshrt.pipeline.structures import UNKNOWN, Bare, builder, caller

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Record:
    weight: object
    bias: object
    name: str = "r"


tree_util.register_dataclass(Record, ["weight", "bias"], ["name"])


class Leaf:
    """Has what a caller takes of an Array."""

    def __init__(self, i):
        self.i, self._sig, self._buf = i, f"sig{i % 3}", f"buf{i}"


def _containers(children):
    keys = st.one_of(st.text(max_size=3), st.integers(0, 5), st.tuples(st.integers(0, 2)))
    return st.one_of(
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), children, max_size=3),
        st.dictionaries(st.integers(0, 9), children, max_size=3),
        st.dictionaries(keys.filter(lambda k: isinstance(k, tuple)), children, max_size=3),
        st.tuples(children, children).map(lambda p: Pair(*p)),
        st.tuples(children, children, st.sampled_from("pq")).map(lambda p: Record(*p)),
        children.map(lambda c: collections.OrderedDict(a=c)),
    )


trees = st.recursive(st.one_of(st.just("leaf"), st.none()), _containers, max_leaves=12)


def _with_leaves(tree):
    count = iter(range(10_000))
    return tree_util.tree_map(lambda _: Leaf(next(count)), tree)


@settings(max_examples=300, deadline=None)
@given(st.lists(trees, max_size=3))
def test_reading_and_building_equal_the_registry(args):
    args = tuple(_with_leaves(a) for a in args)
    leaves, tree = tree_util.tree_flatten(args)
    code = caller(tree)
    if code is None:
        assert "OrderedDict" in str(tree)
    else:
        key = code.key(leaves, "version", "mesh")
        assert key[1:] == ("version", "mesh", *(x._sig for x in leaves))
        run = lambda buffers, got: (buffers, [x.i for x in got])
        expected = [x._buf for x in leaves], [x.i for x in leaves]
        for usual, known in ((key, {}), (None, {key: run})):
            call = code.calling(usual, run, known)
            assert call(args, "version", "mesh") == expected
            assert call(args, "another version", "mesh") is UNKNOWN
    built = builder(tree)(leaves)
    assert built == args and tree_util.tree_structure(built) == tree
    assert [type(x) for x in built] == [type(x) for x in args]


@settings(max_examples=300, deadline=None)
@given(st.lists(trees, max_size=2), st.lists(trees, max_size=2))
def test_a_caller_does_not_know_other_structures(first, second):
    first, second = (tuple(_with_leaves(a) for a in args) for args in (first, second))
    trees = tree_util.tree_structure(first), tree_util.tree_structure(second)
    code = caller(trees[0])
    if code is None or trees[0] == trees[1]:
        return
    key = code.key(tree_util.tree_leaves(first), 0, None)
    assert code.calling(key, lambda buffers, leaves: "ran", {})(second, 0, None) is UNKNOWN


def test_a_launch_that_stands_in_the_code():
    class Failed(Exception):
        pass

    class Launched:
        def __init__(self, buffers):
            self.buffers = buffers

        def consume_with_handlers(self, making):
            if self.buffers == ["bad"]:
                raise Failed
            return [(making, self.buffers)]

    class Made:
        pass

    explained = lambda e, leaves: KeyError(type(e).__name__, leaves)  # may be what other structures raise as well
    code = caller(tree_util.tree_structure((0,)))
    x, bad, other = (Leaf(i) for i in range(3))
    bad._buf, bad._sig = "bad", x._sig
    usual = Bare(Launched, ["handler"], "signature", Made, Failed, explained)
    known = {code.key([other], 0, None): lambda buffers, leaves: "another"}
    call = code.calling(code.key([x], 0, None), usual, known)
    out = call((x,), 0, None)
    assert type(out) is Made and (out._buf, out._sig) == ((["handler"], [x._buf]), "signature")
    assert call((other,), 0, None) == "another"
    assert call(([x],), 0, None) is UNKNOWN and call((x,), 1, None) is UNKNOWN
    with pytest.raises(KeyError) as e:
        call((bad,), 0, None)
    assert e.value.args == ("Failed", (bad,)) and e.value.__suppress_context__


def test_very_deep_and_very_wide_structures_have_no_code():
    deep = 1
    for _ in range(60):
        deep = (deep,)
    assert caller(tree_util.tree_structure((deep,))) is None
    assert builder(tree_util.tree_structure(deep))([5]) == deep[:0] + _nest(5, 60)
    assert caller(tree_util.tree_structure(([0] * 5000,))) is None


def _nest(value, depth):
    for _ in range(depth):
        value = (value,)
    return value


def test_calls_with_one_signature_and_many_structures():
    f = meshrt.jit(lambda *args: tree_util.tree_map(lambda x: x + 1, args))
    a, b = jnp.ones(3), jnp.zeros(3)
    calls = [
        (a, b),
        ({"p": a, "q": b},),
        ([a, b],),
        ((a, b),),
        ({"p": a}, b),
        (a, {"q": b}),
        (Pair(a, b),),
        (a, None, b),
    ]
    for _ in range(3):  # the first call compiles, the second makes the code, the third uses it
        for args in calls:
            for _ in range(2):
                out = f(*args)
                assert tree_util.tree_structure(out) == tree_util.tree_structure(args)
                values = [np.asarray(x)[0] for x in tree_util.tree_leaves(out)]
                assert values == [2.0, 1.0]


def test_a_registered_dataclass_and_a_registered_namedtuple():
    @dataclasses.dataclass
    class State:
        w: object
        step: int

    tree_util.register_dataclass(State, ["w"], ["step"])
    Odd = collections.namedtuple("Odd", "x y")
    tree_util.register_pytree_node(Odd, lambda o: ((o.y,), o.x), lambda x, c: Odd(x, c[0]))
    f = meshrt.jit(lambda s, o: (State(s.w * o.y, s.step + 1), o))
    for _ in range(3):
        state, odd = f(State(jnp.full(2, 3.0), 4), Odd("name", jnp.full(2, 2.0)))
        assert (state.step, odd.x) == (5, "name") and float(state.w[0]) == 6.0


@pytest.mark.parametrize("value", [None, (), {}, [], (None,), {"a": ()}])
def test_results_without_arrays(value):
    f = meshrt.jit(lambda x: value)
    for _ in range(3):
        assert f(jnp.ones(2)) == value


def test_settings_and_meshes_change_the_call():
    f = meshrt.jit(lambda x: x / 3)
    x = jnp.ones(2)
    for _ in range(3):
        assert f(x).dtype == np.float32
    with meshrt.config.override(debug_nans=True):
        for _ in range(3):
            with pytest.raises(meshrt.errors.NonFiniteError):
                meshrt.jit(lambda x: x / 0 - x / 0)(x)
            assert f(x).dtype == np.float32


def test_donation_on_the_short_way():
    f = meshrt.jit(lambda t: {k: v + 1 for k, v in t.items()}, donate_argnums=0)
    t = {"a": jnp.zeros(4), "b": jnp.ones(4)}
    for _ in range(5):
        before, t = t, f(t)
    assert float(t["a"][0]) == 5 and float(t["b"][0]) == 6
    with pytest.raises(meshrt.errors.DeletedArrayError, match=r"donated as argument t\['a'\] of"):
        np.asarray(before["a"])
    with pytest.raises(meshrt.errors.DeletedArrayError, match="argument"):
        f(before)
    with pytest.raises(meshrt.errors.ArgumentValueError, match="cannot be used twice"):
        f({"a": t["a"], "b": t["a"]})


def test_scalars_beside_arrays_keep_sign_type_and_weakness():
    x = jnp.arange(3.0)
    for _ in range(3):
        zeros = (0.0 * x, -0.0 * x, False * x, 0 * x, np.float32(0) * x)
        assert [bool(np.signbit(z[1])) for z in zeros] == [False, True, False, False, False]
        assert (2 * jnp.arange(3)).dtype == np.int32 and (2.0 * jnp.arange(3)).dtype == np.float32
        assert (True + jnp.arange(3)).tolist() == [1, 2, 3] and (1.5 + jnp.asarray(1)).weak_type
        assert (np.float16(2) * x).dtype == np.float32 and (jnp.bfloat16(2) * x).dtype == np.float32
    nan = float("nan")
    assert np.isnan(np.asarray(nan * x)).all() and np.isnan(np.asarray(nan * x)).all()
    on_seven = meshrt.device_put(x, meshrt.devices()[7])
    assert (2 * on_seven).devices() == {meshrt.devices()[7]} and (2 * x).devices() == {meshrt.devices()[0]}
    with meshrt.config.override(enable_x64=True):
        wide = jnp.arange(3, dtype="int64")
        assert (2 * wide).dtype == np.int64 and (2**40 * wide).tolist() == [0, 2**40, 2**41]
    with pytest.raises(OverflowError):
        2**40 * jnp.arange(3)


def test_a_donated_scalar_is_not_shared():
    f = meshrt.jit(lambda s, x: (s + 1, x * s), donate_argnums=0)
    for _ in range(3):
        assert float(f(2.0, jnp.ones(2))[0]) == 3.0 and float((2.0 * jnp.ones(1))[0]) == 2.0


def single(lib, k):
    return lib.sharding.SingleDeviceSharding(lib.devices()[k])


# What names the one device that a function runs on.
NAMED = {
    "out_shardings": lambda lib, k: lib.jit(lambda x: x + 1, out_shardings=single(lib, k)),
    "in_shardings": lambda lib, k: lib.jit(lambda x: x + 1, in_shardings=single(lib, k)),
    "device_put": lambda lib, k: lib.jit(lambda x: lib.device_put(x, single(lib, k)) + 1),
    "compiled": lambda lib, k: lambda x: lib.jit(lambda y: y + 1, out_shardings=single(lib, k)).lower(x).compile()(x),
    "nothing": lambda lib, k: lib.jit(lambda x: x + 1),
}


@pytest.mark.parametrize("what", NAMED)
@pytest.mark.parametrize("k", [0, 3])
def test_results_are_committed_to_a_device_that_something_names(what, k):
    for value in (lambda lib: lib.numpy.arange(3), lambda lib: np.arange(3), lambda lib: 1):
        x, y = (NAMED[what](lib, k)(value(lib)) for lib in (meshrt, jax))
        assert x.committed == y.committed == (what != "nothing")
        assert [d.id for d in x.devices()] == [d.id for d in y.devices()]


def test_saved_programs_commit_their_results():
    f = NAMED["device_put"](meshrt, 2)
    compiled = f.lower(np.arange(3)).compile()
    again = meshrt.stages.load(compiled.serialize(), devices=meshrt.devices()[2:3])
    assert again(np.arange(3)).committed and compiled(np.arange(3)).committed


def test_calls_that_are_ready_to_run_are_counted():
    def counted(l):
        f = l.jit(lambda x: x + 1)
        sizes = [f._cache_size()]
        for x in (1.0, 2.0, np.ones(3, np.float32)):
            f(x)
            sizes.append(f._cache_size())
        f.clear_cache()
        return [*sizes, f._cache_size()]

    assert counted(meshrt) == counted(jax) == [0, 1, 1, 2, 0]


def test_equal_parts_of_structures_that_are_not_the_same():
    class Fixed:
        def __init__(self, value):
            self.value = value

    tree_util.register_pytree_node(Fixed, lambda f: ((), f.value), lambda value, _: Fixed(value))
    of = lambda value: meshrt.jit(lambda x: (x, Fixed(value)))(1.0)[1].value
    assert [repr(of(value)) for value in (1.0, True, 1)] == ["1.0", "True", "1"]
    keys = lambda key: next(iter(meshrt.jit(lambda x: {key: x})(1.0)))
    assert [repr(keys(key)) for key in (1.0, True, 1)] == ["1.0", "True", "1"]


def _added(x, n):
    return x + n


def test_jitted_functions_are_copied_and_pickled_with_their_options():
    jitted = meshrt.jit(_added, static_argnums=1)
    for again in (pickle.loads(pickle.dumps(jitted)), copy.deepcopy(jitted), copy.copy(jitted)):
        assert again(1.0, 2) == 3 and again._has_static
