"""Programs written in JAX: their StableHLO, XLA's partitioning of them, and their values on one device."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import collectives
import propagation

from . import harness, rounding

__all__ = ["Case", "agree", "check", "jax_mesh"]


def jax_mesh(axes: dict[str, int]):
    """A JAX mesh of virtual CPU devices; skips the test if JAX was started with fewer."""
    n = math.prod(axes.values())
    try:
        jax.config.update("jax_num_cpu_devices", 8)
    except RuntimeError:
        pass  # JAX's devices exist already; how many is checked next
    if len(jax.devices("cpu")) < n:
        pytest.skip(f"JAX was started with {len(jax.devices('cpu'))} CPU devices, {n} are needed")
    devices = np.array(jax.devices("cpu")[:n]).reshape(tuple(axes.values()))
    return jax.sharding.Mesh(devices, tuple(axes))


class Case:
    """`build(constrain)` gives the function; `args` are arrays, `ins` and `outs` PartitionSpecs in the same trees."""

    def __init__(self, axes: dict[str, int], build, args, ins, outs=None):
        self.mesh = jax_mesh(axes)
        is_spec = lambda x: isinstance(x, PartitionSpec)
        named = lambda tree: jax.tree.map(lambda s: NamedSharding(self.mesh, s), tree, is_leaf=is_spec)
        self.args = args
        constrain = lambda x, *spec: jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, PartitionSpec(*spec)))
        out = None if outs is None else named(outs)
        jitted = jax.jit(build(constrain), in_shardings=named(ins), out_shardings=out, keep_unused=True)
        self.lowered = jitted.lower(*args)
        self.plain = build(lambda x, *spec: x)
        self.one = jax.jit(self.plain)

    @property
    def text(self) -> str:
        return self.lowered.as_text(debug_info=True)

    def expected(self):
        return [np.asarray(x) for x in jax.tree.leaves(self.one(*self.args))]

    def xla(self):
        """(bytes per device, counts) of XLA's own partitioning."""
        return harness.hlo_bytes(self.lowered.compile().as_text(), self.mesh.size)


def agree(
    got: np.ndarray, expected: np.ndarray, rtol: float, atol: float | None = None, exact: bool = False, bound=None
) -> None:
    """Whole numbers agree exactly, others within `rtol` (of the largest, or `atol`) or, if `exact`, to the last bit.

    `bound` is that of each element by itself (`rounding`), where it has one: within `rtol` of the largest a small
    element would not be checked at all.
    """
    assert got.dtype == expected.dtype and got.shape == expected.shape
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, expected)
    elif exact:
        bits = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (got, expected))
        np.testing.assert_array_equal(*bits)
    else:
        g, e = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (got, expected))
        sizes = np.abs(e)
        scale = float(np.max(sizes, where=np.isfinite(sizes), initial=0.0))
        near = rtol * scale if atol is None else atol
        np.testing.assert_allclose(g, e, rtol=rtol, atol=near)
        if bound is not None:
            finite = np.isfinite(sizes) & np.isfinite(bound)
            with np.errstate(invalid="ignore"):  # infinities are compared above
                worst = np.max(np.abs(g - e) - bound, where=finite, initial=0.0)
            assert worst <= 0, _apart(g, e, np.where(finite, bound, np.inf))


def _apart(got: np.ndarray, expected: np.ndarray, bound: np.ndarray) -> str:
    """The element that is farthest beyond its bound."""
    over = np.abs(got - expected) / np.maximum(bound, 1e-300)
    at = tuple(int(i) for i in np.unravel_index(np.nanargmax(over), over.shape))
    return f"element {at} is {got[at]}, not {expected[at]}: off by {over[at]:.3g} times what rounding may do"


FEW_ROUNDINGS = 16


def _within_few_roundings(got: np.ndarray, expected: np.ndarray) -> bool:
    """Whether every element, the small ones too, is within a few units of its own last place of what is expected."""
    if expected.dtype.kind in "biu":
        return True  # compared bit by bit
    size = np.abs(expected.astype(np.complex128 if expected.dtype.kind == "c" else np.float64))
    eps = float(jnp.finfo(expected.dtype).eps)
    with np.errstate(invalid="ignore"):
        same = (got == expected) | ((got != got) & (expected != expected))
        return bool(np.all(same | (np.abs(got - expected) <= FEW_ROUNDINGS * eps * size)))


def check(case: Case, rtol=2e-5, atol=None, above_xla=False, exact=False, **options):
    """Partitions, runs on virtual devices, compares with one device and with XLA's bytes; returns (result, bytes).

    `exact` is for programs that only move elements: every bit is compared.
    """
    result = collectives.partition(propagation.run(case.text), **options)
    flat = [np.asarray(a) for a in jax.tree.leaves(case.args)]
    expected = case.expected()
    got, compiled = harness.run_partitioned(result, flat, [e.shape for e in expected])
    # The analysis is a program of its own to compile: it is asked where elements are apart by more than few roundings.
    is_rounded = not exact and not all(map(_within_few_roundings, got, expected))
    limits = rounding.bounds(case.plain, case.args, rtol) if is_rounded else [None] * len(expected)
    for g, e, bound in zip(got, expected, limits, strict=True):
        agree(g, e, rtol, atol, exact, bound)
    sent, _ = harness.hlo_bytes(compiled.hlo(), case.mesh.size)
    if not above_xla:
        theirs, _ = case.xla()
        assert sent <= theirs * 1.0001 + 1, f"{sent} bytes per device, XLA sends {theirs}\n{result.plan.as_text()}"
    return result, sent
