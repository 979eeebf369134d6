"""Runs modules of kernels with NumPy, an operation at a time: what they compute, where no hardware is at hand.

It knows nothing of how the modules were made; memories are arrays, parts of them views, copies are done when they are
started, and pointers are pairs of a flat array and offsets.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics

import ml_dtypes
import numpy as np
from jaxlib.mlir import ir

_ELEMENTS = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i1": np.bool_,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2, "i8": np.int8, "i16": np.int16,
    "i32": np.int32, "i64": np.int64, "index": np.int64,
}  # fmt: skip
_UNSIGNED = {np.dtype(f"int{n}"): np.dtype(f"uint{n}") for n in (8, 16, 32, 64)}


def numpy_type(kind):
    """(shape, dtype) of a type of values or of memory."""
    for cls in (ir.VectorType, ir.RankedTensorType, ir.MemRefType):
        if isinstance(kind, cls):
            return tuple(kind.shape), _ELEMENTS.get(str(kind.element_type))
    return (), _ELEMENTS.get(str(kind))


def unsigned(f):
    """`f` on the bits of whole numbers, as numbers without sign."""
    view = lambda x: np.asarray(x).view(_UNSIGNED[np.asarray(x).dtype])
    return lambda *xs: np.asarray(f(*map(view, xs)))


def _divide(x, y):
    return np.trunc(np.asarray(x, np.float64) / np.where(np.asarray(y) == 0, 1, y)).astype(np.asarray(x).dtype)


_PREDICATES = {
    "eq": np.equal, "ne": np.not_equal, "slt": np.less, "sle": np.less_equal, "sgt": np.greater,
    "sge": np.greater_equal, "ult": unsigned(np.less), "ule": unsigned(np.less_equal), "ugt": unsigned(np.greater),
    "uge": unsigned(np.greater_equal),
}  # fmt: skip
_INTEGER = ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"]
_FLOAT = {1: np.equal, 2: np.greater, 3: np.greater_equal, 4: np.less, 5: np.less_equal}
_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])
_lgamma = np.vectorize(lambda x: math.inf if x <= 0 and x == int(x) else math.lgamma(x), otypes=[np.float64])
_inverse_erf = np.vectorize(
    lambda x: (
        statistics.NormalDist().inv_cdf((x + 1) / 2) / math.sqrt(2)
        if -1 < x < 1
        else math.copysign(math.inf, x)
        if abs(x) == 1
        else math.nan
    ),
    otypes=[np.float64],
)


def _bessel_i1(x):
    """The modified Bessel function of order one, from its integral."""
    angles = (np.arange(400) + 0.5) * (np.pi / 400)
    return np.mean(np.exp(np.asarray(x)[..., None] * np.cos(angles)) * np.cos(angles), -1)


_SIMPLE = {
    "arith.addf": np.add, "arith.addi": np.add, "arith.subf": np.subtract, "arith.subi": np.subtract,
    "arith.mulf": np.multiply, "arith.muli": np.multiply, "arith.divf": np.divide, "arith.divsi": _divide,
    "arith.divui": unsigned(np.floor_divide), "arith.remsi": np.fmod, "arith.remui": unsigned(np.remainder),
    "arith.remf": np.fmod, "arith.maximumf": np.maximum, "arith.minimumf": np.minimum, "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum, "arith.maxui": unsigned(np.maximum), "arith.minui": unsigned(np.minimum),
    "arith.andi": np.bitwise_and, "arith.ori": np.bitwise_or, "arith.xori": np.bitwise_xor, "arith.negf": np.negative,
    "arith.shli": np.left_shift, "arith.shrsi": np.right_shift, "arith.shrui": unsigned(np.right_shift),
    "arith.select": np.where, "math.exp": np.exp, "math.exp2": np.exp2, "math.log": np.log, "math.log1p": np.log1p,
    "math.sqrt": np.sqrt, "math.rsqrt": lambda x: 1 / np.sqrt(x), "math.sin": np.sin, "math.cos": np.cos,
    "math.tan": np.tan, "math.tanh": np.tanh, "math.floor": np.floor, "math.ceil": np.ceil, "math.absf": np.abs,
    "math.absi": np.abs, "math.roundeven": np.rint, "math.round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "math.powf": np.power, "math.atan2": np.arctan2, "math.erf": lambda x: _erf(np.float64(x)),
    "math.ctpop": lambda x: np.bitwise_count(np.asarray(x).view(np.uint32)),
    "math.ctlz": lambda x: 32 - np.ceil(np.log2(np.asarray(x).view(np.uint32).astype(np.float64) + 1)),
    "tpu.reciprocal": lambda x: 1 / x,
}  # fmt: skip
_LIBDEVICE = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "cbrt": np.cbrt, "sin": np.sin, "cos": np.cos, "tan": np.tan, "tanh": np.tanh,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "floor": np.floor, "ceil": np.ceil,
    "erf": _SIMPLE["math.erf"], "pow": np.power, "rint": np.rint, "round": _SIMPLE["math.round"],
    "popc": _SIMPLE["math.ctpop"], "clz": _SIMPLE["math.ctlz"], "erfc": _erfc, "erfinv": _inverse_erf,
    "lgamma": _lgamma, "nextafter": np.nextafter, "cyl_bessel_i0": np.i0, "cyl_bessel_i1": _bessel_i1,
}  # fmt: skip
_CHANGES = {  # of tt.atomic_rmw
    1: np.bitwise_and, 2: np.bitwise_or, 3: np.bitwise_xor, 4: np.add, 5: np.add, 6: np.maximum, 7: np.minimum,
    8: unsigned(np.maximum), 9: unsigned(np.minimum), 10: lambda x, y: y,
}  # fmt: skip
_CASTS = ("tt.fp_to_fp", "extf", "truncf", "sitofp", "fptosi", "extsi", "trunci", "index_cast")
_REDUCTIONS = {"add": np.add, "maximumf": np.maximum, "maxsi": np.maximum, "minimumf": np.minimum, "minsi": np.minimum}
_EFFECTS = ("tpu.wait_dma2", "tpu.log", "tpu.sem_signal", "tpu.sem_wait", "tpu.log_buffer", "tt.return", "func.return")


class Evaluator:
    """Values of one run; `places` are the program's indices in the grid, `bounds` the grid's sizes."""

    def __init__(self, places=(), bounds=()):
        self.env, self.places, self.bounds = {}, places, bounds

    def block(self, block, args):
        """Runs a block; what its last operation gives."""
        self.env.update(zip(block.arguments, args))
        for op in block.operations:
            name, given = op.operation.name, [self.env[v] for v in op.operation.operands]
            if name.endswith((".yield", ".condition", ".return")):
                return given
            outs = self.run(name, op.operation, given)
            self.env.update(zip(op.operation.results, outs))
        return []

    def run(self, name, op, given):
        own = getattr(self, "_" + name.replace(".", "_"), None)
        if own is not None:
            out = own(op, *given)
            return out if isinstance(out, list) else [out]
        if name in _EFFECTS:
            return []
        shape, dtype = numpy_type(op.results[0].type)
        if name in _SIMPLE:
            with np.errstate(all="ignore"):
                out = np.asarray(_SIMPLE[name](*given))
            as_signed = out.dtype in _UNSIGNED.values() and np.dtype(dtype) in _UNSIGNED
            return [
                out.view(dtype) if as_signed and out.dtype.itemsize == np.dtype(dtype).itemsize else out.astype(dtype)
            ]
        short = name.removeprefix("arith.")
        if short in _CASTS:
            return [np.asarray(given[0]).astype(dtype)]
        if short in ("extui", "uitofp", "fptoui"):
            x = np.asarray(given[0])
            x = x.view(_UNSIGNED[x.dtype]) if x.dtype in _UNSIGNED else x
            out = x.astype(_UNSIGNED.get(np.dtype(dtype), dtype))
            return [out.view(dtype) if out.dtype in _UNSIGNED.values() else out]
        if name in ("tpu.bitcast", "arith.bitcast", "tt.bitcast"):
            return [np.asarray(given[0]).view(dtype)]
        if name in ("vector.broadcast", "tt.splat", "tt.broadcast"):
            return [self._spread(given[0], shape)]
        if name in ("vector.shape_cast", "tt.reshape", "tt.expand_dims"):
            return [np.asarray(given[0]).reshape(shape)]
        raise NotImplementedError(name)

    def _spread(self, x, shape):
        return (x[0], np.broadcast_to(x[1], shape)) if isinstance(x, tuple) else np.broadcast_to(x, shape)

    def _arith_constant(self, op):
        shape, dtype = numpy_type(op.results[0].type)
        attr = op.attributes["value"]
        if isinstance(attr, ir.DenseElementsAttr):
            attr = attr.get_splat_value()
        return np.full(shape, np.asarray(attr.value).astype(dtype))

    def _arith_cmpi(self, op, x, y):
        return _PREDICATES[_INTEGER[op.attributes["predicate"].value]](x, y)

    def _arith_cmpf(self, op, x, y):
        return _FLOAT[op.attributes["predicate"].value](x, y)

    # -- control -------------------------------------------------------------------------------------------------------

    def _scf_if(self, op, condition):
        return self.block(op.regions[0 if condition else 1].blocks[0], [])

    def _scf_for(self, op, start, stop, step, *carry):
        for i in range(int(start), int(stop), int(step)):
            carry = self.block(op.regions[0].blocks[0], [np.int32(i), *carry])
        return list(carry)

    def _scf_while(self, op, *carry):
        while True:
            go_on, *carry = self.block(op.regions[0].blocks[0], carry)
            if not go_on:
                return carry
            carry = self.block(op.regions[1].blocks[0], carry)

    def _tpu_region(self, op):
        return self.block(op.regions[0].blocks[0], [])

    # -- memory of a TPU's core ----------------------------------------------------------------------------------------

    def _part(self, memory, starts, shape, strides=None):
        steps = strides or [1] * len(shape)
        for start, n, step, whole in zip(starts, shape, steps, memory.shape):
            assert start >= 0 and start + (n - 1) * step < whole, "out of bounds"
        return memory[tuple([slice(int(s), int(s) + (n - 1) * t + 1, t) for s, n, t in zip(starts, shape, steps)])]

    def _vector_load(self, op, memory, *starts):
        return self._part(memory, starts, numpy_type(op.results[0].type)[0]).copy()

    def _tpu_strided_load(self, op, memory, *starts):
        return self._part(memory, starts, numpy_type(op.results[0].type)[0], list(op.attributes["strides"])).copy()

    def _tpu_vector_store(self, op, value, memory, *starts):
        mask = starts[len(memory.shape) :]
        part = self._part(memory, starts[: len(memory.shape)], np.shape(value))
        part[...] = np.where(mask[0], value, part) if mask else value
        return []

    def _tpu_strided_store(self, op, value, memory, *starts):
        self._part(memory, starts, np.shape(value), list(op.attributes["strides"]))[...] = value
        return []

    def _memref_load(self, op, memory, *at):
        return memory[tuple(map(int, at))]

    def _memref_store(self, op, value, memory, *at):
        memory[tuple(map(int, at))] = value
        return []

    def _memref_alloca(self, op):
        shape, dtype = numpy_type(op.results[0].type)
        return np.full(shape, 99, dtype)

    def _tpu_sem_alloc(self, op):
        return np.zeros(numpy_type(op.results[0].type)[0])

    def _tpu_memref_slice(self, op, memory, *starts):
        return self._part(memory, starts, numpy_type(op.results[0].type)[0])

    def _tpu_memref_squeeze(self, op, memory):
        out = memory.view()
        out.shape = numpy_type(op.results[0].type)[0]
        return out

    def _tpu_enqueue_dma(self, op, source, target, *semaphores):
        target[...] = source
        return []

    # -- vectors -------------------------------------------------------------------------------------------------------

    def _vector_extract(self, op, x):
        return x[tuple(op.attributes["static_position"])]

    def _vector_extract_strided_slice(self, op, x):
        whole = lambda name: [a.value for a in op.attributes[name]]
        return x[tuple([slice(o, o + n) for o, n in zip(whole("offsets"), whole("sizes"))])]

    def _vector_multi_reduction(self, op, x, start):
        kind = str(op.attributes["kind"]).split("<")[1].rstrip(">")
        axes = tuple(op.attributes["reduction_dims"])
        return _REDUCTIONS[kind](_REDUCTIONS[kind].reduce(x, axis=axes), start)

    def _tpu_transpose(self, op, x):
        return np.transpose(x, list(op.attributes["permutation"]))

    def _tpu_concatenate(self, op, *xs):
        return np.concatenate(xs, op.attributes["dimension"].value)

    def _tpu_iota(self, op):
        shape, dtype = numpy_type(op.results[0].type)
        (d,) = op.attributes["dimensions"]
        count = np.arange(shape[d], dtype=dtype).reshape([-1 if i == d else 1 for i in range(len(shape))])
        return np.broadcast_to(count, shape)

    def _tpu_dynamic_gather(self, op, x, places):
        return np.take_along_axis(x, places, next(iter(op.attributes["dimensions"])))

    def _tpu_dynamic_rotate(self, op, x, amount):
        return np.roll(x, int(amount), op.attributes["dimension"].value)

    def _tpu_reduce_index(self, op, x):
        best = np.argmax if "max" in str(op.attributes["kind"]) else np.argmin
        return best(x, axis=op.attributes["axis"].value).astype(np.int32)

    def _tpu_iteration_bound(self, op):
        return np.int32(self.bounds[op.attributes["dim"].value])

    def _tpu_matmul(self, op, x, y, start):
        lists = re.findall(r"\[([\d, ]*)\]", str(op.attributes["dimension_numbers"]))
        xc, yc, xf, yf, order, xb, yb = [[int(n) for n in t.split(",") if n.strip()] for t in lists]
        letters = iter("abcdefghijkl")
        left, right = {}, {}
        for d, e in [*zip(xc, yc), *zip(xb, yb)]:
            left[d] = right[e] = next(letters)
        left |= {d: next(letters) for d in xf}
        right |= {d: next(letters) for d in yf}
        out = "".join((left, right)[order[i]][order[i + 1]] for i in range(0, len(order), 2))
        terms = ",".join("".join(side[d] for d in range(len(side))) for side in (left, right))
        wide = np.asarray(start).dtype
        return np.einsum(f"{terms}->{out}", x.astype(wide), y.astype(wide)) + start

    # -- Triton --------------------------------------------------------------------------------------------------------

    def _tt_get_program_id(self, op):
        return np.int32(self.places[ir.IntegerAttr(op.attributes["axis"]).value])

    def _tt_make_range(self, op):
        return np.arange(op.attributes["start"].value, op.attributes["end"].value, dtype=np.int32)

    def _tt_addptr(self, op, pointer, offset):
        return pointer[0], pointer[1] + offset

    def _tt_load(self, op, pointer, mask=None, other=None):
        buffer, at = pointer
        if mask is None:
            assert np.all((at >= 0) & (at < buffer.size)), "out of bounds"
            return buffer[at]
        return np.where(mask, buffer[np.where(mask, at, 0)], other)

    def _tt_store(self, op, pointer, value, mask=None):
        buffer, at = pointer
        keep = np.broadcast_to(True if mask is None else mask, np.shape(at))
        buffer[np.asarray(at)[keep]] = np.broadcast_to(value, np.shape(at))[keep]
        return []

    def _tt_trans(self, op, x):
        return np.transpose(x, list(op.attributes["order"]))

    def _tt_gather(self, op, x, places):
        return np.take_along_axis(np.asarray(x), places, op.attributes["axis"].value)

    def _tt_dot(self, op, x, y, start):
        return x.astype(start.dtype) @ y.astype(start.dtype) + start

    def _tt_extern_elementwise(self, op, *xs):
        name = op.attributes["symbol"].value.removeprefix("__nv_")
        found = _LIBDEVICE.get(name) or _LIBDEVICE[name.removesuffix("f")]
        with np.errstate(all="ignore"):
            return np.asarray(found(*xs)).astype(numpy_type(op.results[0].type)[1])

    def _tt_atomic_rmw(self, op, pointer, value, mask=None):
        """One program runs at a time, but of its elements several may lie at one place."""
        (buffer, at), keep = pointer, np.broadcast_to(True if mask is None else mask, np.shape(pointer[1]))
        change = _CHANGES[op.attributes["atomic_rmw_op"].value]
        old = np.zeros(np.shape(at), buffer.dtype)
        for i in np.ndindex(np.shape(at)):
            if keep[i]:
                place = np.asarray(at)[i]
                old[i] = buffer[place]
                buffer[place] = change(buffer[place], np.broadcast_to(value, np.shape(at))[i])
        return old

    def _tt_reduce(self, op, *xs):
        axis, combine = op.attributes["axis"].value, op.regions[0].blocks[0]
        first = _SIMPLE.get(next(iter(combine.operations)).operation.name)
        if len(xs) == 1 and isinstance(first, np.ufunc) and len(list(combine.operations)) == 2:
            return [first.reduce(xs[0], axis=axis).astype(xs[0].dtype)]
        rows = [np.moveaxis(x, axis, 0) for x in xs]
        total = [r[0] for r in rows]
        for i in range(1, len(rows[0])):
            total = self.block(combine, [*total, *[r[i] for r in rows]])
        return list(total)

    def _tt_scan(self, op, *xs):
        axis, combine = op.attributes["axis"].value, op.regions[0].blocks[0]
        backwards = op.attributes["reverse"].value
        (row,) = [np.moveaxis(np.flip(x, axis) if backwards else x, axis, 0) for x in xs]
        found = [row[0]]
        for i in range(1, len(row)):
            found += self.block(combine, [found[-1], row[i]])
        found = np.moveaxis(np.stack(found), 0, axis)
        return np.flip(found, axis) if backwards else found


# ----------------------------------------------------------------------------------------------------------------------
# Whole kernels


def functions(module):
    return {op.attributes["sym_name"].value: op for op in module.body.operations}


def run_mosaic(module, arrays, outs, grid, aliases=()):
    """Runs a TPU kernel over its grid, one step after the other.

    `arrays` are scalars and inputs, `outs` results as they are before; `grid` has its sizes.
    """
    found = functions(module)
    (name,) = [n for n in found if not n.startswith("transform_")]
    main, body = found[name], found[name].regions[0].blocks[0]
    scalars = main.attributes["scalar_prefetch"].value
    windows = list(main.attributes["window_params"]) if "window_params" in main.attributes else []
    everything = [np.array(a) for a in (*arrays, *outs)]
    for i, o in aliases:
        everything[len(arrays) + o] = everything[i].copy()
    kinds = [numpy_type(a.type) for a in body.arguments][len(grid) + len(everything) :]
    scratch = [np.full(shape, 99, dtype) if dtype else np.zeros(shape) for shape, dtype in kinds]
    for step in itertools.product(*map(range, grid)):
        indices = [np.int32(i) for i in step]
        run = Evaluator(step, grid)
        parts = list(everything)
        for i, window in enumerate(windows):
            if "window_bounds" in window:
                index_map = found[window["transform_indices"].value].regions[0].blocks[0]
                at = run.block(index_map, [*indices, *everything[:scalars]])
                sizes = list(window["window_bounds"])
                parts[scalars + i] = _Block(everything[scalars + i], [int(a) * n for a, n in zip(at, sizes)], sizes)
        memories = [p.memory if isinstance(p, _Block) else p for p in parts]
        run.block(body, [*indices, *memories, *scratch])
        for i, part in enumerate(parts):
            if isinstance(part, _Block) and i >= len(arrays):
                part.put_back()
    return everything[len(arrays) :]


class _Block:
    """A block of an array in memory of its own; what lies outside of the array is dropped."""

    def __init__(self, array, starts, sizes):
        self.inside = tuple([slice(s, min(s + n, whole)) for s, n, whole in zip(starts, sizes, array.shape)])
        self.array, self.memory = array, np.full(sizes, 77, array.dtype)
        self.here = tuple([slice(0, s.stop - s.start) for s in self.inside])
        self.memory[self.here] = array[self.inside]

    def put_back(self):
        self.array[self.inside] = self.memory[self.here]


def run_triton(module, arrays, outs, launch):
    """Runs a GPU kernel's programs, the last one first: no order may be relied on."""
    (main,) = functions(module).values()
    everything = [np.array(a) for a in (*arrays, *outs)]
    flat = [a.reshape(-1) for a in everything]
    for place in reversed(list(itertools.product(*map(range, launch)))):
        Evaluator(place).block(main.regions[0].blocks[0], [(f, np.int64(0)) for f in flat])
    return everything[len(arrays) :]
