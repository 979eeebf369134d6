"""`jax.experimental.sparse.test_util`: random sparse arrays, and sparse functions compared with dense ones."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshrt import tree_util
from meshrt import vmap as _vmap
from meshrt.api import jvp, vjp
from meshrt.compat.layer._src import test_util as jtu
from meshrt.experimental import sparse
from meshrt.jit import jit
from meshrt.numpy.names import missing as _missing

MATMUL_TOL = {np.float32: 1e-5, np.float64: 1e-10, np.complex64: 1e-5, np.complex128: 1e-10}


class SparseLayout(NamedTuple):
    """How many dimensions of an array are batch, dense and sparse ones."""

    n_batch: int
    n_dense: int
    n_sparse: int


class BatchedDotGeneralProperties(NamedTuple):
    """A product of a sparse array and another."""

    lhs_shape: tuple[int, ...]
    rhs_shape: tuple[int, ...]
    n_batch: int
    n_dense: int
    dimension_numbers: Any


def is_sparse(x: Any) -> bool:
    """Whether `x` is a sparse array."""
    return isinstance(x, sparse.JAXSparse)


def iter_subsets(s: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """All subsequences, the shorter ones first."""
    return itertools.chain.from_iterable(itertools.combinations(s, n) for n in range(len(s) + 1))


def iter_sparse_layouts(shape: Sequence[int], min_n_batch: int = 0) -> Iterator[SparseLayout]:
    """The layouts of BCOO arrays of a shape."""
    for n_batch in range(min_n_batch, len(shape) + 1):
        for n_dense in range(len(shape) + 1 - n_batch):
            yield SparseLayout(n_batch, n_dense, len(shape) - n_batch - n_dense)


def iter_bcsr_layouts(shape: Sequence[int], min_n_batch: int = 0) -> Iterator[SparseLayout]:
    """The layouts of BCSR arrays of a shape."""
    return (layout for layout in iter_sparse_layouts(shape, min_n_batch) if layout.n_sparse == 2)


def _random(
    shape: Sequence[int], dtype: Any, *, rng: np.random.RandomState, rand_method: Callable[..., Any],
    nse: float, n_batch: int, n_dense: int, as_csr: bool,
) -> Any:  # fmt: skip
    n_sparse = len(shape) - n_batch - n_dense
    if n_sparse < 0 or n_batch < 0 or n_dense < 0 or (as_csr and n_sparse != 2):
        raise ValueError(f"invalid parameters: {shape=} {n_batch=} {n_sparse=}")
    batch, span, dense = shape[:n_batch], shape[n_batch : n_batch + n_sparse], shape[n_batch + n_sparse :]
    places = math.prod(span)
    count = math.ceil(nse * places) if 0 <= nse < 1 else min(int(nse), places)
    flat = np.zeros((math.prod(batch), count), int)
    for row in flat:
        row[:] = rng.choice(places, size=count, replace=False)
    flat = flat.reshape(*batch, count)
    data = rand_method(rng)((*batch, count, *dense), dtype)
    if not as_csr:
        columns = np.unravel_index(flat, span) if span else ()
        indices = np.stack(columns, -1) if span else np.zeros((*batch, count, 0), int)
        return sparse.BCOO((np.asarray(data), indices.astype(np.int32)), shape=tuple(shape))
    flat = np.sort(flat, -1)
    rows, places_in_row = np.divmod(flat, max(span[1], 1))
    before = (rows[..., None] < np.arange(span[0] + 1)).sum(-2)
    parts = np.asarray(data), places_in_row.astype(np.int32), before.astype(np.int32)
    return sparse.BCSR(parts, shape=tuple(shape))


def _maker(as_csr: bool) -> Callable[..., Any]:
    def make(
        rng: np.random.RandomState, rand_method: Callable[..., Any] = jtu.rand_default, nse: float = 0.5,
        n_batch: int = 0, n_dense: int = 0,
    ) -> Callable[..., Any]:  # fmt: skip
        return functools.partial(
            _random, rng=rng, rand_method=rand_method, nse=nse, n_batch=n_batch, n_dense=n_dense, as_csr=as_csr
        )

    make.__name__ = "rand_bcsr" if as_csr else "rand_bcoo"
    make.__doc__ = (
        f"The function `(shape, dtype)` that makes random {'BCSR' if as_csr else 'BCOO'} arrays: `nse` is how many "
        "elements each batch has, below 1 the share of all."
    )
    return make


rand_bcoo, rand_bcsr = _maker(False), _maker(True)


def rand_sparse(
    rng: np.random.RandomState, nse: float = 0.5, post: Callable[[Any], Any] = lambda x: x,
    rand_method: Callable[..., Any] = jtu.rand_default,
) -> Callable[..., Any]:  # fmt: skip
    """The function `(shape, dtype)` for random arrays of which `nse` elements, below 1 that share, are no zeros."""

    def make(shape: Sequence[int], dtype: Any, nse: float = nse) -> Any:
        size = math.prod(shape)
        count = int((1 - nse) * size) if 0 <= nse < 1 else size - min(int(nse), size)
        found = np.array(rand_method(rng)(shape, dtype))
        found.reshape(-1)[rng.choice(size, size=max(count, 0), replace=False)] = 0
        return post(found)

    return make


def _dense(tree: Any) -> Any:
    return tree_util.tree_map(lambda x: x.todense() if is_sparse(x) else x, tree, is_leaf=is_sparse)


class SparseTestCase(jtu.JaxTestCase):  # type: ignore[misc]  # absl says no types
    """Assertions about sparse arrays."""

    def assertSparseArraysEquivalent(
        self, x: Any, y: Any, *, check_dtypes: bool = True, atol: Any = None, rtol: Any = None,
        canonicalize_dtypes: bool = True, err_msg: str = "",
    ) -> None:  # fmt: skip
        """Two sparse arrays are of one layout and hold equal numbers where they should."""
        near = {"atol": atol, "rtol": rtol, "canonicalize_dtypes": canonicalize_dtypes, "err_msg": err_msg}
        self.assertIs(type(x), type(y))
        self.assertEqual(x.shape, y.shape)
        self.assertEqual((x.n_batch, x.n_dense), (y.n_batch, y.n_dense))
        self.assertAllClose(x.todense(), y.todense(), check_dtypes=check_dtypes, **near)
        self.assertEqual(x.nse, y.nse)
        first, second = tree_util.tree_leaves(x), tree_util.tree_leaves(y)
        for a, b in zip(first, second, strict=True):
            self.assertAllClose(a, b, check_dtypes=check_dtypes, **near)

    def _CheckAgainstDense(
        self, dense_op: Callable[..., Any], sparse_op: Callable[..., Any], args_maker: Callable[[], Any],
        check_jit: bool = True, check_dtypes: bool = True, tol: Any = None, atol: Any = None, rtol: Any = None,
        canonicalize_dtypes: bool = True,
    ) -> None:  # fmt: skip
        """A function of sparse arrays gives what one of dense arrays does, compiled too."""
        args = args_maker()
        wanted = dense_op(*_dense(args))
        for op in (sparse_op, jit(sparse_op)) if check_jit else (sparse_op,):
            self.assertAllClose(
                _dense(op(*args)), wanted, check_dtypes=check_dtypes, atol=atol or tol, rtol=rtol or tol,
                canonicalize_dtypes=canonicalize_dtypes,
            )  # fmt: skip

    def _CheckGradsSparse(
        self, dense_fun: Callable[..., Any], sparse_fun: Callable[..., Any], args_maker: Callable[[], Any], *,
        argnums: Any = None, modes: Sequence[str] = ("fwd", "rev"), atol: Any = None, rtol: Any = None,
    ) -> None:  # fmt: skip
        """Derivatives of a function of sparse arrays are those of the dense one, where there are elements."""
        args = args_maker()
        chosen = range(len(args)) if argnums is None else [argnums] if isinstance(argnums, int) else argnums
        inexact = [i for i in chosen if np.issubdtype(args[i].dtype, np.inexact)]

        def through_data(fun: Callable[..., Any], as_dense: bool) -> tuple[Callable[..., Any], list[Any]]:
            """`fun` as one of the elements of the chosen arguments."""

            def of(*data: Any) -> Any:
                given = list(args)
                for i, d in zip(inexact, data):
                    given[i] = _with_data(args[i], d) if is_sparse(args[i]) else d
                return _dense(fun(*(_dense(given) if as_dense else given)))

            return of, [args[i].data if is_sparse(args[i]) else args[i] for i in inexact]

        sparse_of, data = through_data(sparse_fun, False)
        dense_of, _ = through_data(dense_fun, True)
        if "fwd" in modes:
            tangents = tree_util.tree_map(np.ones_like, data)
            for got, wanted in zip(jvp(sparse_of, data, tangents), jvp(dense_of, data, tangents)):
                self.assertAllClose(got, wanted, atol=atol, rtol=rtol)
        if "rev" in modes:
            got_out, pull = vjp(sparse_of, *data)
            wanted_out, dense_pull = vjp(dense_of, *data)
            self.assertAllClose(got_out, wanted_out, atol=atol, rtol=rtol)
            ones = tree_util.tree_map(np.ones_like, wanted_out)
            self.assertAllClose(pull(ones), dense_pull(ones), atol=atol, rtol=rtol)

    def _random_bdims(self, *args: Any) -> list[int | None]:
        """A dimension to map, or none, for each argument; a sparse one's is a batch dimension."""
        rng = self.rng()
        return [rng.choice([0, None]) if is_sparse(a) else rng.choice([*range(1 + np.ndim(a)), None]) for a in args]

    def _CheckBatchingSparse(
        self, dense_fun: Callable[..., Any], sparse_fun: Callable[..., Any], args_maker: Callable[[], Any], *,
        batch_size: int = 3, bdims: Any = None, check_jit: bool = False, check_dtypes: bool = True, tol: Any = None,
        atol: Any = None, rtol: Any = None, canonicalize_dtypes: bool = True,
    ) -> None:  # fmt: skip
        """A mapped function of sparse arrays gives what the mapped dense one does."""
        dims = self._random_bdims(*args_maker()) if bdims is None else bdims

        def stacked(members: Sequence[Any], dim: int | None) -> Any:
            if dim is None:
                return members[0]
            return _stack_leaves(members) if is_sparse(members[0]) else np.stack(members, dim)

        def batches() -> list[Any]:
            return [stacked(m, d) for m, d in zip(zip(*(args_maker() for _ in range(batch_size))), dims)]

        if all(d is None for d in dims):
            return
        places = [None if d is None else int(d) for d in dims]
        self._CheckAgainstDense(
            _vmap(dense_fun, places), _vmap(sparse_fun, places), batches, check_jit=check_jit,
            check_dtypes=check_dtypes, tol=tol, atol=atol, rtol=rtol, canonicalize_dtypes=canonicalize_dtypes,
        )  # fmt: skip


def _with_data(x: Any, data: Any) -> Any:
    """A sparse array with other elements."""
    return type(x)((data, *tree_util.tree_leaves(x)[1:]), shape=x.shape)


def _stack_leaves(members: Sequence[Any]) -> Any:
    """Sparse arrays of one layout as members of a batch."""
    leaves = [np.stack(parts) for parts in zip(*map(tree_util.tree_leaves, members))]
    return type(members[0])(tuple(leaves), shape=(len(members), *members[0].shape))


__getattr__ = _missing("jax.experimental.sparse.test_util", [n for n in globals() if not n.startswith("_")])
