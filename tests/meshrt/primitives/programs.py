"""The program that judges one case: the same Python code over meshrt and over JAX, as one compilation each."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshrt.lax

try:
    from jax._src.random import prng, threefry2x32
except ImportError:  # before and after they shared a package
    from jax._src import prng

    threefry2x32 = prng
from meshrt import api, dtypes
from meshrt.core.types import aval_of
from meshrt.primitives import random, threefry
from meshrt.transforms.vmap import vmap
from tests.meshrt.primitives.cases import F32, Case

BATCH = 3


def _our_data(x: Any) -> Any:
    return random.random_unwrap(x) if aval_of(x).is_key else x


def _their_data(x: Any) -> Any:
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


class Namespace:
    """A `lax` namespace with the functions of keys beside it, which the two libraries keep elsewhere."""

    def __init__(self, lax: Any, **functions: Any):
        self._lax = lax
        self.__dict__.update(functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lax, name)


THREEFRY = dtypes.KEY_IMPLS["threefry2x32"]
OURS_LAX = Namespace(
    meshrt.lax, wrap=lambda data: random.random_wrap(data, THREEFRY),
    random_seed=lambda s: random.random_seed(s, THREEFRY),
    random_split=random.random_split, random_fold_in=random.random_fold_in, random_bits=random.random_bits,
    random_unwrap=random.random_unwrap, threefry_2x32=threefry.threefry_2x32, random_clone=meshrt.random.clone,
)  # fmt: skip
THEIRS_LAX = Namespace(
    jax.lax, wrap=jax.random.wrap_key_data,
    random_seed=lambda s: prng.random_seed(s, threefry2x32.threefry_prng_impl),
    random_split=prng.random_split, random_fold_in=prng.random_fold_in, random_bits=prng.random_bits,
    random_unwrap=prng.random_unwrap, threefry_2x32=threefry2x32.threefry_2x32, random_clone=jax.random.clone,
)  # fmt: skip

OURS = SimpleNamespace(
    lax=OURS_LAX, jvp=api.jvp, vjp=api.vjp, vmap=vmap, data=_our_data,
    inexact=lambda x: aval_of(x).is_differentiable,
)  # fmt: skip
THEIRS = SimpleNamespace(
    lax=THEIRS_LAX, jvp=jax.jvp, vjp=jax.vjp, vmap=jax.vmap, data=_their_data,
    inexact=lambda x: jnp.issubdtype(x.dtype, jnp.inexact),
)  # fmt: skip


def as_list(out: Any) -> list[Any]:
    return list(out) if isinstance(out, tuple | list) else [out]


def is_inexact(x: np.ndarray) -> bool:
    return dtypes.issubdtype(x.dtype, np.inexact)


def vmap_patterns(case: Case, args: Sequence[np.ndarray]) -> list[tuple[int | None, ...]]:
    """in_axes to try: every operand alone at its first and last position, and all together in three ways."""
    mapped = [i for i, a in enumerate(case.args) if a.mapped]
    patterns = []
    for i in mapped if case.name.endswith(("-float32", "-key")) else mapped[:1]:
        for position in {0, args[i].ndim}:
            patterns.append(tuple(position if j == i else None for j in range(len(args))))
    if len(mapped) > 1:
        patterns.append(tuple(0 if j in mapped else None for j in range(len(args))))
        patterns.append(tuple(a.ndim if j in mapped else None for j, a in enumerate(args)))
        patterns.append(tuple((a.ndim if j % 2 else 0) if j in mapped else None for j, a in enumerate(args)))
    return list(dict.fromkeys(patterns))


class Judge:
    """Collects labelled results of one case in one library."""

    def __init__(self, lib: Any, case: Case, args: Sequence[Any], batched: Sequence[Any], aux: dict[str, Any]):
        self.lib, self.case, self.args, self.batched, self.aux = lib, case, args, batched, aux
        self.results: list[tuple[str, Any]] = []

    def fun(self, *args: Any) -> list[Any]:
        return [self.lib.data(o) for o in as_list(self.case.fun(self.lib.lax, *args))]

    def record(self, label: str, outs: Sequence[Any]) -> None:
        self.results += [(f"{label}[{i}]", o) for i, o in enumerate(outs)]

    def run(self) -> list[tuple[str, Any]]:
        self.record("value", self.fun(*self.args))
        if not self.case.trusted:
            return self.results
        if self.case.derivatives:
            self.first_order()
        if self.case.derivatives > 1:
            self.second_order()
        if self.case.vmap:
            self.batching()
        return self.results

    # -- derivatives --------------------------------------------------------------------------------------------------

    def smooth(self, args: Sequence[Any]) -> Any:
        """The case as a function of its differentiable operands, returning its differentiable results."""

        def fun(*values):
            full = list(args)
            for i, v in zip(self.aux["diff"], values):
                full[i] = v
            return [o for o in self.fun(*full) if self.lib.inexact(o)]

        return fun

    def first_order(self) -> None:
        diff, tangents, cts = self.aux["diff"], self.aux["tangents"], self.aux["cts"]
        fun, primals = self.smooth(self.args), [self.args[i] for i in diff]
        self.record("jvp", self.lib.jvp(fun, tuple(primals), tuple(tangents))[1])
        for n, i in enumerate(diff):
            if len(diff) > 1:
                alone = lambda v: fun(*primals[:n], v, *primals[n + 1 :])
                self.record(f"jvp of operand {i}", self.lib.jvp(alone, (primals[n],), (tangents[n],))[1])
        if self.case.reverse:
            self.record("vjp", self.lib.vjp(fun, *primals)[1](list(cts)))

    def second_order(self) -> None:
        tangents, cts = self.aux["tangents"], self.aux["cts"]
        fun, primals = self.smooth(self.args), [self.args[i] for i in self.aux["diff"]]
        push = lambda *values: self.lib.jvp(fun, values, tuple(tangents))[1]
        self.record("jvp of jvp", self.lib.jvp(push, tuple(primals), tuple(tangents))[1])
        if self.case.reverse:
            pull = lambda *values: self.lib.vjp(fun, *values)[1](list(cts))
            self.record("jvp of vjp", self.lib.jvp(pull, tuple(primals), tuple(tangents))[1])
            self.record("vjp of jvp", self.lib.vjp(push, *primals)[1](list(cts)))

    # -- batching -----------------------------------------------------------------------------------------------------

    def batching(self) -> None:
        for axes in self.aux["patterns"]:
            args = [a if x is None else self.aux["batched_at"](b, x) for a, b, x in zip(self.args, self.batched, axes)]
            self.record(f"vmap {axes}", self.lib.vmap(self.fun, in_axes=axes)(*args))
        if not self.case.derivatives:
            return
        tangents, cts, diff = self.aux["tangents"], self.aux["cts"], self.aux["diff"]
        axes = tuple(0 if a.mapped else None for a in self.case.args)
        args = [b if x == 0 else a for a, b, x in zip(self.args, self.batched, axes)]
        push = lambda *full: self.lib.jvp(self.smooth(full), tuple(full[i] for i in diff), tuple(tangents))[1]
        self.record("vmap of jvp", self.lib.vmap(push, in_axes=axes)(*args))
        if self.case.reverse:
            pull = lambda *full: self.lib.vjp(self.smooth(full), *[full[i] for i in diff])[1](list(cts))
            self.record("vmap of vjp", self.lib.vmap(pull, in_axes=axes)(*args))
            self.vjp_of_vmap(axes, args)

    def vjp_of_vmap(self, axes: Sequence[int | None], args: Sequence[Any]) -> None:
        diff = self.aux["diff"]

        def mapped(*values):
            full = list(args)
            for i, v in zip(diff, values):
                full[i] = v
            outs = self.lib.vmap(self.fun, in_axes=axes)(*full)
            return [o for o in outs if self.lib.inexact(o)]

        self.record("vjp of vmap", self.lib.vjp(mapped, *[args[i] for i in diff])[1](list(self.aux["batched_cts"])))


def auxiliary(case: Case, args: Sequence[np.ndarray], out_types: Sequence[Any]) -> dict[str, Any]:
    """Tangents, cotangents and vmap patterns for a case, drawn once for both libraries."""
    rng = np.random.default_rng(7)

    def like(shape, dtype):
        x = rng.standard_normal(shape)
        if np.dtype(dtype).kind == "c":
            x = x + 1j * rng.standard_normal(shape)
        return np.asarray(x).astype(dtype)

    diff = [i for i, a in enumerate(case.args) if a.smooth and is_inexact(args[i])]
    outs = [o for o in out_types if dtypes.issubdtype(o.dtype, np.inexact)]
    return {
        "diff": diff,
        "tangents": [like(args[i].shape, args[i].dtype) for i in diff],
        "cts": [like(o.shape, o.dtype) for o in outs],
        "batched_cts": [like((BATCH, *o.shape), o.dtype) for o in outs],
        "patterns": vmap_patterns(case, args),
        "batched_at": None,
    }


def tolerance(dtype: Any, scale: float) -> dict[str, float]:
    """rtol and atol: results pass through different but equivalent programs."""
    if np.dtype(dtype) in (np.dtype(np.complex64), F32):
        return {"rtol": 2e-4 * scale, "atol": 2e-5 * scale}
    if np.dtype(dtype) == np.dtype(np.float16):
        return {"rtol": 1e-2 * scale, "atol": 1e-2 * scale}
    return {"rtol": 5e-2 * scale, "atol": 5e-2 * scale}
