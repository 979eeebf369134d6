"""Files of exported functions: what they hold, that damage is found, and that files written before can be read."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, export
from meshrt.export import container

X = np.arange(4, dtype=np.float32)
GOLDEN = Path(__file__).parent / "golden"


def blob(**options):
    spec = meshrt.ShapeDtypeStruct(export.symbolic_shape("b, 2", constraints=["b >= 2"]), np.float32)
    exported = export.export(meshrt.jit(lambda x: {"y": jnp.sin(x) + x.shape[0]}))(spec)
    return exported.serialize(vjp_order=1, **options)


def test_described_byte_by_byte():
    data = bytes(blob())
    magic, version, count, total = struct.unpack_from("<8sIIQ", data)
    assert (magic, version, total) == (b"MESHRTEX", 1, len(data))
    table = data[56 : 56 + 56 * count]
    assert data[24:56] == hashlib.sha256(data[:24] + table).digest()
    names, at = [], 56 + 56 * count
    for i in range(count):
        name, start, length, digest = struct.unpack_from("<8sQQ32s", table, 56 * i)
        assert start == at and hashlib.sha256(data[start : start + length]).digest() == digest
        names.append(name.rstrip(b"\0").decode())
        at += length
    assert names == ["manifest", "trees", "types", "shard", "module", "vjp"] and at == total
    sections = container.unpack(data)
    assert json.loads(bytes(sections["types"]))["arguments"][0]["shape"] == ["b", 2]
    assert bytes(sections["vjp"])[:8] == magic


@pytest.mark.parametrize("tier", ["stable", "bytecode", "text"])
def test_001_05_tiers(tier):
    found = export.deserialize(blob(tier=tier)).call(np.ones((3, 2), np.float32))
    np.testing.assert_allclose(found["y"], np.sin(np.ones((3, 2))) + 3, rtol=1e-6)
    with pytest.raises(errors.ArgumentValueError, match="unknown tier"):
        blob(tier="other")


def test_001_05_tiers_of_another_version(monkeypatch):
    texts = {tier: blob(tier=tier) for tier in ("stable", "text")}
    monkeypatch.setattr("meshrt.xla.jaxlib_api.RELEASE", "0.0.1")
    assert export.deserialize(texts["stable"]).fun_name
    with pytest.raises(errors.IncompatibleProgramError, match="serialize it with tier='stable'"):
        export.deserialize(texts["text"])


@pytest.mark.parametrize("version", ["1.0.0", "1.9.0", 4, 12, "current"])
def test_001_06_target_versions(version):
    exported = export.export(meshrt.jit(jnp.sin), stablehlo_version=version)(X)
    np.testing.assert_allclose(export.deserialize(exported.serialize()).call(X), np.sin(X), rtol=1e-6)
    again = export.export(meshrt.jit(jnp.sin))(X).serialize(stablehlo_version=version)
    np.testing.assert_allclose(export.deserialize(again).call(X), np.sin(X), rtol=1e-6)


@pytest.mark.parametrize("version", ["99.0.0", "0.1.0", "new", 5])
def test_001_06_no_target_version(version):
    with pytest.raises(errors.ArgumentValueError, match="cannot be written"):
        export.export(meshrt.jit(jnp.sin), stablehlo_version=version)(X)


def test_constraints_stay():
    again = export.deserialize(blob())
    (b, _) = again.in_avals[0].shape
    assert b >= 2
    with pytest.raises(ValueError, match="symbolic shape constraint b >= 2"):
        again.call(np.ones((1, 2), np.float32))


@pytest.mark.parametrize("change", [
    lambda s: s.pop("types"),
    lambda s: s.pop("module"),
    lambda s: s.update(trees=b"{"),
    lambda s: s.update(shard=b"[]"),
    lambda s: s.update(manifest=b"null"),
    lambda s: s.update(types=s["types"].replace(b'"b"', b'"b*b*b)"')),
    lambda s: s.update(types=s["types"].replace(b"float32", b"object")),
    lambda s: s.update(vjp=b"MESHRTEX"),
    lambda s: s.update(manifest=s["manifest"].replace(b'"kept":[0]', b'"kept":[7]')),
    lambda s: s.update(trees=s["trees"].replace(b"tuple", b"class")),
    lambda s: s.update(trees=b"[" * 100000),
])  # fmt: skip
def test_wrong_descriptions(change):
    """With right checksums, so that what is read is looked at."""
    sections = {name: bytes(view) for name, view in container.unpack(blob()).items()}
    change(sections)
    with pytest.raises((errors.SavedProgramError, errors.TreeError)):
        export.deserialize(container.pack(sections))


@pytest.mark.parametrize("given", ["text", 3, None])
def test_no_bytes(given):
    with pytest.raises(TypeError, match="read from bytes"):
        export.deserialize(given)


def test_golden_file_of_version_1():
    """A file that was written when version 1 of the format was made, for StableHLO 1.9.0.

    It holds `lambda x: {"y": sin(x) + x.shape[0]}` of `f32[b, 2]`, `b >= 2`, with one derivative.
    """
    exported = export.deserialize((GOLDEN / "version_1.mexp").read_bytes())
    x = np.ones((3, 2), np.float32)
    np.testing.assert_allclose(exported.call(x)["y"], np.sin(x) + 3, rtol=1e-6)
    np.testing.assert_allclose(meshrt.grad(lambda x: exported.call(x)["y"].sum())(x), np.cos(x), rtol=1e-6)
