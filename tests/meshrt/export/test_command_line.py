"""Exported functions on the command line: `meshrt export`, `run-export` and `inspect`."""

from __future__ import annotations

import collections
import json
import subprocess
import sys

import jax
import numpy as np
import pytest

import meshrt
from meshrt import export
from meshrt.cli import main as cli
from meshrt.inspect import report
from meshrt.runtime import events
from meshrt.sharding import AbstractMesh, NamedSharding
from meshrt.sharding import PartitionSpec as P
from tests.meshrt.export.exporting import forget

SCRIPT = """
import numpy as np, meshrt
def example_arguments(mesh):
    split = meshrt.NamedSharding(mesh, meshrt.P(mesh.axis_names[0]))
    return meshrt.ShapeDtypeStruct((8, 4), np.float32, sharding=split),
def step(x):
    return {"sum": x.sum(0)}
"""


@pytest.fixture
def meshrt_does(capfd):
    def does(*arguments, code=0):
        with pytest.raises(SystemExit) as left:
            cli.main(list(arguments))
        said = "".join(capfd.readouterr())
        assert left.value.code == code, said
        return said

    return does


def test_files_are_written_run_and_inspected_from_the_command_line(tmp_path, monkeypatch, meshrt_does):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    np.savez(tmp_path / "x.npz", np.ones((8, 4), np.float32))
    np.savez(tmp_path / "named.npz", **{"args[0]": np.ones((8, 4), np.float32)})
    command = [sys.executable, "-m", "meshrt", "export", "script.py:step", "--mesh", "data=8", "-o", "step.mexp"]
    assert "8 devices" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
    meshrt_does("run-export", "step.mexp", "--inputs", "x.npz", "--mesh", "rows=8", "-o", "out.npz")
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_array_equal(found["result['sum']"], [8, 8, 8, 8])
    assert "[8. 8. 8. 8.]" in meshrt_does("run-export", "step.mexp", "--inputs", "named.npz", "--mesh", "a=4,b=2")
    assert "all_reduce" in meshrt_does("inspect", "step.mexp")
    command = [*command[:-1], "code.mexp", "--with-executable"]
    subprocess.run(command, check=True, capture_output=True)
    forget()
    with events.count() as n:
        run = ("run-export", "code.mexp", "--inputs", "x.npz", "--mesh", "rows=8", "--with-executable")
        said = meshrt_does(*run)
    assert "[8. 8. 8. 8.]" in said and "code.mexp: the call ran its code" in said
    assert n.compile == 0 and "all_reduce" in meshrt_does("inspect", "code.mexp")
    (tmp_path / "code.mexp").chmod(0o666)
    refused = meshrt_does(*run, code=2)
    assert "chmod go-w" in refused and "without --with-executable" in refused and "load(" not in refused
    assert "args[0]: f32[8,4]" in meshrt_does("run-export", "step.mexp", code=2)
    (tmp_path / "cut.mexp").write_bytes((tmp_path / "step.mexp").read_bytes()[:200])
    assert "write it again" in meshrt_does("inspect", "cut.mexp", code=2)


SYMBOLIC = """
import numpy as np, meshrt
from meshrt import export
def example_arguments(mesh):
    return meshrt.ShapeDtypeStruct(export.symbolic_shape("b, 2"), np.float32),
def step(x):
    return x.sum(0)
"""


def test_code_for_symbolic_sizes_from_the_command_line(tmp_path, monkeypatch, meshrt_does):
    """The sizes are asked for in the command's own words, and whether a call took the code is said."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SYMBOLIC)
    written = ("export", "script.py:step", "--mesh", "data=8", "-o", "code.mexp")
    for asked in (["--with-executable"], ["--with-executable", "--sizes", "c=8"]):
        assert "give --sizes b=8" in meshrt_does(*written, *asked, code=2)
    assert "with-executable compiles for; give both" in meshrt_does(*written, "--sizes", "b=8", code=2)
    assert "expected symbolic sizes" in meshrt_does(*written, "--with-executable", "--sizes", "b=x", code=2)
    meshrt_does(*written, "--with-executable", "--sizes", "b=8", "--sizes", "b=16")
    run = ("run-export", "code.mexp", "--mesh", "data=8", "--with-executable", "--inputs")
    other = "was compiled, for its code is that of calls with b=8 or b=16"
    for size, said in ((8, "the call ran its code"), (4, other)):
        forget()
        np.savez(tmp_path / "x.npz", np.ones((size, 2), np.float32))
        assert said in meshrt_does(*run, "x.npz")
    with meshrt.config.override(cpu_ynnpack="always"):
        assert "does not fit: cpu_ynnpack 'narrow', here 'always'" in meshrt_does(*run, "x.npz")


# ---------------------------------------------------------------------------------------------------------------------
# Over other meshes, with numbers for symbolic sizes

X = np.ones((16, 8), np.float32)
Pair = collections.namedtuple("Pair", "left right")  # registered for no file


def split_over(sizes, names, **shape):
    split = NamedSharding(AbstractMesh(sizes, names), P(*names))
    return meshrt.ShapeDtypeStruct(shape.get("shape", X.shape), X.dtype, sharding=split)


def product(x):
    return x @ x.T


def collectives(said):
    return sorted((c["kind"], c["group_size"], c["bytes"], c["times"]) for c in json.loads(said)["collectives"])


def sent(plan):
    return sorted((c.kind, c.group_size, c.bytes, c.times) for c in plan.entries)


@pytest.mark.parametrize("mesh", ["data=2,model=2", "model=2", "data=1", "rows=4", "data=2,model=4", "a=4,b=2"])
def test_over_another_mesh_it_is_shown_as_it_is_called_there(tmp_path, monkeypatch, meshrt_does, mesh):
    monkeypatch.chdir(tmp_path)
    exported = export.export(meshrt.jit(product))(split_over((4, 2), ("data", "model")))
    (tmp_path / "f.mexp").write_bytes(exported.serialize())
    (tmp_path / "f.jax").write_bytes(export.to_jax(exported))
    axes = {name: int(size) for name, size in (part.split("=") for part in mesh.split(","))}
    expected = exported.over(AbstractMesh(tuple(axes.values()), tuple(axes)))
    for file in ("f.mexp", "f.jax"):
        said = meshrt_does("inspect", file, "--mesh", mesh, "--json")
        if expected.mesh.size > 1:
            assert collectives(said) == sent(expected.plan(expected.mesh))
            rows = report(expected).collectives
            assert sorted((c.kind, c.group_size, c.bytes, c.times) for c in rows) == collectives(said)
        shown = json.loads(said)["mesh"]  # axes that split nothing there have the size 1
        assert {name: size for name, size in shown.items() if name in expected.mesh.shape} == expected.mesh.shape


def test_over_another_mesh_no_class_of_its_arguments_need_be_known(tmp_path, monkeypatch, meshrt_does):
    monkeypatch.chdir(tmp_path)
    mesh = jax.sharding.AbstractMesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=jax.NamedSharding(mesh, jax.P("data")))
    jax.export.register_namedtuple_serialization(Pair, serialized_name="tests.meshrt.export.Pair")
    exported = jax.export.export(jax.jit(lambda p: Pair(p.left.sum(0), p.right)), platforms=["cpu"])(Pair(x, x))
    (tmp_path / "f.jax").write_bytes(exported.serialize())
    assert [c[1] for c in collectives(meshrt_does("inspect", "f.jax", "--mesh", "data=2", "--json"))] == [2]


def test_over_another_mesh_what_a_call_refuses(tmp_path, monkeypatch, meshrt_does):
    monkeypatch.chdir(tmp_path)
    mesh = AbstractMesh((8,), ("data",))
    alone = meshrt.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    (tmp_path / "alone.mexp").write_bytes(export.export(meshrt.jit(alone))(X).serialize())
    (tmp_path / "f.mexp").write_bytes(export.export(meshrt.jit(product))(split_over((8,), ("data",))).serialize())
    assert "f.mexp: args[0] of product cannot be sharded" in meshrt_does(
        "inspect", "f.mexp", "--mesh", "data=5", code=2
    )
    said = meshrt_does("inspect", "alone.mexp", "--mesh", "data=4", code=2)
    assert "exported for 8 devices" in said and "shard_map" in said
    assert "data=8" in meshrt_does("inspect", "alone.mexp", "--mesh", "data=8")


def test_symbolic_sizes_are_shown_with_numbers(tmp_path, monkeypatch, meshrt_does):
    monkeypatch.chdir(tmp_path)
    (b,) = export.symbolic_shape("b")
    symbolic = split_over((4, 2), ("data", "model"), shape=(16 * b, 8))
    exported = export.export(meshrt.jit(product))(symbolic)
    (tmp_path / "f.mexp").write_bytes(exported.serialize())
    for mesh in ((4, 2), (2, 2)):
        asked = f"data={mesh[0]},model={mesh[1]}"
        said = meshrt_does("inspect", "f.mexp", "--sizes", "b=3", "--mesh", asked, "--json")
        assert collectives(said) == sent(exported.plan(AbstractMesh(mesh, ("data", "model")), b=3)) != []
        assert json.loads(said)["arguments"][0]["type"] == "f32[48,8]"
    said = meshrt_does("inspect", "f.mexp", "--sizes", "b=3", "--against-mesh", "data=2,model=2")
    assert "data=2, model=2" in said and "data=4, model=2" in said
    assert "--sizes b=8" in meshrt_does("inspect", "f.mexp", code=2)
    assert "no symbolic size 'c'" in meshrt_does("inspect", "f.mexp", "--sizes", "b=1,c=2", code=2)
    (tmp_path / "f.mlir").write_text(meshrt.jit(product).lower(X).as_text())
    assert "is no exported function" in meshrt_does("inspect", "f.mlir", "--sizes", "b=1", code=2)
    (tmp_path / "f.py").write_text("")
    asked = ("inspect", "f.py:f", "--mesh", "a=1", "--sizes", "b=1")
    assert "--sizes goes with files" in meshrt_does(*asked, code=2)
    assert "--sizes goes with files" in meshrt_does(*asked, "--against", "f.py:g", code=2)


def test_files_that_run_export_cannot_read_are_named(tmp_path, monkeypatch, meshrt_does):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.mexp").write_bytes(export.export(meshrt.jit(product))(X).serialize())
    np.savez(tmp_path / "x.npz", X)
    whole = (tmp_path / "x.npz").read_bytes()
    for name, data in (
        ("cut", whole[:300]),
        ("bad", whole[:200] + b"zzzz" + whole[204:]),
        ("text", b"text"),
        ("no", b""),
    ):
        (tmp_path / name).write_bytes(data)
        said = meshrt_does("run-export", "f.mexp", "--inputs", name, code=2)
        assert f"{name} is no .npz file" in said and "pickle" not in said
    assert "error: x.npz: the exported function is no exported" in meshrt_does("run-export", "x.npz", code=2)
