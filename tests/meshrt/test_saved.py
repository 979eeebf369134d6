"""Compiled programs in files: loaded elsewhere and in other processes, and damaged in every way."""

import importlib
import json
import os
import random
import re
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors
from meshrt.pipeline import container
from meshrt.runtime import events
from meshrt.sharding import AxisType, Mesh, NamedSharding
from meshrt.sharding import PartitionSpec as P
from meshrt.stages import load

ONE, OTHERS = (0, 1, 2, 3), [(4, 5, 6, 7), (3, 2, 1, 0), (0, 2, 4, 6)]


def over(order, shape=(2, 2), names=("x", "y"), types=None):
    return Mesh(np.array([meshrt.devices()[i] for i in order]).reshape(shape), names, types)


def step(state, x):
    y = jnp.tanh(x @ state["w"])
    return {"w": state["w"] - 0.1 * (x.T @ y), "n": state["n"] + 1}, [jnp.sum(y * TABLE), None]


TABLE = np.linspace(0, 1, 8, dtype=np.float32)


def arguments(mesh):
    put = lambda a, *spec: meshrt.device_put(a, NamedSharding(mesh, P(*spec)))
    w = np.sin(np.arange(64, dtype=np.float32)).reshape(8, 8)
    x = np.cos(np.arange(32, dtype=np.float32)).reshape(4, 8)
    return {"w": put(w, "y", None), "n": put(np.int32(0))}, put(x, "x")


@pytest.fixture(scope="module")
def program():
    return meshrt.jit(step, donate_argnums=0).lower(*arguments(over(ONE))).compile()


@pytest.fixture(scope="module")
def content(program):
    return program.serialize()


def same(got, want):
    ours, theirs = meshrt.tree.leaves(got), meshrt.tree.leaves(want)
    assert meshrt.tree.structure(got) == meshrt.tree.structure(want) and len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        assert getattr(a.sharding, "spec", None) == getattr(b.sharding, "spec", None)


def test_the_documentation_has_the_version_and_the_entries_of_files(content):
    page = (Path(__file__).parents[2] / "docs" / "aot.md").read_text()
    assert f"version of the format: {container.VERSION};" in page
    alone = meshrt.jit(lambda x: x).lower(np.float32(0)).compile().serialize()
    entries = {name for file in (content, alone) for name in container.unpack(file, "it").description}
    assert not [name for name in entries if f"`{name}`" not in page]


@pytest.mark.smoke
@pytest.mark.parametrize("order", OTHERS, ids=["disjoint", "reversed", "strided"])
def test_a_program_from_a_file_runs_on_equal_devices(program, content, tmp_path, order):
    want = program(*arguments(over(ONE)))
    (tmp_path / "step.aot").write_bytes(content)
    with events.count("trace", "lower", "propagate", "partition", "compile") as n:
        loaded = load(tmp_path / "step.aot", devices=over(order))
        got = loaded(*arguments(over(order)))
    assert sum(n[k] for k in ("trace", "lower", "propagate", "partition", "compile")) == 0
    same(got, want)
    assert all(a.sharding.mesh is over(order) for a in meshrt.tree.leaves(got))


def test_what_a_loaded_program_knows(program, content):
    loaded = load(content, devices=over(ONE).flat_devices)
    assert loaded.in_tree == program.in_tree and loaded.out_tree == program.out_tree
    for name in ("args_info", "out_info", "donate_argnums", "input_shardings", "output_shardings", "fun_name",
                 "fingerprint", "input_formats", "output_formats", "in_avals"):  # fmt: skip
        assert getattr(loaded, name) == getattr(program, name), name
    assert loaded.cost_analysis()["flops"] == program.cost_analysis()["flops"]
    assert loaded.memory_analysis().argument_size_in_bytes == program.memory_analysis().argument_size_in_bytes
    assert re.search("all-(gather|reduce)", loaded.as_text()) and loaded.serialize() == content
    with pytest.raises(errors.UnsupportedError, match="loaded from a file"):
        loaded.lowered
    state, x = arguments(over(ONE))
    with pytest.raises(TypeError, match=r"Argument 'state\['n'\]' compiled with int32\[\] and called with float32\[\]"):
        loaded({**state, "n": 1.5}, x)
    with pytest.raises(TypeError, match="input pytree does not match"):
        loaded(state)
    with pytest.raises(ValueError, match="shardings of arguments passed"):
        loaded(*arguments(over(OTHERS[0])))
    loaded(state, x)
    assert state["w"].is_deleted()


def test_the_default_devices(content):
    assert load(content).devices == tuple(meshrt.devices()[:4])
    with meshrt.set_mesh(over(OTHERS[1])):
        assert load(content).mesh is over(OTHERS[1])
    with meshrt.set_mesh(over(OTHERS[1], (4,), ("x",))):
        assert load(content).devices == tuple(meshrt.devices()[:4])


def test_on_one_device():
    compiled = meshrt.jit(lambda x, y: jnp.sort(x, axis=0) @ x + y).lower(np.eye(3, dtype=np.float32), 1.0).compile()
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    device = meshrt.devices()[5]
    got = load(compiled.serialize(), devices=[device])(x, 2.0)
    assert got.devices() == {device}
    np.testing.assert_array_equal(np.asarray(got), np.asarray(compiled(x, 2.0)))


def test_another_process(program, content, tmp_path):
    path = tmp_path / "step.aot"
    program.save(path)
    assert path.read_bytes() == content and os.stat(path).st_mode & 0o022 == 0
    want = program(*arguments(over(ONE)))
    script = f"""
        import numpy as np, meshrt
        from meshrt.runtime import events
        from meshrt.sharding import NamedSharding, P, make_mesh
        mesh = make_mesh((2, 2), ("x", "y"), devices=meshrt.devices()[4:])
        put = lambda a, *spec: meshrt.device_put(a, NamedSharding(mesh, P(*spec)))
        w = np.sin(np.arange(64, dtype=np.float32)).reshape(8, 8)
        x = np.cos(np.arange(32, dtype=np.float32)).reshape(4, 8)
        with events.count("trace", "compile") as n:
            loaded = meshrt.stages.load({str(path)!r}, devices=mesh)
            out = loaded({{"w": put(w, "y", None), "n": put(np.int32(0))}}, put(x, "x"))
        assert (n.trace, n.compile) == (0, 0)
        np.savez({str(tmp_path / "out.npz")!r}, *map(np.asarray, meshrt.tree.leaves(out)))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=120)
    found = np.load(tmp_path / "out.npz")
    for i, leaf in enumerate(meshrt.tree.leaves(want)):
        assert found[f"arr_{i}"].tobytes() == np.asarray(leaf).tobytes()


def test_captured_arrays_uneven_shardings_and_small_types():
    mesh = over(ONE)
    captured = meshrt.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, P("x")))
    uneven = NamedSharding(mesh, P("x"), uneven=True)
    x = meshrt.device_put(np.arange(7, dtype=np.float32), uneven)
    bf16 = meshrt.device_put(np.arange(8).astype(jnp.bfloat16), NamedSharding(mesh, P("y")))
    f = lambda x, b: (x * 2, b + 1, (captured * 3).sum())
    compiled = meshrt.jit(f, out_shardings=(uneven, None, None)).lower(x, bf16).compile()
    same(load(compiled.serialize())(x, bf16), compiled(x, bf16))


def test_explicit_axes_and_several_views():
    mesh = over(ONE, (2, 2), ("x", "y"), (AxisType.Explicit, AxisType.Explicit))
    x = meshrt.device_put(np.ones((4, 4), np.float32), NamedSharding(mesh, P("x", "y")))
    compiled = meshrt.jit(lambda x: jnp.sin(x) * 2).lower(x).compile()
    out = load(compiled.serialize(), devices=mesh)(x)
    assert out.sharding == compiled(x).sharding and meshrt.typeof(out) is meshrt.typeof(compiled(x))
    a = meshrt.device_put(np.ones((4, 4), np.float32), NamedSharding(over(ONE, (4,), ("all",)), P("all")))
    b = meshrt.device_put(np.ones((4, 4), np.float32), NamedSharding(over(ONE), P(None, "y")))
    both = meshrt.jit(lambda a, b: (a + 1, b + 2)).lower(a, b).compile()
    same(load(both.serialize())(a, b), both(a, b))


def test_callbacks_stay_where_they_are():
    f = lambda x: meshrt.pure_callback(lambda v: v + 1, meshrt.ShapeDtypeStruct((), np.float32), x)
    compiled = meshrt.jit(f).lower(np.float32(1)).compile()
    assert float(compiled(np.float32(1))) == 2
    with pytest.raises(errors.SavedProgramError, match="calls back into Python"):
        compiled.serialize()


def test_results_that_are_not_finite():
    compiled = meshrt.jit(lambda x: jnp.log(x) * 3).lower(1.0).compile()
    with meshrt.debug_nans(True):
        loaded = load(compiled.serialize())
        with pytest.raises(FloatingPointError, match="loaded from a file"):
            loaded(-1.0)
    assert float(loaded(1.0)) == 0


def test_random_keys_as_arguments():
    f = lambda key, n: meshrt.random.uniform(key, (4,)) * n
    key = meshrt.random.key(7)
    compiled = meshrt.jit(f).lower(key, 3.0).compile()
    same(load(compiled.serialize())(key, 3.0), compiled(key, 3.0))
    captured = meshrt.jit(lambda n: meshrt.random.uniform(key, (4,)) * n).lower(3.0).compile()
    with pytest.raises(errors.SavedProgramError, match="captures an array of type key<fry>"):
        captured.serialize()


# ---------------------------------------------------------------------------------------------------------------------
# Files that are not right


def test_truncated_anywhere(content):
    size = len(content)
    for end in (0, 1, 7, 8, 31, 32, 63, 64, 65, 200, size // 2, size - 1):
        with pytest.raises(errors.SavedProgramError, match=r"cut off|damaged|not a compiled program"):
            load(content[:end])
    with pytest.raises(errors.SavedProgramError, match="damaged"):
        load(content + b"x")


def test_any_flipped_bit_is_found(content):
    rng = np.random.default_rng(5)
    for place in {*range(0, 64, 3), *rng.integers(64, len(content), 60).tolist()}:
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        with pytest.raises(errors.SavedProgramError):
            load(bytes(damaged))


def altered(content, change):
    """The container with another description, its checksum right."""
    found = container.unpack(content, "it")
    return container.pack(change(json.loads(json.dumps(found.description))), found.code, found.data)


def put(path, value):
    def change(description):
        at = description
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        return description

    return change


TARGET = [
    (("target", "platform"), "tpu", "platform 'tpu'"),
    (("target", "jaxlib"), "0.9.0", "jaxlib '0.9.0', here"),
    (("target", "device_kind"), "cpu of another kind", "device_kind"),
    (("target", "platform_version"), "older", "platform_version"),
    (("target", "host"), "0", "host '0'"),
    (("target", "processes"), [0, 0, 1, 1], "processes"),
]


@pytest.mark.parametrize(("path", "value", "text"), TARGET)
def test_programs_for_something_else(content, path, value, text):
    with pytest.raises(errors.IncompatibleProgramError, match=text):
        load(altered(content, put(path, value)), devices=over(ONE))


def test_devices_that_do_not_fit(content):
    with pytest.raises(errors.IncompatibleProgramError, match="2 are to run it"):
        load(content, devices=meshrt.devices()[:2])
    with pytest.raises(errors.IncompatibleProgramError, match="different devices"):
        load(content, devices=meshrt.devices()[:1] * 4)
    with pytest.raises(errors.IncompatibleProgramError, match="platform"):
        load(altered(content, put(("target", "platform"), "tpu")))
    for bad in (3, None, 1.5):
        with pytest.raises(TypeError, match="path or bytes"):
            load(bad)


BROKEN = [
    (("mesh", 0, "sizes"), [2, 3]), (("mesh", 0, "sizes"), ["a", 2]), (("mesh", 0, "types"), ["Auto", "Odd"]),
    (("mesh", 0, "names"), [1, 2]), (("mesh",), "x"), (("arguments", "types"), []),
    (("arguments", "tree"), {"tuple": []}),
    (("arguments", "types", 0, "dtype"), "object"), (("arguments", "types", 0, "dtype"), "O"),
    (("arguments", "types", 0, "shape"), [-1]), (("arguments", "types", 0, "shape"), [1.5]), (("arguments",), None),
    (("results", "types"), [{}]), (("shardings", "arguments"), []), (("shardings", "results", 0, "dims"), ["q"]),
    (("shardings", "results", 0, "mesh"), 7), (("program", "kept"), [0, 1, 99]), (("program", "kept"), ["a", "b", "c"]),
    (("program", "donated"), [True]), (("program", "devices"), "4"),
    (("program", "devices"), 99), (("captured",), [{"shape": [9], "dtype": "float32"}]),
    (("captured",), 4), (("target",), []), (("program",), {}), (("shardings", "written"), []),
    (("shardings", "asked"), []), (("results", "types", 0, "shape"), [1 << 70]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), BROKEN, ids=lambda x: str(x)[:40])
def test_descriptions_that_make_no_sense(content, path, value):
    with pytest.raises(errors.MeshrtError):
        load(altered(content, put(path, value)), devices=over(ONE))(*arguments(over(ONE)))


VALUES = [
    None, True, 0, 1, -1, 7, 1.5, "", "x", "q", "*", [], {}, [None], ["x"], ["x", "y"], {"a": 1}, "float32", "int4",
    1 << 70, [0, 1, 2, 3], "spmd", {"open": True}, {"tuple": []}, {"mesh": 0},
]  # fmt: skip


def places(value, path=()):
    """The paths to everything inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield (*path, key)
        yield from places(part, (*path, key))


@pytest.mark.parametrize("seed", range(4))
def test_descriptions_changed_at_random(content, seed):
    """They load and run, or end in a typed error: XLA aborts the process where code and buffers do not fit."""
    rng, loaded = random.Random(seed), 0
    found = container.unpack(content, "it")
    for _ in range(60):
        description = json.loads(json.dumps(found.description))
        path = rng.choice(list(places(description)))
        put(path, rng.choice(VALUES))(description)
        try:
            program = load(container.pack(description, found.code, found.data), devices=over(ONE))
            loaded += 1
            program(*arguments(over(ONE)))
        except errors.MeshrtError:
            pass
    assert 0 < loaded < 60


def test_descriptions_without_a_part(content):
    description = container.unpack(content, "it").description
    for key in description:
        with pytest.raises(errors.SavedProgramError, match="cannot read"):
            load(altered(content, lambda d, key=key: {k: v for k, v in d.items() if k != key}), devices=over(ONE))


def test_other_versions_and_sizes(content):
    later = bytearray(content)
    later[8:12] = struct.pack("<I", 4)
    with pytest.raises(errors.SavedProgramError, match="of version 4 of the format, and this meshrt reads version 3"):
        load(bytes(later))
    huge = bytearray(content)
    huge[16:24] = struct.pack("<Q", 1 << 60)
    with pytest.raises(errors.SavedProgramError, match="claims 1152921504606846976 bytes of code"):
        load(bytes(huge))
    nested = b"[" * 200000
    found = container.unpack(content, "it")
    packed = container.pack({}, found.code, found.data)
    assert container.unpack(packed, "it").code == found.code
    import hashlib

    head = struct.pack("<8sIIQQ", b"MESHRTAO", container.VERSION, len(nested), 0, 0)
    for text in (nested, b"\xff\xfe", b"[1]", b"{"):
        head = struct.pack("<8sIIQQ", b"MESHRTAO", container.VERSION, len(text), 0, 0)
        with pytest.raises(errors.SavedProgramError, match="no JSON"):
            load(head + hashlib.sha256(head + text).digest() + text)
    with pytest.raises(errors.SavedProgramError, match="takes 5 bytes; files hold 4"):
        old = container._MAX_DATA
        try:
            container._MAX_DATA = 4
            container.pack({}, b"", b"12345")
        finally:
            container._MAX_DATA = old


def test_files_that_are_not_to_be_trusted(program, tmp_path):
    path = tmp_path / "step.aot"
    program.save(path)
    os.chmod(path, 0o664)
    with pytest.raises(errors.SavedProgramError, match=r"others can write to it.*chmod go-w"):
        load(path)
    assert load(path.read_bytes()).fun_name == "step"
    os.chmod(path, 0o644)
    assert load(str(path)).fun_name == "step"
    for bad, text in ((tmp_path / "none", "cannot be read"), (tmp_path, "cannot be")):
        with pytest.raises(errors.SavedProgramError, match=text):
            load(bad)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(errors.SavedProgramError, match="not a regular file"):
        load(tmp_path / "pipe")


def test_saving_is_all_or_nothing(program, tmp_path, monkeypatch):
    path = tmp_path / "step.aot"
    path.write_bytes(b"before")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(errors.SavedProgramError, match="cannot be written"):
        program.save(path)
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == ["step.aot"]
    monkeypatch.undo()
    with pytest.raises(errors.SavedProgramError, match="cannot be written"):
        program.save(tmp_path / "no" / "such" / "place")


def test_a_loaded_program_is_let_go(content):
    script = """
        import numpy as np, meshrt
        compiled = meshrt.jit(lambda x: x * 2).lower(np.ones(3, np.float32)).compile()
        loaded = meshrt.stages.load(compiled.serialize())
        assert float(loaded(np.ones(3, np.float32))[0]) == 2
        loaded(np.ones(3, np.float32))
        import gc, weakref
        seen = weakref.ref(loaded.program)
        del loaded
        gc.collect()
        assert seen() is None
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=120)


@pytest.mark.parametrize("name", ["meshrt", "jax"])
def test_programs_that_write_to_references_are_not_saved(name):
    lib = importlib.import_module(name)
    serialize = importlib.import_module(f"{name}.experimental.serialize_executable").serialize
    ref = lib.new_ref(np.int32(0))

    def count(x):
        ref[...] += x

    with pytest.raises(ValueError, match="serialize with a closed-over mutable array ref"):
        serialize(lib.jit(count).lower(1).compile())


def test_a_process_that_calls_lapack_from_files_alone_finds_it(tmp_path):
    factored = meshrt.jit(jnp.linalg.cholesky)
    like = meshrt.ShapeDtypeStruct((2, 2), jnp.float32)
    factored.lower(like).compile().save(tmp_path / "code")
    (tmp_path / "program").write_bytes(meshrt.export.export(factored)(like).serialize())
    script = """
        import numpy as np, meshrt
        a = np.array([[4, 2], [2, 5]], np.float32)
        if {saved}:
            call = meshrt.stages.load("{folder}/code")
        else:
            call = meshrt.export.deserialize(open("{folder}/program", "rb").read()).call
        np.testing.assert_allclose(call(a), [[2, 0], [1, 2]])
    """
    for saved in (True, False):
        told = textwrap.dedent(script.format(saved=saved, folder=tmp_path))
        subprocess.run([sys.executable, "-c", told], check=True, timeout=120)
