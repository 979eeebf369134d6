"""Sparse arrays, beside dense ones: every layout must give what NumPy gives."""

import importlib
import operator

import jax.experimental.sparse as theirs
import numpy as np
import pytest
import scipy.sparse

import meshrt
import meshrt.numpy as jnp
from meshrt import errors
from meshrt.experimental import sparse
from meshrt.scipy.sparse.linalg import cg
from tests.meshrt.beside import assert_alike

RNG = np.random.default_rng(0)


def drawn(*shape):
    return (RNG.normal(size=shape) * (RNG.random(shape) < 0.5)).astype(np.float32)


X, Y = drawn(3, 4, 5), drawn(3, 4, 5)
A, V = X[0], RNG.normal(size=(5, 2)).astype(np.float32)
LAYOUTS = [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0)]
layouts = pytest.mark.parametrize(("n_batch", "n_dense"), LAYOUTS)


def same(got, wanted):
    got = got.todense() if isinstance(got, sparse.JAXSparse) else got
    np.testing.assert_allclose(np.asarray(got), wanted, 1e-5, 1e-5)


def made(x, n_batch, n_dense):
    return sparse.BCOO.fromdense(x, n_batch=n_batch, n_dense=n_dense)


@pytest.mark.sweep(2)
@layouts
def test_conversions(n_batch, n_dense):
    m = made(X, n_batch, n_dense)
    judge = theirs.BCOO.fromdense(jnp_of_jax(X), n_batch=n_batch, n_dense=n_dense)
    assert repr(m) == repr(judge)
    np.testing.assert_array_equal(np.asarray(m.data), np.asarray(judge.data))
    np.testing.assert_array_equal(np.asarray(m.indices), np.asarray(judge.indices))
    for same_array in (m, m.sort_indices(), m.sum_duplicates(), m.update_layout(n_batch=0, n_dense=0)):
        same(same_array, X)
    same(m.update_layout(n_batch=1, n_dense=1, on_inefficient=None), X)
    same(meshrt.jit(lambda m: m.todense())(m), X)


def jnp_of_jax(x):
    import jax.numpy

    return jax.numpy.asarray(x)


@pytest.mark.sweep(2)
@layouts
def test_arithmetic(n_batch, n_dense):
    m, other = made(X, n_batch, n_dense), made(Y, n_batch, n_dense)
    for got, wanted in (
        (m * 2, X * 2), (m * Y, X * Y), (Y[0] * m, X * Y[0]), (-m, -X), (m / 2, X / 2), (m**2, X**2),
        (m + other, X + Y), (m - other, X - Y), (m * other, X * Y), (m.sum((0, 2)), X.sum((0, 2))),
        (m.sum(1), X.sum(1)),
    ):  # fmt: skip
        same(got, wanted)


@pytest.mark.sweep(2)
@layouts
def test_shapes(n_batch, n_dense):
    m = made(X, n_batch, n_dense)
    same(m[1], X[1])
    same(m[:, 1:3, ::-2], X[:, 1:3, ::-2])
    same(m[..., -1, None], X[..., -1, None])
    for axis in range(3):
        same(sparse.bcoo_concatenate([m, made(Y, n_batch, n_dense)], dimension=axis), np.concatenate([X, Y], axis))
    same(sparse.bcoo_dynamic_slice(m, (1, jnp.int32(2), 9), (2, 2, 3)), X[1:3, 2:4, 2:5])


@pytest.mark.parametrize("n_batch", [0, 1])
def test_contractions(n_batch):
    m, other = made(X, n_batch, 0), made(Y, n_batch, 0)
    twice = (((0, 2), (0, 2)), ((), ()))
    for got, wanted in (
        (m @ V, X @ V), (m @ V[:, 0], X @ V[:, 0]), (meshrt.jit(lambda m: m @ V)(m), X @ V),
        (sparse.bcoo_dot_general(V.T, m, dimension_numbers=(((1,), (2,)), ((), ()))), np.tensordot(V.T, X, (1, 2))),
        (sparse.bcoo_dot_general(m, Y, dimension_numbers=twice), np.tensordot(X, Y, twice[0])),
        (sparse.bcoo_dot_general(m, other, dimension_numbers=twice), np.tensordot(X, Y, twice[0])),
    ):  # fmt: skip
        same(got, wanted)
    if n_batch:
        for right in (Y, other):
            got = sparse.bcoo_dot_general(m, right, dimension_numbers=(((2,), (2,)), ((0,), (0,))))
            same(got, np.einsum("bij,bkj->bik", X, Y))


def test_permutations_and_reshapes():
    m = made(X, 0, 0)
    same(m.transpose((2, 0, 1)), X.transpose(2, 0, 1))
    same(m.reshape(4, -1), X.reshape(4, 15))
    same(made(X, 1, 0).reshape((3, 20)), X.reshape(3, 20))
    grown = sparse.bcoo_broadcast_in_dim(made(A[:, :1], 0, 0), shape=(2, 4, 3), broadcast_dimensions=(1, 2))
    same(grown, np.broadcast_to(A[:, :1], (2, 4, 3)))


def test_derivatives_are_of_the_data():
    m = made(A, 0, 0)
    value, slope = sparse.value_and_grad(lambda m, v: ((m @ v) ** 2).sum())(m, V)
    np.testing.assert_allclose(float(value), ((A @ V) ** 2).sum(), 1e-5)
    same(slope, 2 * (A @ V) @ V.T * (A != 0))
    for jac in (sparse.jacfwd, sparse.jacrev):
        same(jac(lambda m: m @ V[:, 0])(m), np.eye(4)[:, :, None] * V[:, 0] * (A != 0))


def test_batch_dimensions_are_mapped():
    m = made(X, 1, 0)
    same(meshrt.vmap(lambda m: m.todense() @ V)(m), X @ V)
    same(meshrt.vmap(lambda m: 2 * m)(m), 2 * X)
    same(meshrt.vmap(lambda x: sparse.bcoo_fromdense(x, nse=20))(X), X)


@pytest.mark.parametrize("kind", [sparse.COO, sparse.CSR, sparse.CSC, sparse.BCSR])
def test_matrices_of_other_formats(kind):
    m = kind.fromdense(A)
    same(m, A)
    same(m @ V, A @ V)
    same(m @ V[:, 0], A @ V[:, 0])
    assert repr(m) == f"{kind.__name__}(float32[4, 5], nse={np.count_nonzero(A)})"
    if kind is not sparse.BCSR:
        same(m.T @ A, A.T @ A)
    same(sparse.empty((2, 3), sparse_format=kind.__name__.lower()), np.zeros((2, 3)))
    same(sparse.eye(4, 5, -1, sparse_format=kind.__name__.lower()), np.eye(4, 5, -1))


def test_made_otherwise():
    same(sparse.BCSR.fromdense(X, n_batch=1), X)
    same(sparse.BCOO.from_scipy_sparse(scipy.sparse.csr_matrix(A)), A)
    drawn_mat = sparse.random_bcoo(meshrt.random.key(0), (4, 5), nse=0.3, sorted_indices=True)
    assert drawn_mat.nse == 6 and np.count_nonzero(np.asarray(drawn_mat.todense())) == 6
    twice = sparse.BCOO((jnp.ones(3), jnp.array([[1], [1], [7]])), shape=(4,))
    same(twice, [0, 2, 0, 0])
    assert twice.sum_duplicates().nse == 1


def test_systems_of_sparse_matrices():
    matrix = A @ A.T + 4 * np.eye(4, dtype=np.float32)
    same(cg(made(matrix, 0, 0), V[:4, 0])[0], np.linalg.solve(matrix, V[:4, 0]))


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: sparse.BCOO((jnp.ones(3), jnp.zeros((2, 1), int)), shape=(4,)), ValueError),
        (lambda: meshrt.jit(sparse.bcoo_fromdense)(A), errors.ConcretizationError),
        (lambda: made(A, 0, 0) + A[0], NotImplementedError),
        (lambda: made(X, 1, 0).T, NotImplementedError),
        (lambda: made(A, 0, 0) @ A, TypeError),
        (lambda: made(A, 0, 0).update_layout(n_batch=1), sparse.SparseEfficiencyError),
        (lambda: made(A, 0, 0)[made(A, 0, 0)], NotImplementedError),
        (lambda: made(A, 0, 0)[9], IndexError),
    ],
)
def test_refusals(call, kind):
    with pytest.raises(kind):
        call()


OTHERS = {
    "array": np.ones((4, 5)), "scalar of NumPy": np.float32(2), "scalar": 2.0, "vector": np.ones(5, np.float32),
    "list": [1.0] * 5, "none": None,
}  # fmt: skip


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", ["eq", "ne", "lt", "truediv", "pow", "add", "mul", "matmul"])
@pytest.mark.parametrize("layout", ["BCSR", "COO", "CSR", "CSC"])
def test_operators_that_a_format_lacks_are_refused_beside_arrays_of_numpy_too(layout, name, other):
    """As JAX: comparison with what is no array is that of identity, with one it is refused."""
    if layout != "BCSR" and name == "matmul":
        other = "vector"

    def program(lib):
        m = importlib.import_module(f"{lib.__name__}.experimental.sparse")
        mat, dense = getattr(m, layout).fromdense(lib.numpy.asarray(A)), lambda x: getattr(x, "todense", lambda: x)()
        return dense(getattr(operator, name)(mat, OTHERS[other]))

    assert_alike(program)


COUNT = int((A != 0).sum())
INFO = sparse.util.SparseInfo(A.shape)
ROWS_SORTED = sparse.coo.COOInfo(A.shape, rows_sorted=True)
DIMENSIONS = (((1,), (0,)), ((), ()))
# Of each format: what parts are of a dense matrix, the matrix of parts, products of parts with a vector or a matrix.
PARTS = {
    "bcoo": (
        lambda a: sparse.bcoo._bcoo_fromdense(a, nse=COUNT),
        lambda *parts: sparse.bcoo._bcoo_todense(*parts, spinfo=INFO),
        lambda *parts: sparse.bcoo._bcoo_dot_general(
            *parts, dimension_numbers=DIMENSIONS, preferred_element_type=None, lhs_spinfo=INFO
        ),
    ),
    "bcsr": (
        lambda a: sparse.bcsr._bcsr_fromdense(a, nse=COUNT),
        lambda *parts: sparse.bcsr._bcsr_todense(*parts, spinfo=INFO),
        lambda *parts: sparse.bcsr_dot_general_p.bind(
            *parts, dimension_numbers=DIMENSIONS, preferred_element_type=None, lhs_spinfo=INFO
        ),
    ),
    "coo": (
        lambda a: sparse.coo._coo_fromdense(a, nse=COUNT),
        lambda *parts: sparse.coo._coo_todense(*parts, spinfo=ROWS_SORTED),
        lambda *parts: (sparse.coo._coo_matvec if parts[-1].ndim == 1 else sparse.coo._coo_matmat)(
            *parts, spinfo=ROWS_SORTED
        ),
    ),
    "csr": (
        lambda a: sparse.csr._csr_fromdense(a, nse=COUNT),
        lambda *parts: sparse.csr._csr_todense(*parts, shape=A.shape),
        lambda *parts: (sparse.csr._csr_matvec if parts[-1].ndim == 1 else sparse.csr._csr_matmat)(
            *parts, shape=A.shape
        ),
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_primitives_of_parts(name):
    """Each is one equation, has derivatives, and is mapped."""
    from_dense, to_dense, product = PARTS[name]
    parts = from_dense(A)
    assert [e.primitive.name for e in meshrt.make_jaxpr(from_dense)(A).eqns] == [f"{name}_fromdense"]
    assert [e.primitive.name for e in meshrt.make_jaxpr(to_dense)(*parts).eqns] == [f"{name}_todense"]
    same(to_dense(*parts), A)
    same(meshrt.jit(to_dense)(*parts), A)
    for v in (V, V[:, 0]):
        same(product(*parts, v), A @ v)
        slopes = meshrt.grad(lambda data, v: product(data, *parts[1:], v).sum(), (0, 1))(parts[0], v)
        dense = meshrt.grad(lambda data, v: (to_dense(data, *parts[1:]) @ v).sum(), (0, 1))(parts[0], v)
        for got, wanted in zip(slopes, dense):
            same(got, wanted)
    twice = meshrt.vmap(to_dense, in_axes=(0, *[None] * (len(parts) - 1)))(
        jnp.stack([parts[0], 2 * parts[0]]), *parts[1:]
    )
    same(twice, np.stack([A, 2 * A]))
    _, pull = meshrt.vjp(from_dense, jnp.asarray(A))
    same(pull(parts)[0], A)


def test_numbers_of_elements():
    assert sparse.util._count_stored_elements(X, n_batch=1, n_dense=1) == (X != 0).any(-1).sum(-1).max()
    rows, columns = sparse.util._csr_to_coo(*sparse.csr._csr_fromdense(A)[1:])
    np.testing.assert_array_equal(np.stack([rows, columns]), np.nonzero(A))
    shuffled = sparse.COO((jnp.array([3.0, 1.0]), jnp.array([1, 0]), jnp.array([0, 2])), shape=(2, 3))
    np.testing.assert_array_equal(shuffled._sort_indices().row, [0, 1])


def test_products_with_dense_arrays_are_data():
    m, v = np.float32([[1, 0, 2], [0, 3, 0]]), np.float32([2, 3, 4])
    for other in (v, m, np.float32(5)):
        got, want = (s.bcoo_multiply_dense(s.BCOO.fromdense(m), other) for s in (sparse, theirs))
        np.testing.assert_array_equal(got, np.asarray(want))
    assert sparse.linalg.spsolve and theirs.linalg.spsolve  # without an import of their own


@pytest.mark.parametrize("n_batch", [0, 1])
def test_products_of_arrays_with_dense_dimensions(n_batch):
    """Dense dimensions are free ones: they go where the others of their operand go."""
    x = np.where(RNG.random((2, 3, 4, 2)) < 0.5, RNG.normal(size=(2, 3, 4, 2)), 0).astype(np.float32)
    m = sparse.BCOO.fromdense(jnp.asarray(x), n_batch=n_batch, n_dense=1)
    y = RNG.normal(size=(5, 3)).astype(np.float32)
    cases = [((((1,), (1,)), ((), ())), y)]
    if n_batch:
        cases.append(((((1, 2), (0, 1)), ((0,), (2,))), RNG.normal(size=(3, 4, 2)).astype(np.float32)))
    for numbers, other in cases:
        (mine, its), (batch, its_batch) = numbers
        turned = ((its, mine), (its_batch, batch))
        product = lambda a, b, n=numbers: sparse.bcoo_dot_general(a, b, dimension_numbers=n)
        want = meshrt.lax.dot_general(x, other, numbers)
        np.testing.assert_allclose(meshrt.jit(product)(m, other), want, 1e-5, 1e-6)
        want = meshrt.lax.dot_general(other, x, turned)
        np.testing.assert_allclose(sparse.bcoo_dot_general(other, m, dimension_numbers=turned), want, 1e-5, 1e-6)
        slope = meshrt.grad(lambda b, f=product: jnp.sin(f(m, b)).sum())(jnp.asarray(other))
        dense = meshrt.grad(lambda b, n=numbers: jnp.sin(meshrt.lax.dot_general(x, b, n)).sum())(jnp.asarray(other))
        np.testing.assert_allclose(slope, dense, 1e-4, 1e-5)
    with pytest.raises(NotImplementedError, match="contracting over dense dimensions"):
        sparse.bcoo_dot_general(m, y[:, :2], dimension_numbers=(((3,), (1,)), ((), ())))
    with pytest.raises(NotImplementedError, match="sparse arrays over dense dimensions"):
        sparse.bcoo_dot_general(m, m, dimension_numbers=(((2,), (2,)), ((), ())))
