"""Bodies of eager calls that ask for values: what JAX gives, which runs such bodies operation by operation."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
from meshrt import errors
from tests.meshrt.shard_map.libraries import ours, same, theirs

A = np.random.RandomState(0).randn(8, 4).astype(np.float32)
W = np.random.RandomState(1).randn(4, 4).astype(np.float32)


def branch(L, a, w):
    return a * 2 if L.lax.psum(a, "x").sum() > 0 else -a


def several(L, a, w):
    a = a + 1 if w.sum() > 0 else a - 1
    return a * 2 if L.lax.pmax(L.lax.axis_index("x"), "x") == 3 else a


def counted(L, a, w):
    n = 0
    while L.lax.pmax(a.max(), "x") < 4:
        a, n = a * 2, n + 1
    return a + n


def derived(L, a, w):
    return a @ L.grad(lambda w: (w * w).sum() if w[0, 0] > 0 else w.sum())(w)


BODIES = {f.__name__: f for f in (branch, several, counted, derived)}


def mapped(L, body, **changes):
    settings = {"mesh": L.mesh((4, 2), ("x", "y")), "in_specs": (L.P("x"), L.P()), "out_specs": L.P("x"), **changes}
    return L.shard_map(lambda a, w: body(L, a, w), **settings)


@pytest.mark.parametrize("name", BODIES)
def test_values_that_are_the_same_on_all_devices_are_known(name):
    mine, judge = (mapped(L, BODIES[name]) for L in (ours(), theirs()))
    for args in ((A, W), (-A, -W)):
        same(mine(*args), judge(*args), 1e-4)


def test_what_differs_or_is_in_a_program_is_not_known():
    for L in (theirs(), ours()):
        with pytest.raises(TypeError):
            mapped(L, lambda L, a, w: a if a.sum() > 0 else -a)(A, W)
        with pytest.raises(TypeError):
            L.jit(mapped(L, branch))(A, W)
    with pytest.raises(
        errors.ConcretizationError, match=r"test_values.py.*differ between devices along 'x', as its type"
    ):
        mapped(ours(), lambda L, a, w: a if a.sum() > 0 else -a)(A, W)
    with pytest.raises(errors.ConcretizationError, match="as check_vma=False says"):
        mapped(ours(), lambda L, a, w: a if w.sum() > 0 else -a, check_vma=False)(A, W)


def test_reading_runs_nothing_twice_that_shows(capfd):
    def body(L, a, w):
        meshrt.debug.print("sum {s}", s=w.sum(), ordered=False)
        return a if w.sum() > -1e9 else -a

    f = mapped(ours(), body)
    for _ in range(2):
        same(f(A, W), A)
        meshrt.effects_barrier()
        assert capfd.readouterr().out.count("sum ") == 8


def test_captured_arrays_and_the_mesh_in_context():
    L = ours()
    mesh, scale = L.mesh((4, 2), ("x", "y"), "Explicit"), meshrt.numpy.float32(3)
    with L.set_mesh(mesh):
        f = L.shard_map(lambda a: a * scale if scale * L.lax.psum(a.sum(), "x") > -1e9 else a, out_specs=L.P("x"))
        out = f(L.device_put(A, L.P("x")))
    same(out, A * 3)
    assert out.sharding == L.NamedSharding(mesh, L.P("x", None))
    number = mapped(L, lambda L, a, w: a * int(L.lax.psum(1.0, "x") + 0 * w[0, 0]) + float(w.sum()))(A, W)
    same(number, A * 4 + W.sum(), 1e-4)


@pytest.mark.parametrize("settings", [{}, {"check_vma": False, "in_specs": None}], ids=["types", "no types"])
def test_bodies_print_what_devices_hold(settings, capfd):
    """At every call outside of programs; a program for all calls prints types."""

    def body(L, a, w):
        print("block", a[:1], [w[0, :2]])
        print(f"{L.lax.psum(a.sum(), 'x'):}")
        L.jit(lambda a: print("inside", a.shape))(a)
        return a * 2

    told = []
    for L in (theirs(), ours()):
        f = mapped(L, body, **({**settings, "in_specs": (L.P("x"), L.P(None, "y"))} if settings else {}))
        printed = []
        for scale in (1, 2):
            out = f(np.arange(32, dtype=np.float32).reshape(8, 4) * scale, W)
            printed.append(capfd.readouterr().out)
        same(out, np.arange(32, dtype=np.float32).reshape(8, 4) * 4)
        told.append([text.replace("inside (2, 4)\n", "") for text in printed])
    assert told[0] == told[1]
    assert "mesh coordinates (x, y,) = (3, 1):\n[[48. 50. 52. 54.]]" in told[1][1]
    ours().jit(mapped(ours(), body))(A, W)
    assert "JitTracer" in (text := capfd.readouterr().out) and "coordinates" not in text


def test_a_body_that_prints_nothing_stays_one_program():
    calls = []

    def body(L, a, w):
        calls.append(1)
        return a * 2

    f = mapped(ours(), body)
    for _ in range(3):
        f(A, W)
    assert len(calls) == 1
