"""Compiled code beside the program in a file: what it is used for, and that it is used for nothing else."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, export
from meshrt.export import container
from meshrt.runtime import events
from meshrt.sharding import AxisType, NamedSharding, P
from meshrt.xla import jaxlib_api
from tests.meshrt.export.exporting import X, forget, spec

GOLDEN = Path(__file__).parent / "golden" / "version_1-executable.mexp"


@pytest.fixture(scope="module")
def blob():
    return bytes(export.export(meshrt.jit(lambda x: {"y": jnp.cumsum(x) + 1}))(X).serialize(with_executable=True))


@pytest.fixture
def process():
    """As another process."""
    forget()


def changed(blob, **fields):
    """The file with other things said of its code, checksums right."""
    sections = {name: bytes(view) for name, view in container.unpack(blob).items()}
    rows = json.loads(sections["execs"])
    for name, value in fields.items():
        part = rows[0]["target"] if name in rows[0]["target"] else rows[0]
        part[name] = value
    return container.pack({**sections, "execs": json.dumps(rows).encode()})


@pytest.mark.parametrize("way", ["call", "jit", "named"])
def test_the_first_call_compiles_nothing(blob, process, way):
    """By whatever name the function is called."""
    with events.count() as n:
        read = export.deserialize(blob, with_executable=True)

        def named(x):
            return read.call(x)

        call = {"call": read.call, "jit": meshrt.jit(read.call), "named": meshrt.jit(named)}[way]
        np.testing.assert_array_equal(call(X)["y"], np.cumsum(X) + 1)
    assert n.compile == 0 and n.offered == 1
    (stored,) = read.executables
    assert stored.is_offered and stored.differences() == [] and (stored.devices, stored.sizes) == (1, {})


def test_nobody_runs_code_that_was_not_asked_for(blob, process):
    read = export.deserialize(blob)
    with events.count() as n:
        np.testing.assert_array_equal(read.call(X)["y"], np.cumsum(X) + 1)
    assert n.compile == 1 and n.offered == 0 and not read.executables[0].is_offered


def test_other_programs_are_compiled(blob, process):
    read = export.deserialize(blob, with_executable=True)
    with events.count() as n:
        np.testing.assert_array_equal(meshrt.jit(lambda x: read.call(x)["y"] * 2)(X), 2 * np.cumsum(X) + 2)
    assert n.compile == 1 and n.offered == 0


@pytest.mark.parametrize(("field", "value"), [
    ("jaxlib", "0.0.1"), ("platform_version", "other"), ("device_kind", "other"), ("host", "another CPU"),
    ("flags", "--xla_cpu_enable_fast_math=true"), ("processes", 2), ("devices", 4096),
])  # fmt: skip
def test_code_for_something_else_reaches_no_compiler(blob, process, monkeypatch, field, value):
    monkeypatch.setattr(jaxlib_api, "deserialize", lambda *a: pytest.fail("XLA was given the code"))
    read = export.deserialize(changed(blob, **{field: value}), with_executable=True)
    assert not read.executables[0].is_offered
    assert field in "\n".join(read.executables[0].differences())
    with events.count() as n:
        np.testing.assert_array_equal(read.call(X)["y"], np.cumsum(X) + 1)
    assert n.compile == 1


@pytest.mark.parametrize(
    ("name", "value"), [("cpu_ynnpack", "always"), ("partitioner", "xla"), ("propagator", "shardy")]
)
def test_code_of_other_settings_is_not_offered(blob, process, name, value):
    """And the differences name the setting: what the program is compiled with is none of the file's."""
    with meshrt.config.override(**{name: value}):
        (stored,) = export.deserialize(blob, with_executable=True).executables
        assert not stored.is_offered
        (difference,) = stored.differences()
        assert difference.startswith(name) and difference.endswith(f"here {value!r}")
    assert stored.differences() == []


def test_code_of_another_program_is_not_taken(blob, process):
    read = export.deserialize(changed(blob, key="0" * 64), with_executable=True)
    with events.count() as n:
        np.testing.assert_array_equal(read.call(X)["y"], np.cumsum(X) + 1)
    assert n.compile == 1 and n.offered == 0


def _refused(stored):
    """Code for the same program with which the runtime can do nothing."""
    return replace(stored, code=b"no code").offered()


def test_of_code_that_the_runtime_refuses_nothing_is_left(blob, process, caplog):
    kept = _refused(export.deserialize(blob, with_executable=True).executables[0])
    gc.collect()
    read = export.deserialize(blob)
    with events.count() as n:
        compiled = meshrt.jit(read.call).lower(X).compile()
        np.testing.assert_array_equal(compiled(X)["y"], np.cumsum(X) + 1)
    assert kept.is_offered and n.compile == 1 and n.offered == 0
    assert "brought along for program" in caplog.text and "cannot move" not in caplog.text
    np.testing.assert_array_equal(meshrt.stages.load(compiled.serialize())(X)["y"], np.cumsum(X) + 1)


@pytest.mark.parametrize("ends", ["the same code", "code that is refused", "nothing"])
def test_offers_of_one_program_end_one_by_one(blob, process, ends):
    first = export.deserialize(blob, with_executable=True)
    second = export.deserialize(blob, with_executable=True).executables[0]
    if ends != "the same code":
        second = _refused(second)
    if ends != "nothing":
        del second
    gc.collect()
    with events.count() as n:
        np.testing.assert_array_equal(first.call(X)["y"], np.cumsum(X) + 1)
    assert n.compile == 0 and n.offered == 1


@pytest.mark.parametrize("tier", ["stable", "bytecode", "text"])
def test_of_every_tier(process, tier):
    exported = export.export(meshrt.jit(lambda x: jnp.cumsum(x) - 2))(X)
    blob = exported.serialize(tier=tier, with_executable=True, stablehlo_version=12 if tier == "stable" else None)
    forget()
    with events.count() as n:
        np.testing.assert_array_equal(export.deserialize(blob, with_executable=True).call(X), np.cumsum(X) - 2)
    assert n.compile == 0 and n.offered == 1


def test_sizes_that_were_compiled_and_others(process):
    exported = export.export(meshrt.jit(lambda x: jnp.cumsum(x, 0) * x.shape[0]))(spec("b, 2"))
    blob = exported.serialize(with_executable=[{"b": 3}, {"b": 5}])
    forget()
    read = export.deserialize(blob, with_executable=True)
    assert [e.sizes for e in read.executables] == [{"b": 3}, {"b": 5}]
    for size, compiled in ((3, 0), (4, 1), (5, 0)):
        x = np.ones((size, 2), np.float32)
        with events.count() as n:
            np.testing.assert_array_equal(read.call(x), np.cumsum(x, 0) * size)
        assert (n.compile, n.offered) == (compiled, 1 - compiled)


def test_over_a_mesh(process):
    mesh = meshrt.make_mesh((2, 2), ("x", "y"), (AxisType.Auto,) * 2, devices=meshrt.devices()[:4])
    a = np.arange(32, dtype=np.float32).reshape(8, 4)
    f = meshrt.jit(lambda a: jnp.cumsum(a @ a.T, 0), in_shardings=NamedSharding(mesh, P("x", "y")))
    blob = export.export(f)(a).serialize(with_executable=True)
    forget()
    read = export.deserialize(blob, with_executable=True)
    others = meshrt.make_mesh((2, 2), ("p", "q"), (AxisType.Auto,) * 2, devices=meshrt.devices()[4:])
    with events.count() as n:
        found = read.call(meshrt.device_put(a, read.in_shardings_jax(others)[0]))
    assert n.compile == 0 and n.offered == 1 and found.devices() == set(meshrt.devices()[4:])
    np.testing.assert_allclose(found, np.cumsum(a @ a.T, 0), rtol=1e-6)


def test_what_cannot_be_compiled_here_is_said():
    f = meshrt.jit(lambda x: x + 1)
    with pytest.raises(errors.ArgumentValueError, match="exported for tpu, and code is compiled for what is here, cpu"):
        export.export(f, platforms=["tpu"])(X).serialize(with_executable=True)
    with pytest.raises(errors.ArgumentValueError, match=r"a number is needed for each: with_executable=\{'b': 8\}"):
        export.export(f)(spec("b")).serialize(with_executable=True)
    exported = replace(export.export(f)(X), nr_devices=4096)
    with pytest.raises(errors.ArgumentValueError, match="exported for 4096 devices"):
        exported.serialize(with_executable=True)
    with pytest.raises(errors.ArgumentTypeError, match="with_executable is True, sizes by name"):
        export.export(f)(X).serialize(with_executable="yes")


@pytest.mark.parametrize(("field", "value"), [
    ("place", 1), ("length", 1 << 62), ("length", -1), ("length", 3), ("devices", "many"), ("devices", 0),
    ("devices", True), ("sizes", 3), ("sizes", {"b": "x"}), ("sizes", {"b": float("inf")}), ("sizes", {"b": 8.7}),
    ("sizes", {"b": True}), ("sizes", {"b": -1}), ("key", 3), ("target", {}), ("target", 3), ("platform", ["cpu"]),
])  # fmt: skip
@pytest.mark.parametrize("asked", [False, True])
def test_descriptions_of_code_that_make_no_sense(blob, field, value, asked):
    with pytest.raises(errors.SavedProgramError):
        export.deserialize(changed(blob, **{field: value}), with_executable=asked)


def test_other_numbers_that_make_no_sense(blob):
    """JSON's reader takes infinities."""
    sections = {name: bytes(view) for name, view in container.unpack(blob).items()}
    manifest = sections["manifest"].replace(b'"calling convention":10', b'"calling convention":1e999')
    assert manifest != sections["manifest"]
    with pytest.raises(errors.SavedProgramError, match="OverflowError"):
        export.deserialize(container.pack({**sections, "manifest": manifest}))


@pytest.mark.parametrize("number", [8.7, "8", True, np.bool_(True), None, np.float32(8)])
def test_symbolic_sizes_are_ints(number):
    exported = export.export(meshrt.jit(lambda x: x + 1))(spec("b, 2"))
    mesh = meshrt.sharding.AbstractMesh((2,), ("x",))
    for use in (lambda: exported.serialize(with_executable={"b": number}), lambda: exported.plan(mesh, b=number)):
        with pytest.raises(errors.ArgumentTypeError, match=r"the symbolic size b of .* is an int. Got"):
            use()


def test_sizes_are_those_of_the_function(process):
    exported = export.export(meshrt.jit(lambda x: x + 1))(spec("b, 2"))
    mesh = meshrt.sharding.AbstractMesh((2,), ("x",))
    for use in (lambda: exported.serialize(with_executable={"b": 8, "c": 3}), lambda: exported.plan(mesh, b=8, c=3)):
        with pytest.raises(errors.ArgumentValueError, match="has no symbolic size 'c'; it has b"):
            use()
    with pytest.raises(errors.ArgumentValueError, match="has no symbolic size 'b'; it has none"):
        export.export(meshrt.jit(lambda x: x + 1))(X).serialize(with_executable={"b": 8})
    blob = exported.serialize(with_executable={"b": np.int64(8)})
    assert export.deserialize(blob).executables[0].sizes == {"b": 8}


@pytest.mark.parametrize("name", ["execs", "code"])
def test_code_without_a_description_and_the_other_way(blob, name):
    sections = {k: bytes(v) for k, v in container.unpack(blob).items() if k != name}
    with pytest.raises(errors.SavedProgramError):
        export.deserialize(container.pack(sections))


def test_golden_file_with_code():
    """`lambda x: {"y": cumsum(x) + 1}` of `f32[4]`; its code is used where it fits, and the program elsewhere."""
    read = export.deserialize(GOLDEN.read_bytes(), with_executable=True)
    assert read.executables[0].is_offered == (not read.executables[0].differences())
    np.testing.assert_array_equal(read.call(X)["y"], np.cumsum(X) + 1)
