"""A kernel's module: its function, the functions that say which blocks its steps see, and both as bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func
from jaxlib.mlir.passmanager import PassManager
from jaxlib.mosaic.python import tpu

from meshrt import errors
from meshrt.core.jaxpr import Jaxpr
from meshrt.core.references import AbstractRef
from meshrt.experimental.kernels.grid import DYNAMIC
from meshrt.experimental.kernels.mapping import BlockMapping, GridMapping
from meshrt.experimental.kernels.mlir.dialects import classes_are_in
from meshrt.experimental.kernels.mlir.indices import places_of
from meshrt.experimental.kernels.mlir.verify import verify
from meshrt.experimental.kernels.mlir.words import in_words
from meshrt.experimental.kernels.mosaic.types import Place, reference_type, space_of
from meshrt.experimental.kernels.mosaic.walk import MosaicWalk
from meshrt.experimental.kernels.params import GridDimensionSemantics, TpuCompilerParams
from meshrt.experimental.kernels.specs import Blocked, Buffered, Element, RevisitMode, Squeezed
from propagation.contexts import new_context

__all__ = ["KernelModule", "kernel_module"]

classes_are_in("tpu", tpu)

# Memories of which a kernel gets the whole array and copies parts itself.
_FAR = ("any", "hbm", "host", "semaphore_mem")


@dataclass(frozen=True)
class KernelModule:
    """A kernel as the compiler takes it, as text for people, and whether it talks to other chips."""

    body: bytes
    text: str
    has_communication: bool
    has_custom_barrier: bool


def kernel_module(
    name: str, jaxpr: Jaxpr, mapping: GridMapping, params: TpuCompilerParams, mesh: Any = None
) -> KernelModule:
    """The module of a kernel.

    Raises:
      UnsupportedError: something that TPUs or their compiler lack, with the operation and its line.
    """
    context = new_context()
    tpu.register_dialect(context)
    with context, ir.Location.name(name):
        module = ir.Module.create()
        module.operation.attributes["sym_name"] = ir.StringAttr.get(name)
        walk = MosaicWalk(name, mesh)
        with ir.InsertionPoint(module.body):
            _Writer(walk, mapping, params).write(name, jaxpr)
        verify(module, "Mosaic (TPU)", name)
        text = str(module.operation.get_asm())
        communicates, meets = tpu.private_has_communication(module.operation)
        return KernelModule(serialized(module), text, communicates, meets)


def serialized(module: ir.Module) -> bytes:
    """The module in the form that compilers of other versions read too; `module` becomes that."""
    PassManager.parse("builtin.module(mosaic-serde{serialize=true})").run(module.operation)
    out = io.BytesIO()
    module.operation.write_bytecode(out, desired_version=0)
    return out.getvalue()


class _Writer:
    """Writes the functions of one kernel."""

    def __init__(self, walk: MosaicWalk, mapping: GridMapping, params: TpuCompilerParams):
        self.walk, self.mapping, self.params = walk, mapping, params
        for block in mapping.blocks:
            self._check_block(block)

    def _check_block(self, block: BlockMapping) -> None:
        far = space_of(block.ref_aval) in _FAR
        if (far or not self.mapping.grid) and not block.is_whole:
            self._refuse(
                f"{block.origin} has blocks of {block.sizes} of an array of {block.array_aval.shape}, but "
                + (
                    f"in {space_of(block.ref_aval).upper()} the kernel has the whole array: leave block_shape out"
                    if far else "there is no grid: give one, or leave block_shape out"
                )
            )  # fmt: skip
        if far or (space_of(block.ref_aval) == "smem" and block.is_whole):
            return
        if not block.array_aval.ndim:
            self._refuse(f"{block.origin} has no dimensions; keep it in SMEM, or reshape it to (1, 1)")
        rule = _tiling(block)
        if rule is not None:
            raise errors.ArgumentValueError(
                f"{block.origin} of the kernel {self.walk.kernel} has blocks of {block.sizes} of an array of "
                f"{block.array_aval.shape}, which a core's memory does not hold in whole tiles: {rule}"
            )

    def _refuse(self, why: str) -> None:
        raise errors.UnsupportedError(f"Mosaic (TPU): the kernel {self.walk.kernel} cannot be compiled: {why}")

    def _type(self, aval: AbstractRef, shape: Sequence[int] | None = None, what: str = "a reference") -> ir.Type:
        kind = reference_type(aval, shape)
        if kind is None:
            self._refuse(
                f"{what} holds {aval.dtype}, and a TPU's core has no elements of that type: it computes with at most "
                "32 bits; convert with astype"
            )
        return kind

    # -- the kernel ------------------------------------------------------------------------------------------------

    def write(self, name: str, jaxpr: Jaxpr) -> None:
        mapping = self.mapping
        kinds: list[ir.Type] = [ir.IntegerType.get_signless(32)] * len(mapping.grid)
        kinds += [self._type(a, what=f"scalars {i}") for i, a in enumerate(mapping.scalar_avals)]
        kinds += [self._type(b.ref_aval, b.sizes, b.origin) for b in mapping.blocks]
        kinds += [self._type(a, what=f"scratch {i}") for i, a in enumerate(mapping.scratch_avals)]
        function: Any = func.FuncOp(name, ir.FunctionType.get(kinds, []))
        block = function.add_entry_block()
        indices, references = block.arguments[: len(mapping.grid)], block.arguments[len(mapping.grid) :]
        with ir.InsertionPoint(block):
            leading = [indices[d] for d in mapping.kernel_dims]
            leading += [tpu.iteration_bound(d) for d, g in enumerate(mapping.grid) if g is DYNAMIC]
            self.walk.jaxpr(in_words(jaxpr), [*leading, *self._places(references)])
            func.return_([])
        self._describe(function, [self._window(i, b) for i, b in enumerate(mapping.blocks)])

    def _places(self, references: Sequence[ir.Value]) -> list[Place]:
        mapping, places = self.mapping, [Place.whole(r) for r in references]
        for i, b in enumerate(mapping.blocks):
            at = mapping.num_scalars + i
            hidden = tuple([isinstance(d, Squeezed) for d in b.block_shape])
            places[at] = Place(references[at], hidden)
        return places

    def _describe(self, function: func.FuncOp, windows: Sequence[ir.Attribute]) -> None:
        mapping, attributes = self.mapping, function.attributes
        count = lambda n: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), n)
        attributes["tpu.core_type"] = ir.Attribute.parse("#tpu.core_type<tc>")
        attributes["scalar_prefetch"] = count(mapping.num_scalars)
        attributes["scratch_operands"] = count(len(mapping.scratch_avals))
        attributes["dimension_semantics"] = ir.ArrayAttr.get(
            [ir.Attribute.parse(f"#tpu.dimension_semantics<{s}>") for s in self._semantics()]
        )
        if mapping.grid:
            dynamic = ir.ShapedType.get_dynamic_size()
            sizes = [dynamic if g is DYNAMIC else g for g in mapping.grid]
            attributes["iteration_bounds"] = ir.DenseI64ArrayAttr.get(sizes)
            attributes["window_params"] = ir.ArrayAttr.get(list(windows))

    def _semantics(self) -> list[str]:
        """Of every dimension of the grid; those that a vmap added are parallel."""
        mapping, asked = self.mapping, self.params.dimension_semantics
        dims = mapping.kernel_dims
        given = ["arbitrary"] * len(dims) if asked is None else [_semantic(s) for s in asked]
        if len(given) != len(dims):
            raise errors.ArgumentValueError(
                f"dimension_semantics of the kernel {self.walk.kernel} are {tuple(given)}, but its grid has "
                f"{len(dims)} dimensions: say one of each"
            )
        found = dict(zip(dims, given))
        return [found.get(d, "parallel") for d in range(len(mapping.grid))]

    # -- blocks ----------------------------------------------------------------------------------------------------

    def _window(self, number: int, block: BlockMapping) -> ir.Attribute:
        """Which blocks the steps see; nothing of arrays that kernels have as wholes."""
        if not self.mapping.grid or space_of(block.ref_aval) in _FAR:
            return ir.DictAttr.get({})
        name = f"transform_{number}"
        self._index_map(name, block)
        found = {
            "window_bounds": ir.DenseI64ArrayAttr.get(list(block.sizes)),
            "transform_indices": ir.FlatSymbolRefAttr.get(name),
        }
        by_element = [isinstance(d, Element) for d in block.block_shape]
        if any(by_element):
            if not all(isinstance(d, Element | Squeezed) for d in block.block_shape):
                self._refuse(f"{block.origin} mixes Element with other dimensions; make all Element or Squeezed")
            low, high = ([p[i] for p in block.padding] for i in (0, 1))
            found["window_kind"] = ir.Attribute.parse(f"#tpu.element_window<{low},{high}>")
        elif not all(isinstance(d, Blocked | Squeezed) for d in block.block_shape):
            self._refuse(f"{block.origin}: blocks of a grid's steps have fixed sizes; {block.block_shape}")
        return ir.DictAttr.get(found | self._buffering(block))

    def _buffering(self, block: BlockMapping) -> dict[str, ir.Attribute]:
        mode = block.pipeline_mode
        if block.is_whole and space_of(block.ref_aval) == "vmem":
            mode = Buffered(1)  # it is fetched once
        if mode is None:
            return {}
        if mode.use_lookahead or mode.buffer_count not in (1, 2):
            self._refuse(
                f"{block.origin}: blocks of a grid's steps have one or two buffers and no lookahead, not {mode}; "
                "pltpu.emit_pipeline has more"
            )
        kind = "synchronous" if mode.buffer_count == 1 else "double_buffered"
        found = {"pipeline_mode": ir.Attribute.parse(f"#tpu.pipeline_mode<{kind}>")}
        if mode.revisit is not None:
            if mode.revisit is RevisitMode.ANY and mode.buffer_count > 1:
                self._refuse(f"{block.origin}: RevisitMode.ANY needs Buffered(1)")
            found["revisit_mode"] = ir.Attribute.parse(f"#tpu.revisit_mode<{mode.revisit.value}>")
        return found

    def _index_map(self, name: str, block: BlockMapping) -> None:
        mapping = self.mapping
        word = ir.IntegerType.get_signless(32)
        kinds: list[ir.Type] = [*[word] * len(mapping.grid), *[self._type(a) for a in mapping.scalar_avals]]
        function: Any = func.FuncOp(name, ir.FunctionType.get(kinds, [word] * len(block.sizes)))
        entry = function.add_entry_block()
        indices, scalars = entry.arguments[: len(mapping.grid)], entry.arguments[len(mapping.grid) :]
        with ir.InsertionPoint(entry):
            func.return_(places_of(self.walk, in_words(block.index_map), [*indices, *map(Place.whole, scalars)]))


def _tiling(block: BlockMapping) -> str | None:
    """Why blocks do not consist of whole tiles of vector memory; None if they do."""
    sizes, whole = block.sizes, block.array_aval.shape
    if len(sizes) > 1:
        fits = all(b == n or b % tile == 0 for b, n, tile in zip(sizes[-2:], whole[-2:], (_SUBLANES, _LANES)))
        rule = f"the last two dimensions of your block shape are divisible by {_SUBLANES} and {_LANES} respectively"
        return None if fits else f"see that {rule}, or be equal to the respective dimensions of the overall array"
    (size,), least = sizes, _LANES * max(1, 4 // block.ref_aval.dtype.itemsize)
    is_power = size & (size - 1) == 0
    if size == whole[0] or size % (_SUBLANES * _LANES) == 0 or (size >= least and is_power):
        return None
    return (
        f"rank 1 block shapes are the array's, a multiple of {_SUBLANES * _LANES}, or a power of 2 and at least {least}"
    )


# A tile of vector memory: rows and columns of words.
_SUBLANES, _LANES = 8, 128


def _semantic(asked: Any) -> str:
    return asked.value if isinstance(asked, GridDimensionSemantics) else str(asked)


def stored_aval(aval: Any) -> Any:
    """The type of an array as the kernel's memory has it: bools are words."""
    return aval.update(dtype=np.dtype(np.int32)) if aval.dtype == np.bool_ else aval
