"""Modules of others, plans of exported functions, an independent executor, files of other versions of jaxlib."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import numpy as np
import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

import meshrt
import meshrt.numpy as jnp
import meshrt.scipy.special as special
from meshrt import errors, export, lax
from meshrt.export.artifact import newest_version, numbers, read_artifact
from meshrt.export.container import pack, unpack
from meshrt.lowering.legalize import operations
from meshrt.sharding import AbstractMesh, AxisType, NamedSharding, P
from meshrt.xla import jaxlib_api, jaxlib_executables

X = np.linspace(0.1, 0.8, 8, dtype=np.float32).reshape(2, 4)
GOLDEN = Path(__file__).parent / "golden"

SUM = """module { sdy.mesh @m = <["x"=4]>
  func.func @sums(%x: tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}) -> tensor<2xf32> {
    %c = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [0]
         : (tensor<8x2xf32>, tensor<f32>) -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}"""
PAIR = """func.func @main(%x: tensor<2xf32>, %y: tensor<2xi32>) -> (tensor<2xf32>, tensor<2xi32>) {
  %0 = chlo.erf %x : tensor<2xf32> -> tensor<2xf32>
  return %0, %y : tensor<2xf32>, tensor<2xi32>
}"""

# As PyTorch/XLA writes modules, with annotations of its SPMD mode, and as TensorFlow does of compiled functions.
TORCH = """module @IrToHlo.19 attributes {mhlo.cross_program_prefetches = [], mhlo.is_dynamic = false,
    mhlo.input_output_alias = [], mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<2xf32>, %arg1: tensor<2x4xf32> {mhlo.sharding = "{replicated}"},
      %arg2: tensor<8x4xf32> {mhlo.sharding = "{devices=[4,1]0,1,2,3}"}) -> tensor<8x2xf32> {
    %0 = stablehlo.transpose %arg1, dims = [1, 0] {result_layout = dense<[0, 1]> : tensor<2xindex>,
      xla_shape = "f32[4,2]{0,1}"} : (tensor<2x4xf32>) -> tensor<4x2xf32>
    %1 = stablehlo.custom_call @Sharding(%arg2) {backend_config = "", mhlo.sharding = "{devices=[4,1]0,1,2,3}"}
      : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %2 = stablehlo.dot_general %1, %0, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x2xf32>) -> tensor<8x2xf32>
    %3 = stablehlo.broadcast_in_dim %arg0, dims = [1] : (tensor<2xf32>) -> tensor<8x2xf32>
    %4 = stablehlo.add %2, %3 : tensor<8x2xf32>
    return %4 : tensor<8x2xf32>
  }
}"""
TENSORFLOW = """module @a_inference_f_17__.9 attributes {mhlo.cross_program_prefetches = [], mhlo.is_dynamic = false,
    tf.versions = {bad_consumers = [], min_consumer = 0 : i32, producer = 1882 : i32}} {
  func.func @main(%arg0: tensor<8x4xf32> {mhlo.layout_mode = "default", tf.aliasing_output = 0 : i32},
      %arg1: tensor<4x4xf32>) -> (tensor<8x4xf32> {mhlo.layout_mode = "default"}) {
    %0 = stablehlo.reshape %arg0 : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.dot %0, %arg1, precision = [DEFAULT, DEFAULT]
      : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %2 = stablehlo.tanh %1 : tensor<8x4xf32>
    %3 = stablehlo.tuple %2 {xla_shape = "(f32[8,4]{1,0})"} : tuple<tensor<8x4xf32>>
    %4 = stablehlo.get_tuple_element %3[0] : (tuple<tensor<8x4xf32>>) -> tensor<8x4xf32>
    return %4 : tensor<8x4xf32>
  }
}"""

# ---------------------------------------------------------------------------------------------------------------------
# Modules of others


@pytest.mark.parametrize("form", ["text", "bytecode", "artifact"])
def test_modules_of_others_are_called(form):
    data = PAIR
    if form != "text":
        module = jaxlib_api.parse(PAIR)
        as_artifact = form != "bytecode"
        data = jaxlib_executables.portable_artifact(module, "1.9.0") if as_artifact else jaxlib_api.bytecode(module)
    f = export.from_stablehlo(data)
    x, y = np.array([0.1, 0.2], np.float32), np.array([3, 4], np.int32)
    found = meshrt.jit(lambda x, y: f.call(x + 0, y))(x, y)
    np.testing.assert_allclose(found[0], special.erf(x), rtol=1e-6)
    np.testing.assert_array_equal(found[1], y)
    again = export.deserialize(f.serialize())
    assert again.out_avals == f.out_avals and not again.has_vjp()
    with pytest.raises(ValueError, match="No VJP is available"):
        meshrt.grad(lambda x: f.call(x, y)[0].sum())(x)


def test_modules_as_pytorch_writes_them_keep_their_shardings():
    f = export.from_stablehlo(TORCH)
    assert f.nr_devices == 4 and f.in_shardings[0] is None
    mesh = meshrt.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,), devices=meshrt.devices()[:4])
    assert [s and s.spec for s in f.in_shardings_jax(mesh)] == [None, P(None, None), P("data", None)]
    x, w, b = X.reshape(8, 1) * np.ones(4, np.float32), X[:, :4], np.array([1, 2], np.float32)
    shardings = (NamedSharding(mesh, P()), *f.in_shardings_jax(mesh)[1:])
    found = f.call(*[meshrt.device_put(a, s) for a, s in zip((b, w, x), shardings)])
    np.testing.assert_allclose(found, x @ w.T + b, rtol=1e-6)
    assert found.sharding.is_equivalent_to(NamedSharding(mesh, P("data")), 2) and not f.plan(mesh).entries
    assert export.deserialize(f.serialize()).in_shardings == f.in_shardings
    with pytest.raises(errors.SavedProgramError, match=r"shardings of the module cannot be read.*tiles \[4, 1\]"):
        export.from_stablehlo(TORCH.replace("[4,1]0,1,2,3", "[4,1]0,1,2"))


def test_modules_as_tensorflow_writes_them_run():
    f = export.from_stablehlo(TENSORFLOW)
    x, w = np.ones((8, 4), np.float32) / 8, np.eye(4, dtype=np.float32)
    np.testing.assert_allclose(meshrt.jit(f.call)(x, w), np.tanh(x @ w), rtol=1e-6)


@pytest.mark.parametrize("name", ["mlp", "grad", "loop"])
def test_modules_that_tensorflow_wrote_are_split(name):
    """Compiled functions of TensorFlow 2.21: two layers with gelu and softmax, a gradient, a loop."""
    f = export.from_stablehlo((Path(__file__).parent / "others" / f"tensorflow_2_21_{name}.mlir").read_text())
    mesh = meshrt.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,), devices=meshrt.devices()[:4])
    x, w = (np.random.default_rng(i).random(s, np.float32) for i, s in enumerate([(8, 16), (16, 16)]))
    args = (x, w)[: len(f.in_avals)]
    mlp = lambda x, w: meshrt.nn.softmax(meshrt.nn.gelu(x @ w, approximate=False) @ w)
    loop = lambda x: lax.fori_loop(0, 3, lambda i, x: jnp.sin(x) * 2, x)
    grad = lambda x, w: meshrt.grad(lambda w: (jnp.tanh(x @ w) ** 2).sum())(w)
    expected = {"mlp": mlp, "grad": grad, "loop": loop}[name](*args)
    split = [meshrt.device_put(a, NamedSharding(mesh, P("data") if a is x else P())) for a in args]
    lowered = meshrt.jit(f.call).lower(*split)
    kinds = [c.kind for c in lowered.propagate().partition().plan.entries]
    assert kinds == (["all_reduce"] if name == "grad" else [])
    for given in (args, split):
        np.testing.assert_allclose(meshrt.jit(f.call)(*given), expected, rtol=2e-5, atol=1e-5)


def test_artifacts_of_newer_versions_say_so():
    """What the older reader has no words for is named with both versions; what is no artifact is not."""
    exported = export.export(meshrt.jit(jnp.sin))(np.float32(1))
    blob = bytes(exported.mlir_module_serialized)
    newer = re.sub(rb"StableHLO_v[0-9.]+", b"StableHLO_v99.8.7", blob[:64]) + blob[64:-8]
    with pytest.raises(errors.IncompatibleProgramError, match=r"written in StableHLO 99\.8\.7, and .* reads up to"):
        export.from_stablehlo(newer)
    with pytest.raises(errors.SavedProgramError) as found:
        export.from_stablehlo(blob[:-8])
    assert type(found.value) is errors.SavedProgramError


def test_operations_that_tensorflow_writes_beside_stablehlo():
    """Sizes set to what they are, and erf of XLA's own dialect."""
    f = export.from_stablehlo("""func.func @main(%x: tensor<8x3xf32>) -> tensor<8x3xf32> {
      %c = stablehlo.constant dense<3> : tensor<i32>
      %0 = stablehlo.set_dimension_size %x, %c, dim = 1 : (tensor<8x3xf32>, tensor<i32>) -> tensor<8x3xf32>
      %1 = "mhlo.erf"(%0) : (tensor<8x3xf32>) -> tensor<8x3xf32>
      return %1 : tensor<8x3xf32>
    }""")
    mesh = meshrt.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,), devices=meshrt.devices()[:4])
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
    found = meshrt.jit(f.call)(meshrt.device_put(x, NamedSharding(mesh, P("data"))))
    np.testing.assert_allclose(found, special.erf(x), rtol=1e-6)
    assert found.sharding.is_equivalent_to(NamedSharding(mesh, P("data")), 2)


def test_modules_of_others_with_structures():
    tree = meshrt.tree_util.tree_structure((({"a": 0},), {"b": 0}))
    out = meshrt.tree_util.tree_structure({"x": 0, "y": 0})
    f = export.from_stablehlo(PAIR, in_tree=tree, out_tree=out)
    found = f.call({"a": X[0, :2]}, b=np.array([1, 2], np.int32))
    np.testing.assert_allclose(found["x"], special.erf(X[0, :2]), rtol=1e-6)
    with pytest.raises(errors.TreeError, match="1 leaves"):
        export.from_stablehlo(PAIR, in_tree=meshrt.tree_util.tree_structure(((0,), {})))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_shardings_of_others_are_propagated(kind):
    f = export.from_stablehlo(SUM)
    assert f.nr_devices == 4 and f.in_shardings[0].spec == P("x", None)
    plan = f.plan(AbstractMesh((4,), ("any",)))
    assert [c.kind for c in plan.entries] == ["all_reduce"]
    mesh = meshrt.make_mesh((4,), ("z",), axis_types=(kind,))
    x = meshrt.device_put(np.ones((8, 2), np.float32), f.in_shardings_jax(mesh)[0])
    np.testing.assert_array_equal(f.call(x), [8, 8])
    assert "all_reduce" in meshrt.jit(f.call).lower(x).partition().as_text()


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("module {}", errors.SavedProgramError, "public functions none"),
        ("no module", errors.SavedProgramError, "holds no StableHLO"),
        (b"ML\xefR\0\0", errors.SavedProgramError, "holds no StableHLO"),
        ("func.func @f() { return }\nfunc.func @g() { return }", errors.SavedProgramError, "'f', 'g'"),
        ("func.func @f(%x: tensor<?xf32>) { return }", errors.UnsupportedError, "known sizes"),
        ("func.func @f(%x: tensor<2x!quant.uniform<i8:f32, 1.0>>) { return }", NotImplementedError, "elements of type"),
        ("func.func @f(%x: f32) { return }", errors.UnsupportedError, "argument 0 of @main"),
        ("func.func @f(%x: tensor<f32>) -> tensor<f32> { %0 = stablehlo.custom_call @k(%x) : (tensor<f32>) -> "
         "tensor<f32>\n return %0 : tensor<f32> }", errors.ArgumentValueError, "compatibility guarantees"),
        (3, errors.ArgumentTypeError, "text or bytes"),
    ],
)  # fmt: skip
def test_modules_that_cannot_be_used_are_refused(text, error, words):
    with pytest.raises(error, match=words):
        export.from_stablehlo(text)


# ---------------------------------------------------------------------------------------------------------------------
# Plans


def test_plans_over_the_same_sizes_and_others():
    mesh = AbstractMesh((4, 2), ("data", "model"))
    arg = lambda shape, *p: meshrt.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, P(*p)))
    f = meshrt.jit(lambda x, w: (x @ w).sum(0))
    exported = export.export(f)(arg((8, 16), "data", "model"), arg((16, 4), "model"))
    read = export.deserialize(exported.serialize())
    for over in (mesh, AbstractMesh((4, 2), ("a", "b")), AbstractMesh((8,), ("all",))):
        assert [c.kind for c in read.plan(over).entries] == ["all_reduce"]
    for other in (AbstractMesh((4,), ("x",)), AbstractMesh((2,), ("model",)), AbstractMesh((16,), ("data",))):
        with pytest.raises(errors.IndivisibleError) if other.size == 16 else contextlib.nullcontext():
            assert [c.kind for c in read.plan(other).entries] == ["all_reduce"]


def test_plans_with_symbolic_sizes():
    (b,) = export.symbolic_shape("b")
    mesh = AbstractMesh((4,), ("x",))
    x = meshrt.ShapeDtypeStruct((4 * b, 2), np.float32, sharding=NamedSharding(mesh, P("x")))
    exported = export.export(meshrt.jit(lambda x: x.sum(0)))(x)
    assert [c.kind for c in exported.plan(mesh, b=3).entries] == ["all_reduce"]
    with pytest.raises(errors.ArgumentValueError, match=r"plan\(mesh, b=8\)"):
        exported.plan(mesh)


# ---------------------------------------------------------------------------------------------------------------------
# StableHLO's own interpreter

PROGRAMS = {
    "elementwise": lambda x: jnp.tanh(x) * 2 + jnp.exp(-x),
    "sugar": lambda x: special.erf(x) + special.gammaln(x + 1),
    "products": lambda x: (x @ x.T).sum(axis=1),
    "loops": lambda x: lax.fori_loop(0, 3, lambda i, c: c * x + i, x),
    "branches": lambda x: lax.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, x),
    "sorting": lambda x: jnp.sort(-x, axis=1),
    "slices": lambda x: jnp.concatenate([x[:, 1:], x[:, :1]], axis=1),
    "gathers": lambda x: x[jnp.array([1, 0, 1])],
    "windows": lambda x: lax.reduce_window(x, np.float32(0), lax.add, (1, 2), (1, 1), "VALID"),
    "scans": lambda x: jnp.cumsum(x, axis=1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_001_07_stablehlos_interpreter_runs_what_is_exported(name):
    exported = export.export(meshrt.jit(PROGRAMS[name]))(X)
    module = read_artifact(exported.mlir_module_serialized, trusted=True)
    assert {str(op.name).partition(".")[0] for op in operations(module)} <= {"builtin", "func", "stablehlo"}
    with module.context, ir.Location.unknown():
        stablehlo.register_interpreter_dialect(module.context)
        (found,) = stablehlo.eval_module(module, [ir.DenseElementsAttr.get(X)])
        np.testing.assert_allclose(np.array(found), PROGRAMS[name](X), rtol=2e-5, atol=1e-6)


def test_001_09_dynamic_programs_hold_stablehlo_and_shape_assertions_only():
    shape = export.symbolic_shape("a, 2*b", constraints=["a >= b"])
    arg = meshrt.ShapeDtypeStruct(shape, np.float32)
    f = lambda x: jnp.broadcast_to(special.erf(x).sum(0), (x.shape[0] + 1, x.shape[1])).reshape(-1)
    exported = export.export(meshrt.jit(f))(arg)
    found = list(operations(read_artifact(exported.mlir_module_serialized, trusted=True)))
    assert {str(op.name).partition(".")[0] for op in found} <= {"builtin", "func", "stablehlo"}
    calls = [ir.StringAttr(op.attributes["call_target_name"]).value for op in found
             if op.name == "stablehlo.custom_call"]  # fmt: skip
    assert set(calls) == {"shape_assertion"}


# ---------------------------------------------------------------------------------------------------------------------
# Other versions of jaxlib: files that each of them wrote, which the smoke set reads on the newest one too.


def write_golden(folder: Path = GOLDEN) -> None:
    """Writes this jaxlib's files, for versions of StableHLO that the oldest supported one reads."""
    for name, made in _made().items():
        (folder / f"{jaxlib_api.RELEASE}-{name}.mexp").write_bytes(made)


def _made():
    tree = meshrt.ShapeDtypeStruct(export.symbolic_shape("b, 4"), np.float32)
    mesh = AbstractMesh((2,), ("x",))
    split = meshrt.ShapeDtypeStruct((2, 4), np.float32, sharding=NamedSharding(mesh, P("x")))
    made = {
        "symbolic": export.export(meshrt.jit(RUNS["symbolic"]))(tree).serialize(1, stablehlo_version=12),
        "split": export.export(meshrt.jit(RUNS["split"]))(split).serialize(stablehlo_version=12),
    }
    several = export.export(meshrt.jit(RUNS["platforms"]), platforms=("tpu", "cpu"))(X)
    made["platforms"] = several.serialize(stablehlo_version=12)
    for version in ("0.9.0", "1.9.0", "12", "current", "kernel"):
        exported = export.export(meshrt.jit(RUNS[version]))(X)
        wanted = {"12": 12, "kernel": "current"}.get(version, version)
        made[version] = exported.serialize(stablehlo_version=wanted)
    return {name: bytes(blob) for name, blob in made.items()}


RUNS = {
    "symbolic": lambda x: jnp.sin(x) + x.shape[0],
    "split": lambda x: special.erf(x).sum(0),
    "platforms": lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos),
    "0.9.0": PROGRAMS["branches"],
    "1.9.0": PROGRAMS["sugar"],
    "12": PROGRAMS["sorting"],
    "current": PROGRAMS["loops"],
    "kernel": lambda x: jnp.linalg.cholesky(x @ x.T + 2),
}


@pytest.mark.smoke
@pytest.mark.parametrize("jaxlib", ["0.10.2", "0.12.0"])
@pytest.mark.parametrize("name", RUNS)
def test_001_10_b08_files_of_either_jaxlib_are_read_and_run(jaxlib, name):
    blob = (GOLDEN / f"{jaxlib}-{name}.mexp").read_bytes()
    if name == "kernel" and jaxlib == "0.12.0" and numbers(newest_version()) < (1, 18, 0):
        # The newer one writes kernels in a form that the older one does not have, and everything else as it does.
        with pytest.raises(errors.IncompatibleProgramError, match=r"1\.22\.0.*custom_call_v2.*stablehlo_version=12"):
            export.deserialize(blob)
        return
    exported = export.deserialize(blob)
    x = X
    if name == "split":
        mesh = meshrt.make_mesh((2,), ("y",), axis_types=(AxisType.Auto,))
        x = meshrt.device_put(X, exported.in_shardings_jax(mesh)[0])
    np.testing.assert_allclose(exported.call(x), RUNS[name](X), rtol=1e-5, atol=1e-6)
    if name == "symbolic":
        np.testing.assert_allclose(meshrt.grad(lambda x: exported.call(x).sum())(X), np.cos(X), rtol=1e-6)


def test_001_06_files_of_newer_versions_are_read_where_they_hold_nothing_new(monkeypatch):
    exported = export.export(meshrt.jit(jnp.sin), stablehlo_version="current")(X)
    blob, module = exported.serialize(), exported.mlir_module_serialized
    monkeypatch.setattr(stablehlo, "get_current_version", lambda: "1.9.0")
    np.testing.assert_allclose(export.deserialize(blob).call(X), np.sin(X), rtol=1e-6)
    sections = {name: bytes(view) for name, view in unpack(blob).items()}
    sections["module"] = re.sub(rb"sine_v\d", b"sine_v9", module)
    with pytest.raises(errors.IncompatibleProgramError, match=r"reads up to 1\.9\.0.*sine_v9.*stablehlo_version=12"):
        export.deserialize(pack(sections))


def test_a_newer_file_that_ends_mlirs_reader_does_not_end_who_reads_it():
    sections = {name: bytes(s) for name, s in unpack((GOLDEN / "0.12.0-current.mexp").read_bytes()).items()}
    sections["manifest"] = re.sub(rb'("stablehlo": ?)"[0-9.]+"', rb'\1"99.0.0"', sections["manifest"])
    module = sections["module"]
    sections["module"] = module[:265] + b"\xff" + module[266:]  # which that of jaxlib 0.10.2 answers by a segfault
    with pytest.raises(errors.SavedProgramError, match=r"no StableHLO that this version reads|does not have all"):
        export.deserialize(pack(sections))


OLDER = {
    "erf": lax.erf,
    "several chlo operations": lambda x: jnp.arcsinh(x) + jnp.tan(x) + meshrt.nn.gelu(x),
    "top_k": lambda x: lax.top_k(x, 2)[0],
    "composite": lambda x: lax.composite(lambda x: jnp.sin(x) * 2, "my.twice")(x),
}


@pytest.mark.parametrize("name", OLDER)
@pytest.mark.parametrize("version", ["0.9.0", "0.18.0"])
def test_001_06_versions_without_composites_get_what_they_stand_for(name, version):
    f = meshrt.jit(OLDER[name])
    for x in (X, meshrt.ShapeDtypeStruct(export.symbolic_shape("n, 4"), X.dtype)):
        blob = export.export(f, stablehlo_version=version)(x).serialize()
        read = export.deserialize(blob)
        assert read.stablehlo_version == version and not re.search("chlo|composite", read.mlir_module())
        np.testing.assert_allclose(read.call(X), f(X), rtol=2e-6)


def test_001_06_what_a_version_has_no_form_of_is_named():
    f = meshrt.jit(jnp.linalg.cholesky)
    with pytest.raises(errors.CompileError, match=r"0\.19\.0: it has no form of stablehlo\.custom_call as at \S+:\d+"):
        export.export(f, stablehlo_version="0.19.0")(np.eye(3, dtype=np.float32))


def test_001_10_older_targets_refuse_newer_types():
    exported = export.export(meshrt.jit(lambda x: x.astype(jnp.float4_e2m1fn)))(X)
    for version in ("1.7.0", "0.9.0"):
        with pytest.raises(errors.CompileError, match=version):
            exported.serialize(stablehlo_version=version)


# ---------------------------------------------------------------------------------------------------------------------
# The command line


def chain_of_calls(length: int, last: str) -> str:
    """`@main` calls @f0, which calls @f1, ...; the last function has this body."""
    types = "(%a: tensor<2xf32>) -> tensor<2xf32>"
    calls = [f"%0 = call @f{i} (%a) : (tensor<2xf32>) -> tensor<2xf32>" for i in range(length)]
    heads = ["@main", *(f"private @f{i}" for i in range(length))]
    return "\n".join(f"func.func {h}{types} {{ {b} return %0 : tensor<2xf32> }}" for h, b in zip(heads, [*calls, last]))


@pytest.mark.parametrize(
    ("length", "last", "words"),
    [
        (
            3,
            "%0 = call @f1 (%a) : (tensor<2xf32>) -> tensor<2xf32>",
            "function @f1 of the exported program calls itself",
        ),
        (0, "%0 = call @main (%a) : (tensor<2xf32>) -> tensor<2xf32>", "function @main of the exported program calls"),
        (300, "%0 = stablehlo.add %a, %a : tensor<2xf32>", "nests more than 96 calls, from @main"),
    ],
)
def test_calls_on_which_compilers_overflow_their_stack_are_refused(length, last, words):
    foreign = export.from_stablehlo(chain_of_calls(length, last))
    with pytest.raises(errors.SavedProgramError, match=words):
        foreign.call(np.ones(2, np.float32))


def test_a_chain_of_calls_that_compilers_take():
    foreign = export.from_stablehlo(chain_of_calls(90, "%0 = stablehlo.add %a, %a : tensor<2xf32>"))
    np.testing.assert_array_equal(foreign.call(np.ones(2, np.float32)), [2, 2])


@pytest.mark.parametrize("attribute", ["3 : i2", "[{k = 3 : ui2}]"])
def test_attributes_at_which_mlirs_reader_ends_the_process_are_refused(attribute):
    kind = "tensor<4xf32>"
    text = f"func.func @main(%x: {kind}) -> {kind} attributes {{k = {attribute}}} {{ return %x : {kind} }}"
    with pytest.raises(errors.SavedProgramError, match="this version reads"):
        export.from_stablehlo(text)
    loaded = export.from_stablehlo(text.replace("i2", "i8"))
    np.testing.assert_array_equal(loaded.call(X[0]), X[0])
