"""What must be right to the last bit: positions of every integer type, moved bits, zeros and infinities in sums."""

import ml_dtypes
import numpy as np
import pytest

import collectives
import propagation
from collectives.analysis import monoids

from . import harness
from .text_side import MESH, _plain, check_text, over, per_value

F32 = np.float32
X, WHOLE = over("x"), over("")
FAR = {"ui32": np.uint32(2**32 - 1), "i64": np.int64(2**32), "ui64": np.uint64(2**63), "ui8": np.uint8(200),
       "i8": np.int8(-5)}  # fmt: skip
COLUMN = "scatter_dims_to_operand_dims = [0], index_vector_dim = 1"


def reducer(op: str, dtype: str = "f32") -> str:
    t = f"tensor<{dtype}>"
    return f"""({{
^bb0(%a: {t}, %b: {t}):
  %o = stablehlo.{op} %a, %b : {t}
  stablehlo.return %o : {t}
}})"""


# -- positions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FAR)
def test_slices_clamp_a_start_in_its_own_type(dtype):
    text = f"""{MESH}
func.func @main(%x: tensor<16xf32> {X}, %u: tensor<2xf32>, %i: tensor<{dtype}>)
    -> (tensor<2xf32>, tensor<16xf32> {X}) {{
  %q = stablehlo.dynamic_slice %x, %i, sizes = [2] : (tensor<16xf32>, tensor<{dtype}>) -> tensor<2xf32>
  %r = stablehlo.dynamic_update_slice %x, %u, %i {per_value("x")}
    : (tensor<16xf32>, tensor<2xf32>, tensor<{dtype}>) -> tensor<16xf32>
  return %q, %r : tensor<2xf32>, tensor<16xf32>
}}"""
    check_text(text, [np.arange(16, dtype=F32), -np.ones(2, F32), FAR[dtype]])


def test_starts_of_whole_and_split_dimensions_share_a_type():
    text = f"""{MESH}
func.func @main(%x: tensor<16x6xf32> {over("x", "")}, %u: tensor<2x3xf32>, %i: tensor<ui32>)
    -> (tensor<2x3xf32>, tensor<16x6xf32> {over("x", "")}) {{
  %q = stablehlo.dynamic_slice %x, %i, %i, sizes = [2, 3]
    : (tensor<16x6xf32>, tensor<ui32>, tensor<ui32>) -> tensor<2x3xf32>
  %r = stablehlo.dynamic_update_slice %x, %u, %i, %i {per_value("x", "")}
    : (tensor<16x6xf32>, tensor<2x3xf32>, tensor<ui32>, tensor<ui32>) -> tensor<16x6xf32>
  return %q, %r : tensor<2x3xf32>, tensor<16x6xf32>
}}"""
    check_text(text, [np.arange(96, dtype=F32).reshape(16, 6), -np.ones((2, 3), F32), np.uint32(2**32 - 1)])


@pytest.mark.parametrize("dtype", FAR)
def test_gathers_clamp_and_scatters_drop_an_index_in_its_own_type(dtype):
    text = f"""{MESH}
func.func @main(%x: tensor<16xf32> {X}, %i: tensor<3x1x{dtype}>, %u: tensor<3xf32>)
    -> (tensor<3xf32>, tensor<16xf32> {X}) {{
  %q = "stablehlo.gather"(%x, %i) <{{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0],
    start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1>}}>
    : (tensor<16xf32>, tensor<3x1x{dtype}>) -> tensor<3xf32>
  %r = "stablehlo.scatter"(%x, %i, %u) <{{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0],
    {COLUMN}>}}> {reducer("add")} {per_value("x")}
    : (tensor<16xf32>, tensor<3x1x{dtype}>, tensor<3xf32>) -> tensor<16xf32>
  return %q, %r : tensor<3xf32>, tensor<16xf32>
}}"""
    index = np.array([[1], [FAR[dtype]], [5]], FAR[dtype].dtype)
    check_text(text, [np.arange(16, dtype=F32), index, -np.ones(3, F32)])


def test_a_scatter_writes_a_dimension_without_index_at_its_start():
    text = f"""{MESH}
func.func @main(%x: tensor<4x16xf32> {over("", "x")}, %i: tensor<3x1xi32>, %u: tensor<3x1xf32>)
    -> (tensor<4x16xf32> {over("", "x")}) {{
  %q = "stablehlo.scatter"(%x, %i, %u) <{{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
    inserted_window_dims = [0], {COLUMN}>}}> {reducer("add")} {per_value("", "x")}
    : (tensor<4x16xf32>, tensor<3x1xi32>, tensor<3x1xf32>) -> tensor<4x16xf32>
  return %q : tensor<4x16xf32>
}}"""
    check_text(text, [np.zeros((4, 16), F32), np.array([[1], [2], [1]], np.int32), np.ones((3, 1), F32)])
    text = f"""{MESH}
func.func @main(%x: tensor<16xf32> {X}, %i: tensor<0xi32>, %u: tensor<1xf32>) -> (tensor<16xf32> {X}) {{
  %q = "stablehlo.scatter"(%x, %i, %u) <{{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0],
    index_vector_dim = 0>}}> {reducer("add")} {per_value("x")}
    : (tensor<16xf32>, tensor<0xi32>, tensor<1xf32>) -> tensor<16xf32>
  return %q : tensor<16xf32>
}}"""
    check_text(text, [np.zeros(16, F32), np.zeros(0, np.int32), np.ones(1, F32)])


ROWS = {
    "repeated": ("8", "i32", "%i0 = stablehlo.iota dim = 0 : tensor<1xi32>\n"
                 "%i1 = stablehlo.broadcast_in_dim %i0, dims = [0] : (tensor<1xi32>) -> tensor<8x1xi32>"),
    "narrow": ("256", "i8", "%i0 = stablehlo.iota dim = 0 : tensor<256x1xi32>\n"
               "%i1 = stablehlo.convert %i0 : (tensor<256x1xi32>) -> tensor<256x1xi8>"),
}  # fmt: skip


@pytest.mark.parametrize("rows", ROWS)
def test_columns_that_only_seem_to_count(rows):
    n, dtype, made = ROWS[rows]
    text = f"""{MESH}
func.func @main(%x: tensor<{n}x16xf32> {over("x", "")}, %c: tensor<{n}x1x{dtype}> {over("x", "")})
    -> (tensor<{n}xf32> {X}) {{
  {made}
  %i = stablehlo.concatenate %i1, %c, dim = 1
    : (tensor<{n}x1x{dtype}>, tensor<{n}x1x{dtype}>) -> tensor<{n}x2x{dtype}>
  %q = "stablehlo.gather"(%x, %i) <{{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1],
    start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>}}>
    : (tensor<{n}x16xf32>, tensor<{n}x2x{dtype}>) -> tensor<{n}xf32>
  return %q : tensor<{n}xf32>
}}"""
    columns = (np.arange(int(n)) % 16).astype(np.dtype(f"int{dtype[1:]}"))[:, None]
    check_text(text, [np.arange(16 * int(n), dtype=F32).reshape(int(n), 16), columns])


# -- bits -----------------------------------------------------------------------------------------------------


def _selection(dtype: str) -> str:
    return f"""{MESH}
func.func @main(%x: tensor<16x{dtype}> {X}, %i: tensor<i32>, %j: tensor<3x1xi32>)
    -> (tensor<4x{dtype}>, tensor<3x{dtype}>) {{
  %q = stablehlo.dynamic_slice %x, %i, sizes = [4] : (tensor<16x{dtype}>, tensor<i32>) -> tensor<4x{dtype}>
  %g = "stablehlo.gather"(%x, %j) <{{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0],
    start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1>}}>
    : (tensor<16x{dtype}>, tensor<3x1xi32>) -> tensor<3x{dtype}>
  return %q, %g : tensor<4x{dtype}>, tensor<3x{dtype}>
}}"""


PAYLOADS = {"f32": 0x7FA00001, "f64": 0x7FF4000000000001, "f16": 0x7D01, "bf16": 0x7FC0}


@pytest.mark.parametrize("dtype", PAYLOADS)
def test_selected_elements_keep_their_bits(dtype):
    """A negative zero, subnormal numbers, a NaN with a payload; an odd number of elements and an even one."""
    kind = np.dtype({"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "f64": np.float64}[dtype])
    width = 8 * kind.itemsize
    x = np.array([1 << (width - 1), 1, PAYLOADS[dtype], 7] * 4, f"u{kind.itemsize}").view(kind)
    check_text(_selection(dtype), [x, np.int32(4), np.array([[0], [1], [2]], np.int32)])


# -- pending sums ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op, number", [("divide", 0.0), ("multiply", np.inf), ("multiply", np.nan)])
def test_a_pending_sum_meets_a_traced_number_only_when_complete(op, number):
    text = f"""{MESH}
func.func @main(%x: tensor<4x16xf32> {over("", "x")}, %w: tensor<16x8xf32> {over("x", "")}, %n: tensor<4x8xf32>,
    %y: tensor<4x8xf32>) -> (tensor<4x8xf32> {over("", "x")}) {{
  %s = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<4x16xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
  %q = stablehlo.{op} %s, %n : tensor<4x8xf32>
  %r = stablehlo.add %q, %y : tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}}"""
    x = np.zeros((4, 16), F32)
    x[:, 3] = 1
    args = [x, np.ones((16, 8), F32), np.full((4, 8), number, F32), np.ones((4, 8), F32)]
    check_text(text, args)


def test_a_pending_sum_is_scaled_by_known_numbers_before_it_is_taken():
    text = f"""{MESH}
func.func @main(%x: tensor<4x16xf32> {over("", "x")}, %w: tensor<16x8xf32> {over("x", "")},
    %v: tensor<16x8xf32> {over("x", "")}) -> (tensor<4x8xf32> {over("", "x")}) {{
  %s = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<4x16xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
  %t = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0]
    : (tensor<4x16xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
  %n = stablehlo.constant dense<16.0> : tensor<4x8xf32>
  %q = stablehlo.divide %s, %n : tensor<4x8xf32>
  %r = stablehlo.add %q, %t : tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}}"""
    partitioned = check_text(text, [np.ones((4, 16), F32), np.ones((16, 8), F32), np.ones((16, 8), F32)])
    assert partitioned.plan.counts == {"reduce_scatter": 1}


@pytest.mark.parametrize(
    "wide, number, narrow", [("f64", "1.0e-60", "f32"), ("f32", "1.0e-20", "f16"), ("i32", "0", "f32")]
)
def test_a_known_number_is_what_its_conversions_leave_of_it(wide, number, narrow):
    """Here nothing: each device's part divided by it would be NaN where the sum's quotient is infinite."""
    text = f"""{MESH}
func.func @main(%x: tensor<4x16x{narrow}> {over("", "x")}, %w: tensor<16x8x{narrow}> {over("x", "")})
    -> (tensor<4x8x{narrow}> {over("", "x")}) {{
  %s = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<4x16x{narrow}>, tensor<16x8x{narrow}>) -> tensor<4x8x{narrow}>
  %c = stablehlo.constant dense<{number}> : tensor<{wide}>
  %m = stablehlo.convert %c : (tensor<{wide}>) -> tensor<{narrow}>
  %n = stablehlo.broadcast_in_dim %m, dims = [] : (tensor<{narrow}>) -> tensor<4x8x{narrow}>
  %q = stablehlo.divide %s, %n : tensor<4x8x{narrow}>
  return %q : tensor<4x8x{narrow}>
}}"""
    kind = F32 if narrow == "f32" else np.float16
    x = np.zeros((4, 16), kind)
    x[:, 3] = 1
    check_text(text, [x, np.ones((16, 8), kind)])


# -- windows --------------------------------------------------------------------------------------------------


def test_a_running_total_beside_another_window():
    text = f"""{MESH}
func.func @main(%x: tensor<16x64xi32> {over("", "x")}) -> (tensor<15x64xi32> {over("", "x")}) {{
  %z = stablehlo.constant dense<0> : tensor<i32>
  %r = "stablehlo.reduce_window"(%x, %z) <{{window_dimensions = array<i64: 2, 64>,
    padding = dense<[[0, 0], [63, 0]]> : tensor<2x2xi64>}}> {reducer("add", "i32")} {per_value("", "x")}
    : (tensor<16x64xi32>, tensor<i32>) -> tensor<15x64xi32>
  return %r : tensor<15x64xi32>
}}"""
    check_text(text, [np.arange(16 * 64, dtype=np.int32).reshape(16, 64)])


@pytest.mark.parametrize("taps", [(64, 63, 0), (3, 1, 1)])
def test_windows_without_optional_attributes(taps):
    n, low, high = taps
    text = f"""{MESH}
func.func @main(%x: tensor<64x4xi32> {over("x", "")}) -> (tensor<64x4xi32> {over("x", "")}) {{
  %z = stablehlo.constant dense<-2147483648> : tensor<i32>
  %r = "stablehlo.reduce_window"(%x, %z) <{{window_dimensions = array<i64: {n}, 1>,
    padding = dense<[[{low}, {high}], [0, 0]]> : tensor<2x2xi64>}}> {reducer("maximum", "i32")} {per_value("x", "")}
    : (tensor<64x4xi32>, tensor<i32>) -> tensor<64x4xi32>
  return %r : tensor<64x4xi32>
}}"""
    check_text(text, [np.arange(256, dtype=np.int32).reshape(64, 4)])


def test_borders_do_not_count_the_initial_value_again():
    text = f"""{MESH}
func.func @main(%x: tensor<64xi32> {X}, %z: tensor<i32>) -> (tensor<64xi32> {X}) {{
  %r = "stablehlo.reduce_window"(%x, %z) <{{window_dimensions = array<i64: 3>,
    padding = dense<[[1, 1]]> : tensor<1x2xi64>}}> {reducer("add", "i32")} {per_value("x")}
    : (tensor<64xi32>, tensor<i32>) -> tensor<64xi32>
  return %r : tensor<64xi32>
}}"""
    check_text(text, [np.arange(64, dtype=np.int32), np.int32(100)])


@pytest.mark.parametrize("number, neutral", [("0.0", True), ("1.0", False)])
@pytest.mark.parametrize("border", [None, "0.3", "-77.125"])
def test_a_function_that_turns_at_a_number_has_no_neutral_element(number, neutral, border):
    turn = f"""%c = stablehlo.constant dense<{border}> : tensor<f32>
      %p = stablehlo.compare EQ, %s, %c : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %o = stablehlo.select %p, %a, %s : tensor<i1>, tensor<f32>"""
    text = f"""func.func @main(%x: tensor<16xf32>, %z: tensor<f32>) -> tensor<f32> {{
  %r = stablehlo.reduce(%x init: %z) across dimensions = [0] : (tensor<16xf32>, tensor<f32>) -> tensor<f32>
    reducer(%a: tensor<f32>, %b: tensor<f32>) {{
      %s = stablehlo.add %a, %b : tensor<f32>
      {turn if border else "%o = stablehlo.add %b, %a : tensor<f32>"}
      stablehlo.return %o : tensor<f32>
    }}
  return %r : tensor<f32>
}}"""
    (op, _) = propagation.program.read(text).main.body.ops
    assert monoids.is_neutral(op.regions[0], float(number)) is (neutral and border is None)


# -- loops, branches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step, limit", [("0.25", "1.0"), ("0x7F000000", "0x7F800000")])
def test_loops_that_count_in_floating_point(step, limit):
    text = f"""{MESH}
func.func @main(%x: tensor<16xf32> {X}) -> (tensor<16xf32> {X}) {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %r:2 = stablehlo.while(%i = %z, %a = %x) : tensor<f32>, tensor<16xf32>
   cond {{
    %l = stablehlo.constant dense<{limit}> : tensor<f32>
    %c = stablehlo.compare LT, %i, %l : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }} do {{
    %s = stablehlo.constant dense<{step}> : tensor<f32>
    %n = stablehlo.add %i, %s : tensor<f32>
    %b = stablehlo.add %a, %a : tensor<16xf32>
    stablehlo.return %n, %b : tensor<f32>, tensor<16xf32>
  }}
  return %r#1 : tensor<16xf32>
}}"""
    check_text(text, [np.arange(16, dtype=F32)])


# -- what a program says of itself ----------------------------------------------------------------------------


def test_effects_and_attributes_stay():
    text = f"""{MESH}
func.func @main(%x: tensor<16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}]>, mhlo.memory_kind = "device"}})
    -> (tensor<16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}]>, mhlo.memory_kind = "pinned_host"}}) {{
  %c = stablehlo.custom_call @foo(%x) {{has_side_effect = true,
    sdy.sharding_rule = #sdy.op_sharding_rule<([i])->([i]) {{i=16}}, custom>}} : (tensor<16xf32>) -> tensor<16xf32>
  %q = stablehlo.add %x, %x : tensor<16xf32>
  return %q : tensor<16xf32>
}}"""
    made = collectives.partition(text).as_text()
    assert '"foo"' in made
    assert 'mhlo.memory_kind = "device"' in made and 'mhlo.memory_kind = "pinned_host"' in made
    assert "sdy." not in made


def test_messages_outside_of_manual_computations_are_refused():
    text = f"""{MESH}
func.func @main(%x: tensor<16xf32> {X}) -> (tensor<16xf32> {X}) {{
  %t = stablehlo.create_token : !stablehlo.token
  %o = "stablehlo.outfeed"(%x, %t) <{{outfeed_config = ""}}> : (tensor<16xf32>, !stablehlo.token) -> !stablehlo.token
  return %x : tensor<16xf32>
}}"""
    with pytest.raises(collectives.errors.UnsupportedOpError, match="once per device"):
        collectives.partition(text)


def test_meshes_of_other_orders_are_refused():
    text = """sdy.mesh @a = <["x"=4]>
sdy.mesh @b = <["x"=4], device_ids=[3,2,1,0]>
func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@a, [{"x"}]>},
    %y: tensor<8xf32> {sdy.sharding = #sdy.sharding<@b, [{"x"}]>}) -> tensor<8xf32> {
  %q = stablehlo.add %x, %y : tensor<8xf32>
  return %q : tensor<8xf32>
}"""
    with pytest.raises(collectives.errors.MeshMismatchError, match="orders of devices"):
        collectives.partition(text)


def test_shapes_must_be_static():
    text = f"""{MESH}
func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {{
  %q = stablehlo.add %x, %x : tensor<?xf32>
  return %q : tensor<?xf32>
}}"""
    with pytest.raises(propagation.errors.UnsupportedModuleError, match="static"):
        collectives.partition(text)


@pytest.mark.parametrize("dtype", ["complex<f32>", "f8E4M3FN"])
def test_looked_up_zeros_keep_their_signs(dtype):
    """A window of split rows is a sum over devices: of parts of complex numbers, of short floats, as of others."""
    carrier = "complex<f32>" if dtype.startswith("complex") else "f32"
    text = f"""{MESH}
func.func @main(%x: tensor<64x4x{carrier}> {over("x", "")}, %i: tensor<i32>) -> tensor<2x4x{carrier}> {{
  %a = stablehlo.convert %x : (tensor<64x4x{carrier}>) -> tensor<64x4x{dtype}>
  %z = stablehlo.constant dense<0> : tensor<i32>
  %q = stablehlo.dynamic_slice %a, %i, %z, sizes = [2, 4]
    : (tensor<64x4x{dtype}>, tensor<i32>, tensor<i32>) -> tensor<2x4x{dtype}>
  %r = stablehlo.convert %q : (tensor<2x4x{dtype}>) -> tensor<2x4x{carrier}>
  return %r : tensor<2x4x{carrier}>
}}"""
    x = np.full((64, 4), -0.0, F32) if carrier == "f32" else np.full((64, 4), complex(-0.0, -0.0), np.complex64)
    x[::3] = 1
    words = [x] if carrier == "f32" else [x.view(F32)]
    (want,) = harness.one_device(_plain(text), [x, np.int32(4)])
    result = collectives.partition(propagation.run(text))
    (got,), _ = harness.run_partitioned(result, [x, np.int32(4)], [want.shape])
    assert set(result.plan.counts) == {"all_reduce"} and np.signbit(words[0][4]).all()
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_slices_at_positions_out_of_bounds_that_are_cut():
    """XLA merges a window with what each device takes of it, without clamping where the window starts."""
    text = f"""{MESH}
func.func @main(%x: tensor<20x8xi32> {over("", "x")}, %i: tensor<i32>) -> (tensor<16x2xi32> {over("x", "")}) {{
  %q = stablehlo.dynamic_slice %x, %i, %i, sizes = [16, 2] : (tensor<20x8xi32>, tensor<i32>, tensor<i32>)
    -> tensor<16x2xi32>
  return %q : tensor<16x2xi32>
}}"""
    check_text(text, [np.arange(160, dtype=np.int32).reshape(20, 8), np.int32(17)])


def test_nothing_is_joined_to_nothing():
    text = f"""{MESH}
func.func @main(%x: tensor<0x8xf32> {over("", "x")}) -> (tensor<0x8xf32> {over("x", "")}) {{
  %q = stablehlo.concatenate %x, %x, dim = 0 : (tensor<0x8xf32>, tensor<0x8xf32>) -> tensor<0x8xf32>
  return %q : tensor<0x8xf32>
}}"""
    check_text(text, [np.zeros((0, 8), F32)])


def test_single_windows_out_of_bounds_that_are_cut():
    """A gather of one window is a slice to XLA."""
    columns = "offset_dims = [0, 1], start_index_map = [0, 1]"
    text = f"""{MESH}
func.func @main(%x: tensor<20x8xi32> {over("", "x")}, %i: tensor<2xi16>) -> (tensor<16x2xi32> {over("x", "")}) {{
  %q = "stablehlo.gather"(%x, %i) <{{dimension_numbers = #stablehlo.gather<{columns}>,
    slice_sizes = array<i64: 16, 2>, indices_are_sorted = false}}> : (tensor<20x8xi32>, tensor<2xi16>)
    -> tensor<16x2xi32>
  return %q : tensor<16x2xi32>
}}"""
    check_text(text, [np.arange(160, dtype=np.int32).reshape(20, 8), np.array([17, 9], np.int16)])


def test_windows_over_nothing():
    add = reducer("add")
    text = f"""{MESH}
func.func @main(%x: tensor<0x8xf32> {over("", "x")}) -> tensor<2x8xf32> {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %q = "stablehlo.reduce_window"(%x, %z) <{{window_dimensions = array<i64: 3, 3>, window_strides = array<i64: 1, 1>,
    padding = dense<[[2, 2], [1, 1]]> : tensor<2x2xi64>}}> {add} : (tensor<0x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return %q : tensor<2x8xf32>
}}"""
    check_text(text, [np.zeros((0, 8), F32)])


def test_random_bits_of_other_devices_are_not_computed():
    """The compiler has the whole generator, but nothing of it is as large as all bits."""
    text = f"""{MESH}
func.func @main(%s: tensor<2xui64>) -> (tensor<1024x1024xui32> {over("", "x")}) {{
  %a, %b = stablehlo.rng_bit_generator %s, algorithm = THREE_FRY
    : (tensor<2xui64>) -> (tensor<2xui64>, tensor<1024x1024xui32>)
  return %b : tensor<1024x1024xui32>
}}"""
    state = np.array([3, 5], np.uint64)
    result = collectives.partition(propagation.run(text))
    (got,), compiled = harness.run_partitioned(result, [state], [(1024, 1024)])
    (want,) = harness.one_device(_plain(text), [state])
    np.testing.assert_array_equal(got, want)
    assert compiled.exe.get_compiled_memory_stats().temp_size_in_bytes < 1 << 16
