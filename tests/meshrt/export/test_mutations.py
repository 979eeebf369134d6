"""Changed files: exported functions, compiled programs and JAX's files, each read or refused by a typed error.

`python -m tests.meshrt.export.test_mutations 100000` reads so many of all kinds and counts what became of them, with
little more room in memory than reading takes.
"""

from __future__ import annotations

import functools
import random
import re
import resource
import struct
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import jax
import jax.export
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, export
from meshrt.export import container
from meshrt.pipeline import container as compiled_container
from meshrt.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

X = np.arange(4, dtype=np.float32)
SLACK = 1 << 21  # what Python takes for messages and frames, beside the bytes of a file
REFUSALS = (errors.SavedProgramError, errors.TreeError, errors.UnsupportedError)


def exported_file():
    spec = meshrt.ShapeDtypeStruct(export.symbolic_shape("b, 2", constraints=["b >= 2"]), np.float32)
    exported = export.export(meshrt.jit(lambda x: {"y": jnp.sin(x) + x.shape[0]}))(spec)
    return bytes(exported.serialize(vjp_order=1, with_executable={"b": 2}))


def compiled_file():
    return meshrt.jit(lambda x: {"y": jnp.sin(x)}).lower(X).compile().serialize()


def jax_file():
    return bytes(jax.export.export(jax.jit(lambda x: {"y": jax.numpy.sin(x)}))(X).serialize(vjp_order=1))


def file_for_jax():
    """Ours, over a mesh, with its derivative and symbolic sizes."""
    split = NamedSharding(AbstractMesh((2, 2), ("a", "b"), (AxisType.Auto,) * 2), PartitionSpec("a", "b"))
    spec = meshrt.ShapeDtypeStruct(export.symbolic_shape("4*b, 4"), np.float32, sharding=split)
    exported = export.export(meshrt.jit(lambda x: {"y": jnp.sin(x) @ x.T, "z": (x.sum(), None)}))(spec)
    return bytes(export.to_jax(exported, vjp_order=1))


# How each is read, how long its head is, and where lengths stand in it: (place, struct format).
KINDS = {
    "exported": (exported_file, functools.partial(export.deserialize, with_executable=True), 56 + 56 * 8,
                 [(12, "<I"), (16, "<Q"), *((56 + 56 * i + j, "<Q") for i in range(8) for j in (8, 16))]),
    "compiled": (compiled_file, meshrt.stages.load, 64, [(12, "<I"), (16, "<Q"), (24, "<Q")]),
    "jax": (jax_file, export.from_jax, 400, [(4 * i, "<I") for i in range(100)]),
    "for jax": (file_for_jax, export.from_jax, 600, [(4 * i, "<I") for i in range(150)]),
}  # fmt: skip
LENGTHS = (0, 1, 7, 1 << 16, 1 << 30, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, (1 << 64) - 1)


def changed(data, rng, head, lengths):
    """A variant of a file: cut off, bits flipped, a length lied about, parts swapped, doubled or left out."""
    out, kind = bytearray(data), rng.choice(["cut", "flip", "flip in head", "length", "swap", "double", "leave out"])
    if kind == "cut":
        del out[rng.randrange(len(out)) :]
    elif kind.startswith("flip"):
        for _ in range(rng.choice([1, 1, 2, 8])):
            out[rng.randrange(head if kind == "flip in head" else len(out))] ^= 1 << rng.randrange(8)
    elif kind == "length":
        place, form = rng.choice(lengths)
        size = struct.calcsize(form)
        value = rng.choice([*LENGTHS, len(data), len(data) - 1, rng.getrandbits(64)]) & ((1 << 8 * size) - 1)
        struct.pack_into(form, out, place, value)
    else:
        a, b, c = sorted(rng.randrange(len(out)) for _ in range(3))
        parts = {"swap": (out[:a], out[b:c], out[a:b], out[c:]), "double": (out[:b], out[a:]),
                 "leave out": (out[:a], out[b:])}[kind]  # fmt: skip
        out = bytearray().join(parts)
    return bytes(out)


VALUE = re.compile(rb'(?<=:)(?:-?\d+|"[^"]*"|true|false|null)')
VALUES = (b"0", b"-1", b"1", b"8.5", b"1e999", b"NaN", b"1" + b"0" * 30, b"true", b"null", b'""', b'"x"', b"[]", b"{}")


def text_otherwise(text, rng):
    """A description of which a byte is another or missing, or a value is another."""
    out, values = bytearray(text), list(VALUE.finditer(text))
    if values and rng.random() < 0.5:
        chosen = rng.choice(values)
        out[chosen.start() : chosen.end()] = rng.choice(VALUES)
    else:
        at = rng.randrange(len(out))
        out[at : at + rng.randrange(2)] = bytes([rng.choice(b'0129-"[]{},:abnull')])
    return bytes(out)


def described_otherwise(data, rng):
    """A variant of an exported function with right checksums and another description."""
    sections = {name: bytes(view) for name, view in container.unpack(data).items()}
    name = rng.choice(["manifest", "trees", "types", "shard", "execs"])
    return bytes(container.pack({**sections, name: text_otherwise(sections[name], rng)}))


def compiled_otherwise(data, rng):
    """The same of a compiled program."""
    description, code, captured = compiled_container.unpack(data, "it")
    text = text_otherwise(compiled_container.json.dumps(description, separators=(",", ":")).encode(), rng)
    head = struct.pack("<8sIIQQ", b"MESHRTAO", compiled_container.VERSION, len(text), len(code), len(captured))
    parts = head, text, code, captured
    digest = compiled_container.hashlib.sha256(b"".join(parts)).digest()
    return b"".join((head, digest, *parts[1:]))


def outcomes(variants, read, data):
    """What became of variants of a file, counted. None takes more than four times the file."""
    counts: Counter[str] = Counter()
    tracemalloc.start()
    try:
        for variant in variants:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            try:
                read(variant)
                counts["read"] += 1
            except REFUSALS as e:
                counts[type(e).__name__] += 1
            taken = tracemalloc.get_traced_memory()[1] - before
            assert taken < 4 * len(data) + SLACK, f"{taken} bytes for a file of {len(data)}"
    finally:
        tracemalloc.stop()
    return counts


def run(kind, count, seed=0):
    make, read, head, lengths = KINDS[kind]
    data, rng = make(), random.Random(seed)
    other = {"exported": described_otherwise, "compiled": compiled_otherwise}.get(kind)
    found = outcomes((changed(data, rng, head, lengths) for _ in range(count)), read, data)
    if other is not None:
        found += outcomes((other(data, rng) for _ in range(count // 10)), read, data)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_changed_files(kind):
    found = run(kind, 1000)
    assert found["SavedProgramError"] > 500
    if "jax" not in kind:  # whose files have no checksums
        assert found["read"] < 200


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_changed_files(kind):
    run(kind, 34_000, seed=1)


def test_programs_in_changed_files_of_jax_are_read_by_another_process():
    """What is wrong with the program itself is found at the call, where MLIR's reader may end its process."""
    data, rng = jax_file(), random.Random(3)
    at = data.index(export.from_jax(data).mlir_module_serialized)
    for _ in range(3):
        out = bytearray(data)
        for _ in range(40):
            out[at + 4 + rng.randrange(1000)] ^= 1 << rng.randrange(8)
        with pytest.raises(errors.MeshrtError):
            export.from_jax(bytes(out)).call(X)


if __name__ == "__main__":
    for name in KINDS:
        run(name, 10)  # what reading loads once is there
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (256 << 20),) * 2)
    each = int(sys.argv[1]) // len(KINDS) + 1
    for name in sys.argv[2:] or KINDS:
        print(f"{name}: {dict(run(name, each, seed=2))}", flush=True)
