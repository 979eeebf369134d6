"""Python functions that write into the memory of results, beside JAX's."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import numpy as np
import pytest

import meshrt
from meshrt import errors
from tests.meshrt.beside import assert_alike

X = np.float32([[1, 2, 3], [4, 5, 6]])


def _callback(lib: Any, *args: Any, **options: Any) -> Any:
    return importlib.import_module(f"{lib.__name__}.experimental.buffer_callback").buffer_callback(*args, **options)


def _add(ctx: Any, out: Any, x: Any, y: Any = 1) -> None:
    assert ctx.stage.name == "EXECUTE"
    assert out.writeable
    np.asarray(out)[...] = np.asarray(x) + np.asarray(y)


def _several(ctx: Any, out: Any, given: Any, *, scale: Any) -> None:
    assert out["sum"].shape == ()
    assert out["product"].ndim == 2
    np.asarray(out["sum"])[...] = np.asarray(given["x"]).sum()
    np.asarray(out["product"])[...] = np.asarray(given["x"]) * np.asarray(scale)


def _half(ctx: Any, out: Any, x: Any) -> None:
    np.asarray(out)[..., :1] = -1


def _struct(lib: Any, *shape: int) -> Any:
    return lib.ShapeDtypeStruct(shape, np.float32)


def _mapped(lib: Any, method: str | None, dims: Any) -> Any:
    one = _callback(lib, _add, _struct(lib, 3), vmap_method=method)
    return lib.vmap(one, in_axes=dims)(X, X if dims == (0, 0) else X[0])


def _key_data(ctx: Any, out: Any, key: Any, x: Any) -> None:
    np.asarray(out)[...] = np.asarray(key).sum(-1) + np.asarray(x)


PROGRAMS = {
    "keys": lambda lib: _callback(lib, _key_data, _struct(lib, 3))(lib.random.split(lib.random.key(7), 3), X[0]),
    "mapped keys": lambda lib: lib.vmap(_callback(lib, _key_data, _struct(lib), vmap_method="expand_dims"), (0, None))(
        lib.random.split(lib.random.key(7), 3), np.float32(1)
    ),
    "called": lambda lib: _callback(lib, _add, _struct(lib, 2, 3))(X, X),
    "compiled": lambda lib: lib.jit(_callback(lib, _add, _struct(lib, 2, 3)))(X, X * 2) * 2,
    "pytrees": lambda lib: _callback(lib, _several, {"sum": _struct(lib), "product": _struct(lib, 2, 3)})(
        {"x": X}, scale=np.float32(2)
    ),
    "an alias": lambda lib: _callback(lib, _half, _struct(lib, 2, 3), input_output_aliases={0: 0})(X),
    "with effects": lambda lib: lib.jit(_callback(lib, _add, _struct(lib, 2, 3), has_side_effect=True))(X, X),
    "mapped one by one": lambda lib: _mapped(lib, "sequential", (0, 0)),
    "mapped at once": lambda lib: _mapped(lib, "broadcast_all", (0, None)),
    "mapped with ones": lambda lib: _mapped(lib, "expand_dims", (0, None)),
    "an alias of no input": lambda lib: _callback(lib, _half, _struct(lib, 2), input_output_aliases={1: 0})(X),
    "an alias of no output": lambda lib: _callback(lib, _half, _struct(lib, 2), input_output_aliases={0: 1})(X),
    "an alias of another type": lambda lib: _callback(lib, _half, _struct(lib, 2), input_output_aliases={0: 0})(X),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_jax(name: str) -> None:
    assert_alike(PROGRAMS[name])


def test_mapped_without_a_method_it_is_refused() -> None:
    for lib in (meshrt, jax):
        with pytest.raises(NotImplementedError, match="vmap is only supported for the buffer_callback primitive"):
            _mapped(lib, None, (0, 0))


@pytest.mark.parametrize("has_side_effect", [False, True])
def test_errors_name_the_function_that_was_called(has_side_effect: bool) -> None:
    for lib in (meshrt, jax):
        call = _callback(lib, _half, _struct(lib, 3), has_side_effect=has_side_effect)
        with pytest.raises(ValueError, match=r"Buffer callbacks do not support JVP.*custom_jvp"):
            lib.grad(lambda x, call=call: call(x).sum())(X[0])
    with pytest.raises(errors.CallbackError, match=r"_fails of buffer_callback at .* failed: ValueError: too small"):
        _callback(meshrt, _fails, _struct(meshrt, 3), has_side_effect=has_side_effect)(X[0])
    with pytest.raises(errors.ArgumentValueError, match=r"^buffer_callback: .* cannot specify 64-bit types"):
        wide = meshrt.ShapeDtypeStruct((3,), np.float64)
        _callback(meshrt, _half, wide, has_side_effect=has_side_effect)(X[0])


def _fails(ctx: Any, out: Any, x: Any) -> None:
    raise ValueError("too small")


def test_callbacks_that_return_something_are_refused() -> None:
    for lib in (meshrt, jax):
        with pytest.raises(RuntimeError, match="buffer_callback callback must not return any values"):
            np.asarray(lib.jit(_callback(lib, lambda ctx, out, x: x, _struct(lib, 3)))(X[0]))


def test_results_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(errors.ArgumentTypeError, match=r"not elements of key<fry>.*wrap_key_data"):
        _callback(meshrt, _add, meshrt.ShapeDtypeStruct((2,), meshrt.random.key(0).dtype))


def test_operands_are_read_only_and_memory_is_shared() -> None:
    seen = []

    def look(ctx: Any, out: Any, x: Any) -> None:
        seen.append((x.writeable, out.writeable, x.dtype, repr(x)))
        with pytest.raises(ValueError, match="read-only"):
            np.asarray(x)[...] = 0
        np.from_dlpack(out)[...] = 7

    out = _callback(meshrt, look, _struct(meshrt, 3))(X[0])
    assert np.asarray(out).tolist() == [7, 7, 7]
    assert seen == [(False, True, np.float32, "Buffer(shape=(3,), dtype=float32, writeable=False)")]


def test_what_has_effects_is_called_though_nobody_uses_it() -> None:
    calls = []
    note = lambda ctx, out, x: calls.append(float(np.asarray(x)))
    counted = _callback(meshrt, note, _struct(meshrt), has_side_effect=True)

    @meshrt.jit
    def f(x: Any) -> Any:
        counted(x)
        return x

    f(2.0)
    assert calls == [2.0]
