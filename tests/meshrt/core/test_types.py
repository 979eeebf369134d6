"""Types of arrays: interned; with shardings and varying axes where there are any, and without a trace of them else."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import dtypes
from meshrt.core.types import ShapedArray, aval_of
from meshrt.sharding import AbstractMesh, AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P

F32, BF16, I32 = np.dtype("float32"), jnp.dtype("bfloat16"), np.dtype("int32")
MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
ROWS = NamedSharding(MESH, P("data"))
BOTH = NamedSharding(MESH, P(("data", "model"), None))
PLAIN = ShapedArray((8, 4), F32)
SPLIT = ShapedArray((8, 4), F32, sharding=ROWS)
VARYING = ShapedArray((8, 4), F32, vma=frozenset({"pipe"}))


def test_equal_types_are_one_object() -> None:
    assert ShapedArray([8, 4], "float32") is PLAIN
    assert ShapedArray((8, 4), F32, sharding=NamedSharding(MESH, P("data"))) is SPLIT
    assert ShapedArray((8, 4), F32, vma={"pipe"}) is VARYING
    assert len({PLAIN, SPLIT, VARYING, ShapedArray((8, 4), F32, sharding=BOTH)}) == 4


def test_absent_fields_are_no_part_of_the_key() -> None:
    keys = {aval: key for key, aval in ShapedArray._interned.items()}
    assert keys[PLAIN] == ((8, 4), F32, False)
    assert len(keys[SPLIT]) == len(keys[VARYING]) == 5
    assert PLAIN.update(sharding=None, vma=frozenset()) is PLAIN
    assert SPLIT.update(sharding=None) is PLAIN and VARYING.update(vma=frozenset()) is PLAIN


def test_arrays_on_auto_meshes_have_plain_types() -> None:
    mesh = meshrt.make_mesh((1,), ("data",), AxisType.Auto)
    x = meshrt.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, P("data")))
    assert aval_of(x) is PLAIN and aval_of(x).explicit is None and not aval_of(x).vma
    seen = []
    meshrt.jit(lambda y: (seen.append(aval_of(y)), y * 2)[1])(x)
    assert seen == [PLAIN]


def test_users_are_told_of_a_sharding_where_types_have_none() -> None:
    def told(lib: Any, kind: Any) -> list[Any]:
        mesh = lib.make_mesh((1, 1), ("data", "model"), axis_types=(kind.Auto,) * 2)
        spec = lib.sharding.PartitionSpec("data")
        seen = []

        def body(y: Any) -> Any:
            seen.extend((str(s.spec), s.mesh.axis_names, str(s.mesh.axis_types)) for s in [(y * 2).aval.sharding])
            return y

        lib.jit(body)(np.ones((8, 4), np.float32))
        with lib.set_mesh(mesh):
            lib.jit(lambda y: body(y * 2))(np.ones((8, 4), np.float32))
        lib.jit(lib.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec))(np.ones((8, 4), np.float32))
        return seen

    assert told(meshrt, AxisType) == told(jax, jax.sharding.AxisType)
    assert PLAIN.str_short(False) == "float32[8,4]"


@pytest.mark.parametrize(
    "aval, short",
    [
        (PLAIN, "f32[8,4]"),
        (SPLIT, "f32[8@data,4]"),
        (ShapedArray((8, 4), F32, sharding=BOTH), "f32[8@(data,model),4]"),
        (VARYING, "f32[8,4]{V:pipe}"),
        (SPLIT.update(vma=frozenset({"b", "a"}), dtype=BF16), "bf16[8@data,4]{V:(a,b)}"),
    ],
)
def test_printing(aval: ShapedArray, short: str) -> None:
    assert aval.short() == short
    assert str(aval) == short.replace("bf16", "bfloat16").replace("f32", "float32")
    assert repr(aval) == f"ShapedArray({aval})"


def test_a_new_shape_drops_the_sharding_and_keeps_varying_axes() -> None:
    both = SPLIT.update(vma=frozenset({"pipe"}))
    assert both.with_shape((4, 8)) is ShapedArray((4, 8), F32, vma={"pipe"})
    assert both.update(shape=(2,)) is ShapedArray((2,), F32, vma={"pipe"})
    assert both.with_shape((8, 4)) is both and both.update(shape=(8, 4)) is both
    assert both.update(shape=(4,), sharding=ROWS).sharding == ROWS


def test_everything_else_keeps_both() -> None:
    weak = ShapedArray((8, 4), F32, True, ROWS, frozenset({"pipe"}))
    assert weak.strong() is SPLIT.update(vma=frozenset({"pipe"}))
    assert weak.update(dtype=I32).sharding == ROWS
    assert SPLIT.to_tangent_aval() is SPLIT
    assert SPLIT.update(dtype=I32).to_tangent_aval() is ShapedArray((8, 4), dtypes.float0, sharding=ROWS)
    keys = aval_of(meshrt.random.key(0)).update(shape=(8,)).update(sharding=ROWS)
    assert keys.physical() is ShapedArray((8, 2), np.dtype("uint32"), sharding=ROWS)
    assert PLAIN.physical() is PLAIN and PLAIN.strong() is PLAIN


def test_pickled_types_come_back_as_themselves() -> None:
    for aval in (PLAIN, ShapedArray((), F32, True), VARYING):
        assert pickle.loads(pickle.dumps(aval)) is aval


OF_BUFFERS = ["addressable_shards", "committed", "global_shards", "is_fully_addressable", "is_fully_replicated"]
METHODS_OF_BUFFERS = ["delete", "devices", "is_deleted", "on_device_size_in_bytes", "unsafe_buffer_pointer"]


@pytest.mark.parametrize("name", [*OF_BUFFERS, *METHODS_OF_BUFFERS])
@pytest.mark.parametrize("lib", [meshrt, jax])
def test_traced_values_have_no_buffers(lib: Any, name: str) -> None:
    asked = (lambda x: getattr(x, name)()) if name in METHODS_OF_BUFFERS else (lambda x: getattr(x, name))
    with pytest.raises(TypeError, match=rf"concrete value is expected(?s:.*){name}.* traced array"):
        lib.jit(lambda x: (asked(x), x)[1])(1.0)
