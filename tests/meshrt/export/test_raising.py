"""Modules read as operations of ours: mapped calls do for all members at once what the function does for each."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import export, lax
from tests.meshrt.export.exporting import X, spec, through_bytes
from tests.meshrt.export.test_symbolic_functions import ROWS, arguments

A = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def is_at_once(loaded):
    """Whether mapped calls so far were of the function's own operations."""
    (made,) = loaded.at_once.values()
    return made is not None


def member_by_member(f, batch):
    outs = [f(*[b[i] for b in batch]) for i in range(len(batch[0]))]
    return meshrt.tree.map(lambda *xs: np.stack([np.asarray(x) for x in xs]), *outs)


def alike(found, expected):
    for a, b in zip(meshrt.tree.leaves(found), meshrt.tree.leaves(expected), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.dtype.kind not in "fcV":
            np.testing.assert_array_equal(a, b)
        else:
            wide = np.complex64 if a.dtype.kind == "c" else np.float32
            np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol=2e-5, atol=2e-6)


@pytest.mark.sweep(12)
@pytest.mark.parametrize("row", ROWS, ids=[r[0] for r in ROWS])
def test_functions_are_mapped_as_they_are_called(row):
    _, f, _, given = row
    args = [np.asarray(a) for a in arguments(given)]
    loaded = through_bytes(meshrt.jit(f))(*args)
    batch = [np.stack([a, np.flip(a), a]) for a in args]
    alike(meshrt.vmap(loaded.call)(*batch), member_by_member(loaded.call, batch))


def layer(x, w):
    y = lax.fori_loop(0, 2, lambda i, c: jnp.sin(c @ w), x)
    return jnp.sort(jnp.where(y > 0, y, 0.0), -1), lax.cumsum(y), y[:, ::-1].argmax()


def test_no_member_waits_for_another_and_what_they_share_is_not_copied():
    w = A.T @ A
    loaded = through_bytes(meshrt.jit(lambda x, w: jnp.tanh(x @ w)))(A, w)
    text = meshrt.jit(meshrt.vmap(loaded.call, (0, None))).lower(np.stack([A, A]), w).as_text()
    assert "while" not in text and "batching_dims" not in text
    assert "tensor<2x2x4xf32>, tensor<4x4xf32>" in text
    loaded = through_bytes(meshrt.jit(layer))(A, w)
    batch = np.stack([A, A * 2, -A])
    alike(meshrt.vmap(loaded.call, (0, None))(batch, w), member_by_member(lambda x: layer(x, w), [batch]))
    assert is_at_once(loaded)


@pytest.mark.parametrize("dtype", [
    jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.int4, np.int8, np.uint8, np.bool_, np.complex64, np.int32,
])  # fmt: skip
def test_constants_of_every_kind_of_element(dtype):
    few = np.asarray([1, 0, 1, 1]).astype(dtype)
    many = np.resize([1, 0, 1], 300).astype(dtype)
    whole = few.dtype.kind in "biu" or "int" in few.dtype.name
    odd = few if whole else np.asarray([np.nan, -0.0, 0.5, 2]).astype(dtype)
    chosen = lambda x: [jnp.where(x, c, jnp.zeros_like(c)) for c in map(jnp.asarray, (few, many, odd))]
    loaded = through_bytes(meshrt.jit(chosen))(True)
    found = meshrt.vmap(loaded.call)(np.array([True, True]))
    assert is_at_once(loaded)
    for a, b in zip(found, (few, many, odd)):
        assert a.dtype == b.dtype and all(np.asarray(a[i]).tobytes() == b.tobytes() for i in range(2))


TWO = """func.func private @two(%x: tensor<3xf32>) -> (tensor<2xf32>, tensor<2xi32>) {
    %0 = stablehlo.slice %x [0:2] : (tensor<3xf32>) -> tensor<2xf32>
    %1 = stablehlo.convert %0 : (tensor<2xf32>) -> tensor<2xi32>
    return %0, %1 : tensor<2xf32>, tensor<2xi32> }"""
FOREIGN = {
    # name: types of the argument and the result, the body, arguments, results, whether it is mapped at once
    "a branch of no such number": ("tensor<i32>", "tensor<i32>", """
        %0 = "stablehlo.case"(%x) ({
          %c = stablehlo.constant dense<10> : tensor<i32> stablehlo.return %c : tensor<i32> }, {
          %c = stablehlo.constant dense<20> : tensor<i32> stablehlo.return %c : tensor<i32> })
          : (tensor<i32>) -> tensor<i32>
        """, np.array([-3, 0, 1, 7], np.int32), np.array([20, 10, 20, 20], np.int32), True),
    "a slice that begins before the array": ("tensor<4xi32>", "tensor<2xi32>", """
        %c = stablehlo.constant dense<-2> : tensor<i32>
        %0 = stablehlo.dynamic_slice %x, %c, sizes = [2] : (tensor<4xi32>, tensor<i32>) -> tensor<2xi32>
        """, np.arange(8, dtype=np.int32).reshape(2, 4), np.array([[0, 1], [4, 5]], np.int32), True),
    "a gather out of bounds, without a dimension of vectors": ("tensor<4xi32>", "tensor<2xi32>", """
        %c = stablehlo.constant dense<[-5, 9]> : tensor<2xi32>
        %0 = "stablehlo.gather"(%x, %c) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0],
          start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1>}>
          : (tensor<4xi32>, tensor<2xi32>) -> tensor<2xi32>
        """, np.arange(8, dtype=np.int32).reshape(2, 4), np.array([[0, 3], [4, 7]], np.int32), True),
    "a scatter out of bounds": ("tensor<4xi32>", "tensor<4xi32>", """
        %c = stablehlo.constant dense<[[1], [-1], [9], [1]]> : tensor<4x1xi32>
        %u = stablehlo.constant dense<5> : tensor<4xi32>
        %0 = "stablehlo.scatter"(%x, %c, %u) <{scatter_dimension_numbers = #stablehlo.scatter<
          inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
          ^bb0(%a: tensor<i32>, %b: tensor<i32>):
          %s = stablehlo.add %a, %b : tensor<i32> stablehlo.return %s : tensor<i32>
          }) : (tensor<4xi32>, tensor<4x1xi32>, tensor<4xi32>) -> tensor<4xi32>
        """, np.arange(8, dtype=np.int32).reshape(2, 4), np.array([[0, 11, 2, 3], [4, 15, 6, 7]], np.int32), True),
    "a scatter of bits": ("tensor<4xi32>", "tensor<4xi32>", """
        %c = stablehlo.constant dense<[[1], [2], [9], [1]]> : tensor<4x1xi32>
        %u = stablehlo.constant dense<[5, 3, 1, 4]> : tensor<4xi32>
        %0 = "stablehlo.scatter"(%x, %c, %u) <{scatter_dimension_numbers = #stablehlo.scatter<
          inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
          ^bb0(%a: tensor<i32>, %b: tensor<i32>):
          %s = stablehlo.xor %a, %b : tensor<i32> stablehlo.return %s : tensor<i32>
          }) : (tensor<4xi32>, tensor<4x1xi32>, tensor<4xi32>) -> tensor<4xi32>
        """, np.arange(8, dtype=np.int32).reshape(2, 4), np.array([[0, 0, 1, 3], [4, 4, 5, 7]], np.int32), True),
    "an order of its own": ("tensor<4xi32>", "tensor<4xi32>", """
        %0 = "stablehlo.sort"(%x) <{dimension = 0 : i64, is_stable = true}> ({
          ^bb0(%a: tensor<i32>, %b: tensor<i32>):
          %s = stablehlo.compare GT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %s : tensor<i1> }) : (tensor<4xi32>) -> tensor<4xi32>
        """, np.array([[1, 3, 2, 0], [5, 5, 6, 4]], np.int32), np.array([[3, 2, 1, 0], [6, 5, 5, 4]], np.int32), False),
    "64 bits inside": ("tensor<i32>", "tensor<i32>", """
        %c = stablehlo.constant dense<4294967296> : tensor<i64>
        %1 = stablehlo.convert %x : (tensor<i32>) -> tensor<i64>
        %2 = stablehlo.multiply %1, %c : tensor<i64>
        %3 = stablehlo.divide %2, %c : tensor<i64>
        %0 = stablehlo.convert %3 : (tensor<i64>) -> tensor<i32>
        """, np.array([3, -4], np.int32), np.array([3, -4], np.int32), True),
    "a composite whose attributes make no sense": ("tensor<3xf32>", "tensor<2xf32>", """
        %0, %1 = stablehlo.composite "chlo.top_k" %x {composite_attributes = {k = 3 : i8}, decomposition = @two}
          : (tensor<3xf32>) -> (tensor<2xf32>, tensor<2xi32>)
        """, np.array([[1, 3, 2]], np.float32), np.array([[1, 3]], np.float32), True),
    "a composite with an attribute of its own": ("tensor<3xf32>", "tensor<2xf32>", """
        %0, %1 = stablehlo.composite "chlo.top_k" %x {composite_attributes = {k = 2 : i64, largest = false},
          decomposition = @two} : (tensor<3xf32>) -> (tensor<2xf32>, tensor<2xi32>)
        """, np.array([[1, 3, 2]], np.float32), np.array([[1, 3]], np.float32), True),
    "a reduction that begins with an argument": ("tensor<2xf32>", "tensor<f32>", """
        %1 = stablehlo.slice %x [0:1] : (tensor<2xf32>) -> tensor<1xf32>
        %2 = stablehlo.reshape %1 : (tensor<1xf32>) -> tensor<f32>
        %0 = stablehlo.reduce(%x init: %2) applies stablehlo.add across dimensions = [0]
          : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
        """, np.array([[1, 2], [3, 5]], np.float32), np.array([4, 11], np.float32), False),
    "an update of an array longer than its index can say": ("tensor<i8>", "tensor<4xi32>", """
        %c = stablehlo.constant dense<0> : tensor<300xi32>
        %u = stablehlo.constant dense<5> : tensor<2xi32>
        %1 = stablehlo.dynamic_update_slice %c, %u, %x : (tensor<300xi32>, tensor<2xi32>, tensor<i8>) -> tensor<300xi32>
        %0 = stablehlo.slice %1 [125:129] : (tensor<300xi32>) -> tensor<4xi32>
        """, np.array([127, 3, 125], np.int8), np.array([[0, 0, 5, 5], [0, 0, 0, 0], [5, 5, 0, 0]], np.int32), True),
    "sums of truth values": ("tensor<2xi1>", "tensor<i1>", """
        %c = stablehlo.constant dense<false> : tensor<i1>
        %0 = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [0]
          : (tensor<2xi1>, tensor<i1>) -> tensor<i1>
        """, np.array([[True, True], [False, False]]), np.array([True, False]), True),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_modules_of_others_keep_their_meaning(name):
    takes, gives, body, batch, expected, at_once = FOREIGN[name]
    loaded = export.from_stablehlo(f"{TWO} func.func @main(%x: {takes}) -> {gives} {{ {body} return %0 : {gives} }}")
    alike([loaded.call(x) for x in batch], list(expected))
    alike(meshrt.vmap(loaded.call)(batch), expected)
    assert is_at_once(loaded) == at_once


def test_constants_of_which_not_every_element_is_written_are_not_guessed():
    text = """func.func @main(%x: tensor<f32>) -> tensor<2xf32> {
      %0 = stablehlo.constant sparse<[[0]], [7.0]> : tensor<2xf32>
      return %0 : tensor<2xf32> }"""
    loaded = export.from_stablehlo(text)
    with pytest.raises(meshrt.errors.CompileError, match="dense"):  # as a call without vmap
        meshrt.vmap(loaded.call)(X)
    assert not is_at_once(loaded)


def test_functions_that_call_each_other_several_times_are_read_once():
    kind = "tensor<f32>"
    function = lambda name, body: f"func.func {name}(%x: {kind}) -> {kind} {{ {body} return %0 : {kind} }}"
    call = lambda result, name: f"%{result} = call @{name}(%x) : ({kind}) -> {kind} "
    lines = [function("private @f0", f"%0 = stablehlo.add %x, %x : {kind}")]
    for k in range(1, 8):  # written in place, 2**7 additions
        calls = call(1, f"f{k - 1}") + call(2, f"f{k - 1}")
        lines.append(function(f"private @f{k}", f"{calls} %0 = stablehlo.maximum %1, %2 : {kind}"))
    loaded = export.from_stablehlo("\n".join([*lines, function("@main", call(0, "f7"))]))
    assert str(meshrt.make_jaxpr(meshrt.vmap(loaded.call))(X)).count(" add ") == 1
    alike(meshrt.vmap(loaded.call)(X), X * 2)


def test_constants_of_one_value_are_no_larger_than_it():
    body = "".join(
        f"%{k} = stablehlo.constant dense<{v}> : tensor<{n}x{t}> "
        f"%{k}s = stablehlo.slice %{k} [0:2] : (tensor<{n}x{t}>) -> tensor<2x{t}> "
        for n in (10**12,) for k, v, t in (("a", "3", "i8"), ("b", "1.5", "bf16"), ("c", "(1.0,2.0)", "complex<f32>"))
    )  # fmt: skip
    kinds = "tensor<2xi8>, tensor<2xbf16>, tensor<2xcomplex<f32>>"
    text = f"func.func @main(%x: tensor<f32>) -> ({kinds}) {{ {body} return %as, %bs, %cs : {kinds} }}"
    loaded = export.from_stablehlo(text)
    found = meshrt.eval_shape(meshrt.vmap(loaded.call), X)
    assert [f.shape for f in found] == [(4, 2)] * 3 and is_at_once(loaded)


def test_sizes_by_number_jaxs_files_and_nested_maps():
    (n,) = export.symbolic_shape("n")
    loaded = through_bytes(meshrt.jit(lambda x: jnp.cumsum(x) + x.shape[0]), vjp_order=1)(spec((n,)))
    batch = np.stack([A, A + 1])
    alike(meshrt.vmap(meshrt.vmap(loaded.call))(batch), np.cumsum(batch, 2) + 4)
    alike(meshrt.vmap(meshrt.grad(lambda x: (loaded.call(x) ** 2).sum()))(A),
          meshrt.vmap(meshrt.grad(lambda x: ((jnp.cumsum(x) + 4) ** 2).sum()))(A))  # fmt: skip
    assert is_at_once(loaded.vjp())
    theirs = jax.export.export(jax.jit(lambda x: jax.numpy.sort(jax.nn.gelu(x))[::-1]))(A[0]).serialize()
    read = export.from_jax(theirs)
    alike(meshrt.vmap(read.call)(A), jax.vmap(lambda x: jax.numpy.sort(jax.nn.gelu(x))[::-1])(A))
    assert is_at_once(read)


def test_random_numbers_of_jaxs_files_which_count_in_64_bits_in_any_case():
    def draw(seed):
        key, other = jax.random.split(jax.random.key(seed))
        return jax.random.normal(key, (3,)), jax.random.bits(other, (2,))

    read = export.from_jax(jax.export.export(jax.jit(draw))(np.uint32(0)).serialize())
    seeds = np.arange(4, dtype=np.uint32)
    mapped = meshrt.vmap(read.call)
    again = lambda f: lambda s: [x[0] for x in meshrt.vmap(f)(s[None])]
    in_a_loop = lambda s: [x[0] for x in meshrt.lax.scan(lambda c, s: (c, mapped(s)), 0, s[None])[1]]
    loaded = through_bytes(meshrt.jit(mapped))(seeds).call
    for form in (mapped, again(meshrt.jit(mapped)), meshrt.jit(again(in_a_loop)), again(loaded)):
        found = form(seeds)
        alike([np.asarray(x).reshape(np.shape(x)[-2:]) for x in found], jax.vmap(draw)(seeds))
    with meshrt.config.override(enable_x64=True):
        alike(mapped(seeds), jax.vmap(draw)(seeds))
    assert all(made is not None for made in read.at_once.values())


WIDE = """func.func @main(%x: tensor<i32>) -> (tensor<2xi32>, tensor<f32>) {
    %c = stablehlo.constant dense<[-3, 1099511627776]> : tensor<2xi64>
    %s = stablehlo.constant dense<20> : tensor<2xi64>
    %0 = stablehlo.shift_right_arithmetic %c, %s : tensor<2xi64>
    %1 = stablehlo.convert %x : (tensor<i32>) -> tensor<i64>
    %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<i64>) -> tensor<2xi64>
    %3 = stablehlo.add %0, %2 : tensor<2xi64>
    %4 = stablehlo.convert %3 : (tensor<2xi64>) -> tensor<2xi32>
    %d = stablehlo.constant dense<1.0e-60> : tensor<f64>
    %e = stablehlo.constant dense<(1.0e60, 2.0)> : tensor<complex<f64>>
    %f = stablehlo.real %e : (tensor<complex<f64>>) -> tensor<f64>
    %5 = stablehlo.multiply %d, %f : tensor<f64>
    %6 = stablehlo.convert %5 : (tensor<f64>) -> tensor<f32>
    return %4, %6 : tensor<2xi32>, tensor<f32> }"""


@pytest.mark.parametrize("real", [True, False])
def test_numbers_of_64_bits_inside_of_a_module_keep_them_or_it_is_called_as_it_is(real):
    text = WIDE if not real else WIDE.replace("tensor<complex<f64>>", "tensor<f64>").replace(
        "(1.0e60, 2.0)", "1.0e60").replace("stablehlo.real %e : (tensor<f64>) ->", "stablehlo.negate %e :")  # fmt: skip
    read = export.from_stablehlo(text)
    whole, one = meshrt.vmap(read.call)(np.arange(3, dtype=np.int32))
    np.testing.assert_array_equal(whole, np.array([[-1, 2**20]]) + np.arange(3)[:, None])
    np.testing.assert_allclose(one, np.full(3, -1 if real else 1))
    assert is_at_once(read) == real
