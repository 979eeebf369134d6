# ruff: noqa: E501  (tables of cases read better unwrapped)
"""Matrix products and einsum against jax.numpy, and the plans behind them."""

import jax.numpy as jj
import ml_dtypes
import numpy as np
import pytest

import meshrt
import meshrt.numpy as mj

from .judge import Cases, sample

BF16 = ml_dtypes.bfloat16


def r(*shape, dtype="float32"):
    return sample(shape, dtype)


EINSUMS = [
    ("ij,jk->ik", (2, 3), (3, 4)), ("ij,jk", (2, 3), (3, 4)), ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)), ("btd,vd->btv", (2, 3, 4), (7, 4)),
    ("bshd,hde->bse", (2, 3, 4, 5), (4, 5, 6)), ("ii->i", (3, 3)), ("ii", (3, 3)), ("iij,jk->k", (3, 3, 2), (2, 5)), ("ij->", (2, 3)), ("ij->ji", (2, 3)),
    ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)), ("i,j->ij", (2,), (3,)), ("ij,ij->", (2, 3), (2, 3)), ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    ("ij,j->", (2, 3), (1,)), ("ij,ij->i", (2, 1), (2, 4)), ("a,ab,abc->abc", (2,), (2, 3), (2, 3, 4)), ("abcd,acef,bdeg->fg", (2, 3, 2, 3), (2, 2, 3, 4), (3, 3, 3, 5)),
    ("i...->...", (2, 3)), ("ij,k->", (2, 3), (4,)), (" i j , j k -> k i ", (2, 3), (3, 4)), ("zyx", (2, 3, 4)), ("ii,jj->ij", (3, 3), (4, 4)), ("i,i,i->i", (3,), (3,), (3,)),
    ("ij,jk->iq", (2, 3), (3, 4)), ("ij,jk->ik", (2, 3), (4, 4)), ("ij->ijk", (2, 3)), ("ij,jk", (2, 3)), ("->", ()), (",->", (), ()), ("...->...", (2, 3)),
]  # fmt: skip


def test_einsum():
    cases = Cases()
    for subscripts, *shapes in EINSUMS:
        cases.add(mj.einsum, jj.einsum, subscripts, *(r(*s) for s in shapes), tol=1e-4)
    for optimize in (True, False, "greedy", "optimal", [(0, 1), (0, 1)]):
        cases.add(mj.einsum, jj.einsum, "ij,jk,kl->il", r(2, 3), r(3, 4), r(4, 5), optimize=optimize, tol=1e-4)
    a, b = r(2, 3), r(3, 4)
    cases.add(
        lambda a, b: mj.einsum(a, [0, 1], b, [1, 2], [0, 2]),
        lambda a, b: jj.einsum(a, [0, 1], b, [1, 2], [0, 2]),
        a,
        b,
        tol=1e-4,
    )
    for x, y in (
        (r(2, 3, dtype=BF16), r(3, 4, dtype=BF16)),
        (r(2, 3, dtype=BF16), r(3, 4)),
        (r(2, 3, dtype="int32"), r(3, 4, dtype="int8")),
    ):
        cases.add(mj.einsum, jj.einsum, "ij,jk->ik", x, y, tol=5e-2)
        cases.add(mj.einsum, jj.einsum, "ij,jk->ik", x, y, preferred_element_type="float32", tol=1e-3)
    cases.run()


def test_products():
    cases = Cases()
    for a, b in [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (6, 3, 4)),
                 ((1, 2, 3), (5, 3, 4)), ((3,), (5, 3, 4)), ((2, 3), (5, 3, 4)), ((5, 2, 3), (3,)), ((2, 3), (4, 3)), ((5, 2, 3), (4, 3, 2))]:  # fmt: skip
        cases.add(mj.matmul, jj.matmul, r(*a), r(*b), tol=1e-5)
        cases.add(mj.dot, jj.dot, r(*a), r(*b), tol=1e-5)
    cases.add(mj.matmul, jj.matmul, r(2, 3, dtype=BF16), r(3, 4), tol=1e-2)
    cases.add(
        mj.matmul, jj.matmul, r(2, 3, dtype=BF16), r(3, 4, dtype=BF16), preferred_element_type="float32", tol=1e-3
    )
    cases.add(mj.matmul, jj.matmul, r(2, 3, dtype="int32"), r(3, 4), precision="highest", tol=1e-5)
    cases.add(mj.matmul, jj.matmul, np.float32(2), r(3))
    cases.add(mj.dot, jj.dot, 2.0, r(3))
    cases.add(mj.tensordot, jj.tensordot, r(2, 3, 4), r(3, 4, 5), tol=1e-5)
    cases.add(mj.tensordot, jj.tensordot, r(2, 3, 4), r(4, 5), 1, tol=1e-5)
    cases.add(mj.tensordot, jj.tensordot, r(2, 3, 4), r(3, 2), ([0, 1], [1, 0]), tol=1e-5)
    cases.add(mj.tensordot, jj.tensordot, r(2, 3), r(3, 2), (1, 0), tol=1e-5)
    cases.add(mj.outer, jj.outer, r(3), r(2, 2))
    cases.add(mj.inner, jj.inner, r(2, 3), r(4, 3), tol=1e-5)
    cases.add(mj.inner, jj.inner, r(2, 3), 2.0)
    cases.add(mj.vdot, jj.vdot, r(2, 3, dtype="complex64"), r(6, dtype="complex64"), tol=1e-5)
    cases.add(mj.vecdot, jj.vecdot, r(2, 3), r(4, 1, 3), tol=1e-5)
    cases.add(mj.cross, jj.cross, r(2, 3), r(2, 3))
    cases.add(mj.cross, jj.cross, r(2, 2), r(2, 2))
    for ord in (None, 1, 2, 3, np.inf, -np.inf, 0):
        cases.add(mj.linalg.norm, jj.linalg.norm, r(5), ord=ord, tol=1e-5)
        if ord not in (2, 3, 0):
            cases.add(mj.linalg.norm, jj.linalg.norm, r(3, 4), ord=ord, axis=(0, 1), tol=1e-5)
    cases.add(mj.linalg.norm, jj.linalg.norm, r(3, 4), axis=-1, keepdims=True, tol=1e-5)
    cases.add(mj.linalg.norm, jj.linalg.norm, r(3, 4, dtype="complex64"), tol=1e-5)
    cases.add(mj.linalg.matrix_power, jj.linalg.matrix_power, r(3, 3), 5, tol=1e-3)
    cases.add(
        lambda a, b, c: mj.linalg.multi_dot([a, b, c]),
        lambda a, b, c: jj.linalg.multi_dot([a, b, c]),
        r(3),
        r(3, 4),
        r(4, 2),
        tol=1e-5,
    )
    cases.run()


def operations(f, *args):
    return [e.primitive.name for e in meshrt.make_jaxpr(f)(*args).jaxpr.eqns]


@pytest.mark.smoke
def test_a_contraction_is_one_operation():
    q, k = mj.zeros((2, 5, 3, 4)), mj.zeros((2, 6, 3, 4))
    assert operations(lambda q, k: mj.einsum("bqhd,bkhd->bhqk", q, k), q, k) == ["dot_general"]
    assert operations(lambda x, w: x @ w, mj.zeros((2, 3, 4)), mj.zeros((4, 5))) == ["dot_general"]
    assert operations(lambda x, w: mj.einsum("btd,vd->btv", x, w), mj.zeros((2, 3, 4)), mj.zeros((7, 4))) == [
        "dot_general"
    ]
    assert operations(lambda x: x * 2.0 + 1, mj.zeros(3)) == ["mul", "add"]


def test_gradients_of_weights_are_not_transposed():
    """The cotangent of `w` in `x @ w` is contracted from x and ct in the order of w's dimensions."""
    x, w = mj.ones((2, 3, 4)), mj.ones((4, 5))
    assert "transpose" not in operations(meshrt.grad(lambda w: mj.sum((x @ w) ** 2)), w)
    tied = meshrt.grad(lambda w: mj.sum(mj.einsum("btd,vd->btv", x, w) ** 2))
    assert "transpose" not in operations(tied, mj.ones((7, 4)))


def test_each_operand_keeps_its_precision_in_gradients():
    loss = lambda a, b: mj.sum(meshrt.lax.dot(a, b, precision=("high", "highest")) ** 2)
    text = str(meshrt.make_jaxpr(meshrt.grad(loss, (0, 1)))(mj.ones((3, 4)), mj.ones((4, 5))))
    assert text.count("(Precision.HIGH, Precision.HIGHEST)") == 3  # a @ b, aᵀ ct, ct bᵀ


def test_the_order_of_contractions_is_the_cheapest():
    path, _ = mj.einsum_path("ij,jk,kl->il", np.zeros((2, 100)), np.zeros((100, 100)), np.zeros((100, 100)))
    assert path == [(0, 1), (0, 1)]
    path, _ = mj.einsum_path("ij,jk,kl->il", np.zeros((100, 100)), np.zeros((100, 100)), np.zeros((100, 2)))
    assert path == [(1, 2), (0, 1)]


@pytest.mark.parametrize("subscripts", ["...qhgd,...kh1d->...hgqk", "abh!d,ckh1d->hbdkc!1a"])
def test_labels_are_any_characters(subscripts):
    a, b = np.ones((1, 2, 3, 2, 4)), np.ones((1, 5, 3, 1, 4))
    assert mj.einsum(subscripts, a, b).shape == jj.einsum(subscripts, a, b).shape


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda a, b: mj.matmul(a, a), r"contracting dimensions to have the same shape, got \(3,\) and \(2,\)"),
        (lambda a, b: mj.einsum("ij,jk->ik", a, a), r"Size of label 'j' for operand 1"),
        (lambda a, b: mj.einsum("ij->ijk", a), "Output character 'k' did not appear in the input"),
        (lambda a, b: mj.einsum("ijk->i", a), "'ijk' does not fit an operand of 2 dimensions"),
        (
            lambda a, b: mj.einsum("ij,jk->ik", a),
            "Number of einsum subscripts, 2, must be equal to the number of operands, 1",
        ),
        (lambda a, b: mj.einsum("i.->i", a), "may hold labels and one '...', not '.'"),
    ],
)
def test_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call(mj.zeros((2, 3)), mj.zeros((3, 4)))
