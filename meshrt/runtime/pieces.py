"""Parts of arrays as they lie in the memory of devices: shorter than their buffers, as uneven shardings have them, or
in another order than row-major. What is changed is copied, by small programs on the devices themselves."""

from __future__ import annotations

import functools
from typing import Any

from meshrt.core.types import ShapedArray
from meshrt.lowering.types import mlir_type
from meshrt.runtime import backend
from meshrt.runtime.executable import PortableExecutable, compile_program
from meshrt.runtime.signature import Signature, handlers
from meshrt.sharding.layout import Layout
from meshrt.xla import jaxlib_api

__all__ = ["cut", "fill", "relaid"]


def cut(buffer: Any, whole: ShapedArray, part: ShapedArray, native: Any, device: Any) -> Any:
    """The leading `part` of a buffer of type `whole` on `device`, as a buffer of its own."""
    return _run(_cutting(whole, part, backend.platform_of(device)), buffer, part, native, device)


def fill(buffer: Any, part: ShapedArray, whole: ShapedArray, native: Any, device: Any) -> Any:
    """A buffer of type `whole` on `device` with `buffer`, of type `part`, at its start and zeros behind."""
    return _run(_filling(part, whole, backend.platform_of(device)), buffer, whole, native, device)


def relaid(buffer: Any, before: Signature, after: Signature) -> Any:
    """The parts of a buffer of `before` in new memory, in the layout of `after`, which is the same but for that."""
    part, devices = after.stored.with_shape(after.shard_shape), after.sharding.device_assignment
    program = _relaying(part, _mode(before.layout), _mode(after.layout), len(devices), backend.platform_of(devices[0]))
    return program.load(devices).runner(handlers([after]))([buffer])[0]


def _run(program: PortableExecutable, buffer: Any, result: ShapedArray, native: Any, device: Any) -> Any:
    return program.load((device,)).runner([jaxlib_api.result_handler(result, native)])([buffer])[0]


@functools.lru_cache(512)
def _cutting(whole: ShapedArray, part: ShapedArray, platform: str) -> PortableExecutable:
    before, after = mlir_type(whole), mlir_type(part)
    bounds = ", ".join(f"0:{n}" for n in part.shape)
    return _compiled(before, after, f"%y = stablehlo.slice %x [{bounds}] : ({before}) -> {after}", platform)


@functools.lru_cache(512)
def _filling(part: ShapedArray, whole: ShapedArray, platform: str) -> PortableExecutable:
    before, after = mlir_type(part), mlir_type(whole)
    zero = mlir_type(part.with_shape(()))
    none = ", ".join("0" for _ in part.shape)
    high = ", ".join(str(w - p) for w, p in zip(whole.shape, part.shape))
    text = (
        f"%i = stablehlo.constant dense<0> : tensor<i32>\n  %z = stablehlo.convert %i : (tensor<i32>) -> {zero}\n"
        f"  %y = stablehlo.pad %x, %z, low = [{none}], high = [{high}], interior = [{none}] : "
        f"({before}, {zero}) -> {after}"
    )
    return _compiled(before, after, text, platform)


def _mode(layout: Layout | None) -> str:
    """A layout as XLA's attribute `mhlo.layout_mode` has it."""
    if layout is None:
        return "default"
    tiles = "".join(f"({','.join(map(str, tile))})" for tile in layout.tiling or ())
    order = ",".join(map(str, layout.major_to_minor[::-1]))
    return f"{{{order}{f':T{tiles}' if tiles else ''}}}"


@functools.lru_cache(512)
def _relaying(part: ShapedArray, before: str, after: str, n: int, platform: str) -> PortableExecutable:
    kind = mlir_type(part)
    text = f"""module @relayout {{
  func.func public @main(%x: {kind} {{mhlo.layout_mode = "{before}"}}) -> ({kind} {{mhlo.layout_mode = "{after}"}}) {{
    return %x : {kind}
  }}
}}"""
    return compile_program(text, num_devices=n, backend=platform)


def _compiled(before: str, after: str, body: str, platform: str) -> PortableExecutable:
    text = f"module @piece {{ func.func public @main(%x: {before}) -> {after} {{\n  {body}\n  return %y : {after} }} }}"
    return compile_program(text, num_devices=1, backend=platform)
