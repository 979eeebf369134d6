"""Random StableHLO modules with random annotations, for comparing propagation with the real passes.

`module(seed)` is deterministic. Every op family, data flow, calls, manual computations, groups, constraints, barriers,
sub-axes, priorities, replicated and unreduced axes appear.
"""

from __future__ import annotations

import random
from math import prod

MESHES = [
    [("a", 2), ("b", 4)],
    [("a", 4), ("b", 2), ("c", 2)],
    [("x", 8), ("y", 3)],
    [("a", 2), ("b", 1), ("c", 6)],
    [("data", 16)],
]
SIZES = [1, 2, 3, 4, 6, 8, 12, 16, 24]
UNARY = ["tanh", "negate", "abs", "exponential", "sine", "sqrt", "floor"]
BINARY = ["add", "multiply", "maximum", "subtract", "divide"]


def text(shape, dtype="f32") -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}{dtype}>"


class Generator:
    """Grows one function body: `pool` are the values in scope as (name, shape)."""

    def __init__(self, seed: int, features: bool = True):
        self.rng = random.Random(seed)
        self.axes = self.rng.choice(MESHES)
        self.features = features
        self.count = 0
        self.lines: list[str] = []
        self.pool: list[tuple[str, tuple[int, ...]]] = []
        self.functions: list[str] = []
        self.depth = 0
        self.groups = 0
        self.manual: tuple[str, ...] = ()
        self.index = "%index"
        self.callees: list[tuple[str, list[tuple[int, ...]], tuple[int, ...]]] = []

    # ---- pieces

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def shape(self) -> tuple[int, ...]:
        return tuple(self.rng.choice(SIZES) for _ in range(self.rng.choice([1, 2, 2, 3, 3, 4])))

    def emit(self, line: str, shape, name: str | None = None) -> str:
        name = name or self.name()
        self.lines.append(f"{name} = {line}")
        self.pool.append((name, tuple(shape)))
        return name

    def pick(self, condition=lambda s: True):
        options = [v for v in self.pool if condition(v[1])]
        return self.rng.choice(options[-12:]) if options else None

    def like(self, shape) -> str:
        """A value of `shape`: one from the pool, a constant, an iota, or a broadcast."""
        same = [v for v in self.pool if v[1] == tuple(shape)]
        if same and self.rng.random() < 0.75:
            return self.rng.choice(same)[0]
        kind = self.rng.random()
        if kind < 0.4 or not shape:
            return self.emit(f"stablehlo.constant dense<{self.rng.randrange(3)}.5> : {text(shape)}", shape)
        if kind < 0.6:
            return self.emit(f"stablehlo.iota dim = {self.rng.randrange(len(shape))} : {text(shape)}", shape)
        scalar = self.emit(f"stablehlo.constant dense<{self.rng.randrange(3)}.0> : tensor<f32>", ())
        return self.emit(f"stablehlo.broadcast_in_dim {scalar}, dims = [] : (tensor<f32>) -> {text(shape)}", shape)

    def parts(self) -> list[str]:
        """The mesh axes cut into disjoint references, in random order."""
        out = []
        for name, size in self.axes:
            if name in self.manual:
                continue
            if size == 1:
                out.append((f'"{name}"', 1))
                continue
            splits = [k for k in range(2, size) if size % k == 0]
            if self.features and splits and self.rng.random() < 0.35:
                k = self.rng.choice(splits)
                out += [(f'"{name}":(1){k}', k), (f'"{name}":({k}){size // k}', size // k)]
            else:
                out.append((f'"{name}"', size))
        self.rng.shuffle(out)
        return out

    def sharding(self, shape, closed: bool | None = None, extras: bool = True, priority: bool = True) -> str:
        rng, parts = self.rng, self.parts()
        dims: list[list[str]] = [[] for _ in shape]
        for part, size in list(parts):
            if shape and rng.random() < 0.55:
                d = rng.randrange(len(shape))
                if dims[d] and self._adjacent(dims[d][-1], part):
                    continue
                dims[d].append(part)
                parts.remove((part, size))
        texts = []
        for axes in dims:
            is_open = rng.random() < 0.6 if closed is None else not closed
            entry = "{" + ", ".join(axes + (["?"] if is_open else [])) + "}"
            if self.features and priority and rng.random() < 0.12 and (axes or is_open):
                entry += f"p{rng.randrange(3)}"
            texts.append(entry)
        out = f"<@mesh, [{', '.join(texts)}]"
        if self.features and extras and parts and rng.random() < 0.15:
            part, _ = parts[0]
            out += f", {rng.choice(['replicated', 'replicated', 'unreduced'])}={{{part}}}"
        return out + ">"

    def _adjacent(self, first: str, second: str) -> bool:
        """Whether two references would have to be written as one."""
        if ":" not in first or ":" not in second or first.split(":")[0] != second.split(":")[0]:
            return False
        pre, size = first.split(":(")[1].split(")")
        return int(pre) * int(size) == int(second.split(":(")[1].split(")")[0])

    def annotate(self, shape, chance: float) -> str:
        if self.rng.random() >= chance or not shape:
            return ""
        return f" {{sdy.sharding = #sdy.sharding_per_value<[{self.sharding(shape)}]>}}"

    # ---- operations

    def step(self) -> None:
        kinds = [
            self.unary, self.binary, self.binary, self.dot, self.dot, self.reshape, self.transpose, self.broadcast,
            self.reduce, self.concatenate, self.slice, self.pad, self.dynamic_slice, self.dynamic_update, self.sort,
            self.gather, self.scatter, self.reverse, self.select, self.custom_call, self.convolution, self.window,
        ]  # fmt: skip
        if self.features and self.depth < 2:
            kinds += [self.loop, self.case, self.barrier, self.constraint, self.constraint, self.chain, self.group]
            kinds += [self.stop, self.call, self.manual_computation, self.random_bits]
        self.rng.choice(kinds)()

    def unary(self) -> None:
        v = self.pick()
        t = text(v[1])
        note = self.annotate(v[1], 0.08)
        self.emit(f"stablehlo.{self.rng.choice(UNARY)} {v[0]}{note} : {t}", v[1])

    def binary(self) -> None:
        v = self.pick()
        other = self.like(v[1])
        self.emit(
            f"stablehlo.{self.rng.choice(BINARY)} {v[0]}, {other}{self.annotate(v[1], 0.08)} : {text(v[1])}", v[1]
        )

    def select(self) -> None:
        v = self.pick()
        mask = self.name()
        t, m = text(v[1]), text(v[1], "i1")
        self.lines.append(f"{mask} = stablehlo.compare LT, {v[0]}, {self.like(v[1])} : ({t}, {t}) -> {m}")
        self.emit(f"stablehlo.select {mask}, {v[0]}, {self.like(v[1])} : {m}, {t}", v[1])

    def dot(self) -> None:
        v = self.pick(lambda s: 1 <= len(s) <= 3)
        if v is None:
            return
        rng, (a, s) = self.rng, v
        batch = len(s) == 3 and rng.random() < 0.5
        contract = rng.randrange(1 if batch else 0, len(s))
        free = [d for d in range(len(s)) if d != contract and not (batch and d == 0)]
        n = rng.choice(SIZES)
        rhs = ((s[0],) if batch else ()) + (s[contract], n)
        b = self.like(rhs)
        out = ((s[0],) if batch else ()) + tuple(s[d] for d in free) + (n,)
        batching = "batching_dims = [0] x [0], " if batch else ""
        dims = f"{batching}contracting_dims = [{contract}] x [{1 if batch else 0}]"
        note = self.annotate(out, 0.05)
        self.emit(f"stablehlo.dot_general {a}, {b}, {dims}{note} : ({text(s)}, {text(rhs)}) -> {text(out)}", out)

    def reshape(self) -> None:
        v = self.pick()
        n, dims = prod(v[1]), []
        while n > 1 and len(dims) < 4:
            k = self.rng.choice([k for k in range(2, n + 1) if n % k == 0])
            dims.append(k)
            n //= k
        dims = dims + [n] if n > 1 or not dims else dims
        self.rng.shuffle(dims)
        self.emit(f"stablehlo.reshape {v[0]} : ({text(v[1])}) -> {text(dims)}", dims)

    def transpose(self) -> None:
        v = self.pick(lambda s: len(s) > 1)
        if v is None:
            return
        order = list(range(len(v[1])))
        self.rng.shuffle(order)
        out = [v[1][d] for d in order]
        self.emit(f"stablehlo.transpose {v[0]}, dims = {order} : ({text(v[1])}) -> {text(out)}", out)

    def broadcast(self) -> None:
        v = self.pick(lambda s: len(s) < 4)
        if v is None:
            return
        at = self.rng.randrange(len(v[1]) + 1)
        dims = [d if d < at else d + 1 for d in range(len(v[1]))]
        out = [n if n > 1 or self.rng.random() < 0.5 else self.rng.choice(SIZES) for n in v[1]]
        out.insert(at, self.rng.choice(SIZES))
        self.emit(f"stablehlo.broadcast_in_dim {v[0]}, dims = {dims} : ({text(v[1])}) -> {text(out)}", out)

    def reduce(self) -> None:
        v = self.pick(lambda s: len(s) > 0)
        if v is None:
            return
        dims = sorted(self.rng.sample(range(len(v[1])), self.rng.randint(1, len(v[1]))))
        out = [n for d, n in enumerate(v[1]) if d not in dims]
        zero = self.like(())
        kind = self.rng.choice(["add", "maximum"])
        self.emit(
            f"stablehlo.reduce({v[0]} init: {zero}) applies stablehlo.{kind} across dimensions = {dims} : "
            f"({text(v[1])}, tensor<f32>) -> {text(out)}",
            out,
        )

    def concatenate(self) -> None:
        v = self.pick(lambda s: len(s) > 0)
        if v is None:
            return
        d = self.rng.randrange(len(v[1]))
        other = list(v[1])
        other[d] = self.rng.choice(SIZES)
        out = list(v[1])
        out[d] += other[d]
        b = self.like(tuple(other))
        self.emit(f"stablehlo.concatenate {v[0]}, {b}, dim = {d} : ({text(v[1])}, {text(other)}) -> {text(out)}", out)

    def slice(self) -> None:
        v = self.pick(lambda s: len(s) > 0)
        if v is None:
            return
        bounds = []
        for n in v[1]:
            low = self.rng.randrange(n) if self.rng.random() < 0.4 else 0
            bounds.append((low, self.rng.randint(low + 1, n) if self.rng.random() < 0.4 else n))
        out = [b - a for a, b in bounds]
        ranges = ", ".join(f"{a}:{b}" for a, b in bounds)
        self.emit(f"stablehlo.slice {v[0]} [{ranges}] : ({text(v[1])}) -> {text(out)}", out)

    def pad(self) -> None:
        v = self.pick(lambda s: len(s) > 0)
        if v is None:
            return
        low = [self.rng.choice([0, 0, 1]) for _ in v[1]]
        high = [self.rng.choice([0, 0, 2]) for _ in v[1]]
        out = [n + a + b for n, a, b in zip(v[1], low, high)]
        zero = self.like(())
        self.emit(
            f"stablehlo.pad {v[0]}, {zero}, low = {low}, high = {high}, interior = {[0] * len(low)} : "
            f"({text(v[1])}, tensor<f32>) -> {text(out)}",
            out,
        )

    def indices(self, count: int) -> list[str]:
        names = []
        for _ in range(count):
            name = self.name()
            self.lines.append(f"{name} = stablehlo.constant dense<{self.rng.randrange(2)}> : tensor<i32>")
            names.append(name if self.rng.random() < 0.5 else self.index)
        return names

    def dynamic_slice(self) -> None:
        v = self.pick(lambda s: len(s) > 0)
        if v is None:
            return
        out = [self.rng.randint(1, n) if self.rng.random() < 0.4 else n for n in v[1]]
        names = self.indices(len(out))
        types = ", ".join([text(v[1])] + ["tensor<i32>"] * len(out))
        self.emit(f"stablehlo.dynamic_slice {v[0]}, {', '.join(names)}, sizes = {out} : ({types}) -> {text(out)}", out)

    def dynamic_update(self) -> None:
        v = self.pick(lambda s: len(s) > 0)
        if v is None:
            return
        part = tuple(self.rng.randint(1, n) if self.rng.random() < 0.4 else n for n in v[1])
        update = self.like(part)
        names = self.indices(len(part))
        types = ", ".join([text(v[1]), text(part)] + ["tensor<i32>"] * len(part))
        self.emit(
            f"stablehlo.dynamic_update_slice {v[0]}, {update}, {', '.join(names)} : ({types}) -> {text(v[1])}", v[1]
        )

    def sort(self) -> None:
        v = self.pick(lambda s: len(s) > 0)
        if v is None:
            return
        d, t = self.rng.randrange(len(v[1])), text(v[1])
        two = self.rng.random() < 0.5
        names = [v[0]] + ([self.like(v[1])] if two else [])
        args = ", ".join(f"%p{i}: tensor<f32>" for i in range(2 * len(names)))
        body = (
            f"({{ ^bb0({args}): %lt = stablehlo.compare LT, %p0, %p1 : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
            "stablehlo.return %lt : tensor<i1> })"
        )
        types = ", ".join([t] * len(names))
        result = self.name()
        left = f"{result}:{len(names)}" if two else result
        self.lines.append(
            f'{left} = "stablehlo.sort"({", ".join(names)}) {body} {{dimension = {d} : i64}} : ({types}) -> ({types})'
        )
        for i in range(len(names)):
            self.pool.append((f"{result}#{i}" if two else result, v[1]))

    def gather(self) -> None:
        v = self.pick(lambda s: len(s) > 1)
        if v is None:
            return
        n = self.rng.choice(SIZES)
        ids = self.name()
        self.lines.append(f"{ids} = stablehlo.iota dim = 0 : tensor<{n}x1xi32>")
        s = v[1]
        sizes = [1, *(m if self.rng.random() < 0.8 else 1 for m in s[1:])]
        out = [n, *sizes[1:]]
        dims = (
            f"offset_dims = {list(range(1, len(s)))}, collapsed_slice_dims = [0], start_index_map = [0], "
            "index_vector_dim = 1"
        )
        self.emit(
            f'"stablehlo.gather"({v[0]}, {ids}) {{dimension_numbers = #stablehlo.gather<{dims}>, '
            f"slice_sizes = array<i64: {', '.join(map(str, sizes))}>}} : ({text(s)}, tensor<{n}x1xi32>) -> {text(out)}",
            out,
        )

    def scatter(self) -> None:
        v = self.pick(lambda s: len(s) > 1)
        if v is None:
            return
        n, s = self.rng.choice(SIZES), v[1]
        ids = self.name()
        self.lines.append(f"{ids} = stablehlo.iota dim = 0 : tensor<{n}x1xi32>")
        updates = (n, *s[1:])
        u = self.like(updates)
        dims = (
            f"update_window_dims = {list(range(1, len(s)))}, inserted_window_dims = [0], "
            "scatter_dims_to_operand_dims = [0], index_vector_dim = 1"
        )
        body = (
            "({ ^bb0(%p0: tensor<f32>, %p1: tensor<f32>): %sum = stablehlo.add %p0, %p1 : tensor<f32>\n"
            "stablehlo.return %sum : tensor<f32> })"
        )
        self.emit(
            f'"stablehlo.scatter"({v[0]}, {ids}, {u}) {body} {{scatter_dimension_numbers = #stablehlo.scatter<{dims}>}}'
            f" : ({text(s)}, tensor<{n}x1xi32>, {text(updates)}) -> {text(s)}",
            s,
        )

    def reverse(self) -> None:
        v = self.pick(lambda s: len(s) > 0)
        if v is not None:
            d = self.rng.randrange(len(v[1]))
            self.emit(f"stablehlo.reverse {v[0]}, dims = [{d}] : {text(v[1])}", v[1])

    def custom_call(self) -> None:
        v = self.pick()
        target = self.rng.choice(["MoveToHost", "unknown", "mhlo.erf", "LayoutConstraint"])
        self.emit(f"stablehlo.custom_call @{target}({v[0]}) : ({text(v[1])}) -> {text(v[1])}", v[1])

    def convolution(self) -> None:
        v = self.pick(lambda s: len(s) == 3 and s[1] > 2)
        if v is None:
            return
        b, n, f = v[1]
        k, o = self.rng.randint(1, n), self.rng.choice(SIZES)
        w = self.like((k, f, o))
        out = (b, n - k + 1, o)
        dims = "dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [1]}"
        self.emit(
            f"stablehlo.convolution({v[0]}, {w}) {dims} {{batch_group_count = 1 : i64, "
            f"feature_group_count = 1 : i64}} : "
            f"({text(v[1])}, {text((k, f, o))}) -> {text(out)}",
            out,
        )

    def window(self) -> None:
        v = self.pick(lambda s: len(s) > 0)
        if v is None:
            return
        size = [2 if n % 2 == 0 and self.rng.random() < 0.5 else 1 for n in v[1]]
        out = [n // k for n, k in zip(v[1], size)]
        zero = self.like(())
        dims = ", ".join(map(str, size))
        body = (
            "({ ^bb0(%p0: tensor<f32>, %p1: tensor<f32>): %sum = stablehlo.maximum %p0, %p1 : tensor<f32>\n"
            "stablehlo.return %sum : tensor<f32> })"
        )
        self.emit(
            f'"stablehlo.reduce_window"({v[0]}, {zero}) {body} {{window_dimensions = array<i64: {dims}>, '
            f"window_strides = array<i64: {dims}>}} : ({text(v[1])}, tensor<f32>) -> {text(out)}",
            out,
        )

    def random_bits(self) -> None:
        state, shape, name = self.name(), self.shape(), self.name()
        self.lines.append(f"{state} = stablehlo.constant dense<1> : tensor<2xui64>")
        t = text(shape, "ui32")
        self.lines.append(
            f"{name}:2 = stablehlo.rng_bit_generator {state}, algorithm = THREE_FRY : (tensor<2xui64>) -> "
            f"(tensor<2xui64>, {t})"
        )
        self.emit(f"stablehlo.convert {name}#1 : ({t}) -> {text(shape)}", shape)

    # ---- structure

    def nested(self, steps: int, args: list[tuple[str, tuple[int, ...]]], isolated: bool = False):
        """Lines of a body that computes over `args` and the values in scope; gives its lines and its pool."""
        lines, pool = self.lines, self.pool
        self.lines, self.pool = [], (list(args) if isolated else pool[-6:] + list(args))
        self.depth += 1
        for _ in range(steps):
            self.step()
        self.depth -= 1
        inner, scope = self.lines, self.pool
        self.lines, self.pool = lines, pool
        return inner, scope

    def matching(self, scope, shape):
        return self.rng.choice([v for v in scope if v[1] == shape][-4:])[0]

    def loop(self) -> None:
        values = [self.pick() for _ in range(self.rng.randint(1, 2))]
        args = [(self.name(), v[1]) for v in values]
        steps = self.rng.randint(1, 5)
        inner, scope = self.nested(steps, args)
        results = [self.matching([*args, *scope], v[1]) for v in values]
        types = ", ".join(text(v[1]) for v in values)
        cond_args = ", ".join(f"{self.name()}: {text(v[1])}" for v in values)
        body_args = ", ".join(f"{n}: {text(s)}" for n, s in args)
        name = self.name()
        count = len(values)
        note = self.annotate(values[0][1], 0.1) if count == 1 else ""
        self.lines.append(
            f'{name}:{count} = "stablehlo.while"({", ".join(v[0] for v in values)}) ({{ ^bb0({cond_args}):\n'
            f"%true{name[1:]} = stablehlo.constant dense<true> : tensor<i1>\n"
            f"stablehlo.return %true{name[1:]} : tensor<i1> }}, {{ ^bb0({body_args}):\n"
            + "\n".join(inner)
            + f"\nstablehlo.return {', '.join(results)} : {types} }}){note} : ({types}) -> ({types})"
        )
        self.pool += [(f"{name}#{i}", v[1]) for i, v in enumerate(values)]

    def case(self) -> None:
        v = self.pick()
        branches = []
        for _ in range(2):
            inner, scope = self.nested(self.rng.randint(0, 3), [])
            result = self.matching([v, *scope], v[1])
            branches.append("{\n" + "\n".join(inner) + f"\nstablehlo.return {result} : {text(v[1])} }}")
        self.emit(f'"stablehlo.case"({self.index}) ({", ".join(branches)}) : (tensor<i32>) -> {text(v[1])}', v[1])

    def barrier(self) -> None:
        a, b = self.pick(), self.pick()
        name = self.name()
        types = f"{text(a[1])}, {text(b[1])}"
        self.lines.append(f"{name}:2 = stablehlo.optimization_barrier {a[0]}, {b[0]} : {types}")
        self.pool += [(f"{name}#0", a[1]), (f"{name}#1", b[1])]

    def constraint(self) -> None:
        v = self.pick(lambda s: len(s) > 0)
        if v is not None:
            closed = self.rng.choice([True, True, None])
            self.emit(f"sdy.sharding_constraint {v[0]} {self.sharding(v[1], closed)} : {text(v[1])}", v[1])

    def chain(self) -> None:
        v = self.pick(lambda s: len(s) > 0)
        if v is None:
            return
        first = self.emit(f"sdy.sharding_constraint {v[0]} {self.sharding(v[1], True)} : {text(v[1])}", v[1])
        self.pool.pop()
        self.emit(f"sdy.sharding_constraint {first} {self.sharding(v[1], True)} : {text(v[1])}", v[1])

    def group(self) -> None:
        if self.depth:
            return
        v = self.pick(lambda s: len(s) > 0)
        if v is None:
            return
        others = [u for u in self.pool if u[1] == v[1] and u is not v]
        if others:
            for u in (v, self.rng.choice(others)):
                self.lines.append(f"sdy.sharding_group {u[0]} group_id={self.groups} : {text(u[1])}")
            self.groups += 1

    def stop(self) -> None:
        v = self.pick()
        kind = self.rng.choice(["NONE", "FORWARD", "BACKWARD"])
        self.emit(f"sdy.propagation_barrier {v[0]} allowed_direction={kind} : {text(v[1])}", v[1])

    def call(self) -> None:
        if self.callees and self.rng.random() < 0.5:
            name, shapes, out = self.rng.choice(self.callees)
        else:
            shapes = [self.pick()[1] for _ in range(self.rng.randint(1, 2))]
            name, out = self.function(shapes)
        operands = ", ".join(self.like(s) for s in shapes)
        types = ", ".join(text(s) for s in shapes)
        note = self.annotate(out, 0.15)
        self.emit(f"func.call @{name}({operands}){note} : ({types}) -> {text(out)}", out)

    def function(self, shapes) -> tuple[str, tuple[int, ...]]:
        name = f"f{len(self.functions)}_{self.count}"
        args = [(self.name(), s) for s in shapes]
        outer, self.index = self.index, "%index"
        inner, scope = self.nested(self.rng.randint(1, 4), args, isolated=True)
        self.index = outer
        result = scope[-1]
        note = lambda s: f" {{sdy.sharding = #sdy.sharding{self.sharding(s)}}}" if s and self.rng.random() < 0.1 else ""
        params = ", ".join(f"{n}: {text(s)}{note(s)}" for n, s in args)
        index = "%index = stablehlo.constant dense<0> : tensor<i32>\n"
        self.functions.append(
            f"func.func private @{name}({params}) -> {text(result[1])} {{\n{index}"
            + "\n".join(inner)
            + f"\nreturn {result[0]} : {text(result[1])} }}"
        )
        self.callees.append((name, list(shapes), result[1]))
        return name, result[1]

    def manual_computation(self) -> None:
        sized = [(n, k) for n, k in self.axes if k > 1 and n not in self.manual]
        if not sized or self.manual:
            return
        name, size = self.rng.choice(sized)
        v = self.pick(lambda s: len(s) > 0 and s[0] % size == 0)
        if v is None:
            return
        local = (v[1][0] // size, *v[1][1:])
        outer_callees, self.callees = self.callees, []
        self.manual = (name,)
        split = self.rng.random() < 0.7
        dims = [f'{{"{name}"}}' if split else "{}"] + [self.rng.choice(["{}", "{?}"]) for _ in v[1][1:]]
        sharding = f"<@mesh, [{', '.join(dims)}]>"
        arg = (self.name(), local if split else v[1])
        outer, self.index = self.index, self.name()
        inner, scope = self.nested(self.rng.randint(1, 4), [arg], isolated=True)
        inner.insert(0, f"{self.index} = stablehlo.constant dense<0> : tensor<i32>")
        self.index = outer
        self.manual = ()
        self.callees = outer_callees
        result = self.matching([arg, *scope], arg[1])
        self.emit(
            f"sdy.manual_computation({v[0]}) in_shardings=[{sharding}] out_shardings=[{sharding}] "
            f'manual_axes={{"{name}"}} ({arg[0]}: {text(arg[1])}) {{\n'
            + "\n".join(inner)
            + f"\nsdy.return {result} : {text(arg[1])} }} : ({text(v[1])}) -> {text(v[1])}",
            v[1],
        )

    def module(self, steps: int) -> str:
        rng = self.rng
        args = [(self.name(), self.shape()) for _ in range(rng.randint(1, 4))]
        self.pool = list(args)
        params = []
        for n, s in args:
            note = f" {{sdy.sharding = #sdy.sharding{self.sharding(s)}}}" if rng.random() < 0.6 else ""
            params.append(f"{n}: {text(s)}{note}")
        params.append("%index: tensor<i32>")
        for _ in range(steps):
            self.step()
        returned = [self.pool[-1]] + [rng.choice(self.pool) for _ in range(rng.randint(0, 2))]
        outs = []
        for _, s in returned:
            note = f" {{sdy.sharding = #sdy.sharding{self.sharding(s)}}}" if rng.random() < 0.2 and s else ""
            outs.append(text(s) + note)
        axes = ", ".join(f'"{n}"={k}' for n, k in self.axes)
        types = ", ".join(text(s) for _, s in returned)
        main = (
            f"func.func public @main({', '.join(params)}) -> ({', '.join(outs)}) {{\n"
            + "\n".join(self.lines)
            + f"\nreturn {', '.join(n for n, _ in returned)} : {types} }}"
        )
        return f"sdy.mesh @mesh = <[{axes}]>\n{main}\n" + "\n".join(self.functions) + "\n"


def module(seed: int, steps: int | None = None, features: bool = True) -> str:
    """The module of a seed; without `features` a single function of plain operations and plain axes."""
    generator = Generator(seed, features)
    return generator.module(steps if steps is not None else generator.rng.choice([3, 6, 10, 16]))
