"""The kernels that ship, against the plain functions in JAX: values, derivatives, edges, dtypes, shardings, errors."""

import doctest
import importlib
import re
from pathlib import Path

import jax
import jax.numpy as jj
import ml_dtypes
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import NamedSharding, P, errors
from meshrt.experimental.pallas import ops
from meshrt.sharding import AxisType
from meshrt.test_util import check_grads


def _draw(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


# ---------------------------------------------------------------------------------------------------------------------
# Plain functions, of JAX


def _attention(q, k, v, bias=None, *, before=None, after=None, segments=None):
    k, v = (jj.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = jj.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1])
    scores = scores if bias is None else scores + bias
    apart = np.arange(k.shape[1])[None] - np.arange(q.shape[1])[:, None]
    allowed = np.ones(apart.shape, bool)
    allowed &= True if before is None else apart >= -before
    allowed &= True if after is None else apart <= after
    allowed = allowed[None, None]
    if segments is not None:
        allowed = allowed & (segments[:, None, :, None] == segments[:, None, None, :])
    some = allowed.any(-1, keepdims=True)
    weights = jax.nn.softmax(jj.where(some & ~allowed, -jj.inf, scores), -1)
    return jj.einsum("bhts,bshd->bthd", jj.where(some, weights, 0), v)


def _product(x, w, bias=None, *, activation):
    known = {None: lambda y: y, "relu": jax.nn.relu, "silu": jax.nn.silu, "gelu": jax.nn.gelu, "tanh": jj.tanh}
    return known[activation](x @ w + (0 if bias is None else bias))


def _norm(x, scale):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def _loss(logits, labels):
    own = jj.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jax.nn.logsumexp(logits, -1) - own


def _scan(x, delta, a, b, c, d=0.0):
    def step(h, now):
        x, delta, b, c = now
        h = jj.exp(delta[..., None] * a) * h + delta[..., None] * b[:, None] * x[..., None]
        return h, (h * c[:, None]).sum(-1)

    first = jj.zeros((x.shape[0], *a.shape), x.dtype)
    ys = jax.lax.scan(step, first, tuple(jj.swapaxes(v, 0, 1) for v in (x, delta, b, c)))[1]
    return ys.swapaxes(0, 1) + d * x


def _paged(q, k, v, lengths, table):
    outs = []
    for b, (n, pages) in enumerate(zip(lengths, table)):
        keys, values = (x[:, pages].reshape(x.shape[0], -1, x.shape[-1])[:, :n] for x in (k, v))
        grouped = q[b].reshape(k.shape[0], -1, q.shape[-1])
        weights = jax.nn.softmax(jj.einsum("grd,gnd->grn", grouped, keys) / np.sqrt(q.shape[-1]), -1)
        outs.append(jj.einsum("grn,gnd->grd", weights, values).reshape(q.shape[1:]) if n else jj.zeros(q.shape[1:]))
    return jj.stack(outs)


# ---------------------------------------------------------------------------------------------------------------------
# Cases: name -> (kernel, plain function, differentiable arguments). Blocks that don't divide the sizes.

Q, K, V = _draw(2, 13, 4, 6), _draw(2, 13, 2, 6, seed=1), _draw(2, 13, 2, 6, seed=2)
SEGMENTS = np.sort(np.random.default_rng(3).integers(0, 3, (2, 13)), 1)
LABELS = np.random.default_rng(4).integers(0, 21, (3, 5))
LENGTHS, TABLE = np.array([5, 8, 0]), np.array([[3, 1, 0], [2, 4, 4], [0, 0, 0]])
PAGED = (_draw(3, 4, 6), _draw(2, 5, 4, 6), _draw(2, 5, 4, 6, seed=1))
STATES = (_draw(2, 10, 6), abs(_draw(2, 10, 6)), -abs(_draw(6, 3)), _draw(2, 10, 3), _draw(2, 10, 3, seed=1), _draw(6))
BLOCKS = (4, 8)


def _attended(*more, mine=None, **plain):
    own = {"block_sizes": BLOCKS, **(mine or {})}
    return (
        lambda *a: ops.flash_attention(*a, **own), lambda *a: _attention(*a, **plain), (Q, K, V, *more),
    )  # fmt: skip


def _multiplied(activation, *args):
    blocks = (4, 8, 4)
    return (
        lambda *a: ops.matmul(*a, activation=activation, block_sizes=blocks),
        lambda *a: _product(*a, activation=activation), args,
    )  # fmt: skip


CASES = {
    "attention": _attended(),
    "causal": _attended(mine={"causal": True}, after=0),
    "window": _attended(mine={"window": (3, 2)}, before=3, after=2),
    "rows without keys": _attended(mine={"window": (-2, None)}, before=-2),
    "bias": _attended(_draw(2, 4, 13, 13), mine={"causal": True}, after=0),
    "narrow bias": _attended(_draw(1, 4, 1, 13)),
    "segments": _attended(mine={"query_segments": SEGMENTS}, segments=SEGMENTS),
    "one block": _attended(mine={"causal": True, "block_sizes": None}, after=0),
    "matmul": _multiplied(None, _draw(2, 5, 10), _draw(10, 11)),
    "matmul with relu": _multiplied("relu", _draw(5, 10), _draw(10, 11), _draw(11)),
    "matmul with gelu": _multiplied("gelu", _draw(2, 5, 10), _draw(10, 11), _draw(11)),
    "matmul of a vector": _multiplied("silu", _draw(10), _draw(10, 3)),
    "norm": (lambda x, s: ops.rms_norm(x, s, block_rows=4), _norm, (_draw(3, 5, 7), _draw(7))),
    "loss": (
        lambda x: ops.softmax_cross_entropy(x, LABELS, block_sizes=BLOCKS), lambda x: _loss(x, LABELS),
        (_draw(3, 5, 21),),
    ),
    "loss of a product": (
        lambda h, w: ops.linear_cross_entropy(h, w, LABELS, block_sizes=BLOCKS),
        lambda h, w: _loss(h @ w.T, LABELS), (_draw(3, 5, 7), _draw(21, 7)),
    ),
    "scan": (lambda *a: ops.selective_scan(*a, block_sizes=(4, 4)), _scan, STATES),
    "paged": (
        lambda q, k, v: ops.paged_attention(q, k, v, LENGTHS, TABLE),
        lambda q, k, v: _paged(q, k, v, LENGTHS, TABLE), PAGED,
    ),
}  # fmt: skip


def _close(got, want, tol):
    np.testing.assert_allclose(np.asarray(got, np.float32), np.asarray(want, np.float32), rtol=tol, atol=tol)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_plain_function(name):
    ours, plain, args = CASES[name]
    want, pull = jax.vjp(jax.jit(plain), *args)
    got, ours_pull = meshrt.vjp(meshrt.jit(ours), *args)
    assert got.shape == want.shape and got.dtype == want.dtype
    _close(got, want, 2e-5)
    cotangent = _draw(*want.shape, seed=9)
    for mine, theirs in zip(ours_pull(jnp.asarray(cotangent)), pull(cotangent), strict=True):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
        _close(mine, theirs, 2e-4)


@pytest.mark.parametrize("name", ["causal", "matmul with gelu", "loss of a product", "scan"])
def test_bfloat16_is_summed_in_float32(name):
    ours, plain, args = CASES[name]
    args = tuple(np.asarray(a, ml_dtypes.bfloat16) for a in args)
    got, pull = meshrt.vjp(meshrt.jit(ours), *args)
    exact = tuple(np.asarray(a, np.float32) for a in args)
    want, exact_pull = jax.vjp(jax.jit(plain), *exact)
    assert got.dtype == (np.float32 if "loss" in name else ml_dtypes.bfloat16)
    _close(got, want, 3e-2)
    cotangent = _draw(*want.shape, seed=9)
    for mine, theirs in zip(pull(jnp.asarray(cotangent, got.dtype)), exact_pull(cotangent), strict=True):
        assert mine.dtype == ml_dtypes.bfloat16
        assert np.linalg.norm(np.asarray(mine, np.float32) - theirs) < 2e-2 * max(1, np.linalg.norm(theirs))


@pytest.mark.parametrize("name", ["narrow bias", "matmul with gelu", "loss", "scan", "paged"])
def test_derivatives_are_finite_differences_in_float64(name):
    with meshrt.enable_x64():
        ours, _, args = CASES[name]
        check_grads(ours, tuple(np.asarray(a, np.float64) for a in args), order=1, modes=("rev",), rtol=1e-5)


@pytest.mark.parametrize("name", ["causal", "norm", "scan"])
def test_vmap_is_a_loop(name):
    ours, _, args = CASES[name]
    stacked = tuple(np.stack([a, 2 * a]) for a in args)
    got = meshrt.jit(meshrt.vmap(ours))(*stacked)
    _close(got, np.stack([ours(*args), ours(*(2 * a for a in args))]), 1e-5)


def test_logs_of_normalisers_have_derivatives():
    def ours(q, k):
        return ops.flash_attention(q, k, V, causal=True, return_residual=True, block_sizes=BLOCKS)[1]

    def plain(q, k):
        scores = jj.einsum("btgrd,bsgd->bgrts", q.reshape(2, 13, 2, 2, 6), k) / np.sqrt(6)
        scores = jj.where(np.tril(np.ones((13, 13), bool)), scores, -jj.inf)
        return jax.nn.logsumexp(scores, -1).reshape(2, 4, 13).swapaxes(1, 2)

    _close(ours(Q, K), plain(Q, K), 1e-5)
    cotangent = _draw(2, 13, 4)
    mine = meshrt.jit(meshrt.grad(lambda *a: (ours(*a) * cotangent).sum(), (0, 1)))(Q, K)
    theirs = jax.jit(jax.grad(lambda *a: (plain(*a) * cotangent).sum(), (0, 1)))(Q, K)
    for a, b in zip(mine, theirs):
        _close(a, b, 1e-4)


def _largest(text):
    """The most elements that a value of a program has."""
    shapes = re.findall(r"tensor<((?:\d+x)+)[a-z]", text)
    return max(np.prod([int(n) for n in s.split("x")[:-1]]) for s in shapes)


def test_scores_and_logits_are_never_whole():
    x = np.zeros((1, 64, 1, 4), np.float32)
    attended = meshrt.jit(meshrt.grad(lambda x: ops.flash_attention(x, x, x, block_sizes=(8, 8)).sum()))
    assert _largest(attended.lower(x).as_text()) < 64 * 64
    h, w, labels = np.zeros((64, 4), np.float32), np.zeros((64, 4), np.float32), np.zeros(64, np.int32)
    lost = meshrt.jit(meshrt.grad(lambda h, w: ops.linear_cross_entropy(h, w, labels, block_sizes=(8, 8)).sum()))
    assert _largest(lost.lower(h, w).as_text()) < 64 * 64


# ---------------------------------------------------------------------------------------------------------------------
# On a mesh: name -> (kernel, arguments, their specs, spec of the result, collectives forward, those with derivatives)

HEADS, SPLIT = P("data", None, "model"), P("data", None, "model")
TOKENS = np.random.default_rng(5).integers(0, 32, (4, 8))
PLACED = {
    "attention": (
        lambda q, k, v: ops.flash_attention(q, k, v, causal=True, block_sizes=(8, 8)),
        (_draw(2, 16, 8, 8), _draw(2, 16, 4, 8), _draw(2, 16, 4, 8, seed=1)), (HEADS,) * 3, HEADS, {}, {},
    ),
    "heads of one group": (
        ops.flash_attention, (_draw(2, 16, 8, 8), _draw(2, 16, 1, 8), _draw(2, 16, 1, 8)),
        (HEADS, P("data"), P("data")), HEADS, {}, {"all_reduce": 1},
    ),
    "queries": (
        ops.flash_attention, (_draw(2, 16, 2, 8), _draw(2, 16, 2, 8), _draw(2, 16, 2, 8)),
        (P("data", "model"), P("data"), P("data")), P("data", "model"), {}, {"all_reduce": 1},
    ),
    "vocabulary": (
        lambda x: ops.softmax_cross_entropy(x, TOKENS), (_draw(4, 8, 32),), (SPLIT,), P("data"),
        {"all_reduce": 2}, {"all_reduce": 2},
    ),
    "vocabulary of a product": (
        lambda h, w: ops.linear_cross_entropy(h, w, TOKENS), (_draw(4, 8, 16), _draw(32, 16)),
        (P("data"), P("model")), P("data"), {"all_reduce": 2}, {"all_reduce": 4},
    ),
    "columns": (
        lambda *a: ops.matmul(*a, activation="gelu"), (_draw(4, 8, 16), _draw(16, 8), _draw(8)),
        (P("data"), P(None, "model"), P("model")), P("data", None, "model"), {}, None,
    ),
    "summed dimension": (
        lambda *a: ops.matmul(*a, activation="gelu"), (_draw(4, 8, 16), _draw(16, 8), _draw(8)),
        (SPLIT, P("model"), P()), P("data"), {"all_reduce": 1}, None,
    ),
    "norm": (ops.rms_norm, (_draw(4, 8, 16), _draw(16)), (P("data", "model"), P()), P("data", "model"), {}, None),
    "scan": (
        ops.selective_scan,
        (_draw(2, 5, 8), abs(_draw(2, 5, 8)), -abs(_draw(8, 3)), _draw(2, 5, 3), _draw(2, 5, 3, seed=1)),
        (SPLIT, SPLIT, P("model"), P("data"), P("data")), SPLIT, {}, None,
    ),
    "pages": (
        lambda *a: ops.paged_attention(*a, np.array([5, 8, 1, 0]), np.array([[3, 1], [2, 4], [0, 0], [0, 0]])),
        (_draw(4, 8, 6), _draw(4, 5, 4, 6), _draw(4, 5, 4, 6, seed=1)), (P("data", "model"), P("model"), P("model")),
        P("data", "model"), {}, None,
    ),
}  # fmt: skip


def _kinds(f, args):
    return f.trace(*args).lower().propagate().partition().plan.counts


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", PLACED)
def test_propagation_and_partitioner_place_them(name):
    _check_placed(*PLACED[name], AxisType.Auto)


@pytest.mark.parametrize("name", ["heads of one group", "vocabulary"])
def test_types_say_how_results_are_split_where_axes_are_explicit(name):
    _check_placed(*PLACED[name], AxisType.Explicit)


def _check_placed(kernel, args, specs, spec, forward, backward, axis_type):
    mesh = meshrt.make_mesh((2, 4), ("data", "model"), axis_types=(axis_type,) * 2)
    placed = [meshrt.device_put(a, NamedSharding(mesh, s)) for a, s in zip(args, specs)]
    f = meshrt.jit(kernel)
    got = f(*placed)
    assert got.sharding.is_equivalent_to(NamedSharding(mesh, spec), got.ndim)
    _close(got, kernel(*args), 1e-5)
    assert _kinds(f, placed) == forward
    cotangent = _draw(*got.shape, seed=9)
    gradient = meshrt.grad(lambda *a: (kernel(*a) * cotangent).sum(), tuple(range(len(args))))
    g = meshrt.jit(gradient)
    for mine, wanted, s in zip(g(*placed), gradient(*args), specs):
        assert mine.sharding.is_equivalent_to(NamedSharding(mesh, s), mine.ndim)
        _close(mine, wanted, 1e-4)
    kinds = _kinds(g, placed)
    assert set(kinds) <= {"all_reduce"} if backward is None else kinds == backward


# ---------------------------------------------------------------------------------------------------------------------
# In the program of one device: name -> (kernel, plain, arguments, their specs, spec of the result)

RINGS = {
    "gathered rows": (
        lambda x, w: ops.all_gather_matmul(x, w, "m", block_columns=2),
        lambda x, w: meshrt.lax.all_gather(x, "m", tiled=True) @ w,
        (_draw(16, 6), _draw(6, 12)), (P("m"), P(None, "m")), P(None, "m"),
    ),
    "gathered rows of a batch": (
        lambda x, w: ops.all_gather_matmul(x, w, "m", block_columns=2),
        lambda x, w: meshrt.lax.all_gather(x, "m", tiled=True) @ w,
        (_draw(16, 6), _draw(6, 12)), (P(("d", "m")), P(None, "m")), P("d", "m"),
    ),
    "scattered sums": (
        lambda x, w: ops.matmul_reduce_scatter(x, w, "m", block_columns=4),
        lambda x, w: meshrt.lax.psum_scatter(x @ w, "m", tiled=True),
        (_draw(16, 12), _draw(12, 6)), (P(None, "m"), P("m")), P("m"),
    ),
    "norm with one scale": (
        ops.rms_norm, lambda x, s: x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * s,
        (_draw(8, 4), _draw(4)), (P("d"), P()), P("d"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RINGS)
def test_in_the_program_of_one_device(name):
    kernel, plain, args, specs, spec = RINGS[name]
    mesh = meshrt.make_mesh((2, 4), ("d", "m"), axis_types=(AxisType.Auto,) * 2)
    mapped = [
        meshrt.jit(meshrt.shard_map(f, mesh=mesh, in_specs=specs, out_specs=spec)) for f in (kernel, plain)
    ]  # fmt: skip
    got, want = [f(*args) for f in mapped]
    _close(got, want, 1e-5)
    cotangent = _draw(*want.shape, seed=9)
    for mine, other in zip(*[meshrt.grad(lambda *a, f=f: (f(*a) * cotangent).sum(), (0, 1))(*args) for f in mapped]):
        assert mine.dtype == other.dtype
        _close(mine, other, 1e-4)


# ---------------------------------------------------------------------------------------------------------------------

ONE = np.ones((2, 3), np.float32)
REFUSED = {
    "activation": (lambda: ops.matmul(ONE, ONE.T, activation="elu"), errors.ArgumentValueError, "None, 'relu'"),
    "sizes": (lambda: ops.matmul(ONE, ONE), errors.ArgumentTypeError, r"\(2, 3\) and \(2, 3\)"),
    "bias": (lambda: ops.matmul(ONE, ONE.T, ONE[0]), errors.ArgumentTypeError, r"a bias of \(2,\), got \(3,\)"),
    "dtypes": (lambda: ops.matmul(ONE, ONE.T.astype("int32")), errors.ArgumentTypeError, "float32, int32"),
    "rank": (lambda: ops.flash_attention(ONE, ONE, ONE), errors.ArgumentTypeError, "batch, queries, heads, width"),
    "groups": (lambda: ops.flash_attention(Q[:, :, :3], K, V), errors.ArgumentTypeError, "3 heads"),
    "bias of attention": (
        lambda: ops.flash_attention(Q, K, V, _draw(1, 3, 1, 1)), errors.ArgumentTypeError, "does not broadcast",
    ),
    "segments": (
        lambda: ops.flash_attention(Q, K, V, query_segments=LABELS), errors.ArgumentTypeError, r"shape \(2, 13\)",
    ),
    "scale of a norm": (lambda: ops.rms_norm(ONE, ONE[:, 0]), errors.ArgumentTypeError, r"shape \(3,\), got"),
    "labels": (lambda: ops.softmax_cross_entropy(ONE, LABELS), errors.ArgumentTypeError, r"labels of shape \(2,\)"),
    "label dtype": (lambda: ops.softmax_cross_entropy(ONE, ONE[:, 0]), errors.ArgumentTypeError, "integer labels"),
    "head": (lambda: ops.linear_cross_entropy(ONE, ONE.T, [0, 1]), errors.ArgumentTypeError, r"\(vocabulary, 3\)"),
    "states": (lambda: ops.selective_scan(*STATES[:3], Q, K), errors.ArgumentTypeError, "channels, states"),
    "pages": (lambda: ops.paged_attention(Q, K, V, LENGTHS, TABLE), errors.ArgumentTypeError, "key_pages"),
    "table": (lambda: ops.paged_attention(*PAGED, LENGTHS, TABLE[:2]), errors.ArgumentTypeError, "page_indices"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    call, kind, text = REFUSED[name]
    with pytest.raises(kind, match=text):
        call()


def test_the_page():
    page = Path(__file__).resolve().parents[3] / "docs" / "kernel-library.md"
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    exec("\n".join(blocks), {})  # the page is ours


@pytest.mark.parametrize("name", ["attention", "losses", "norms", "paging", "products", "rings", "scans"])
def test_docstrings(name):
    found = doctest.testmod(importlib.import_module(f"{ops.__name__}.{name}"))
    assert found.attempted and not found.failed
