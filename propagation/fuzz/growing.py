"""A random module while it grows, and the texts of which steps build it.

A *step* is a function that grows the module by one operation and what that needs; the steps are those of `elementary`,
`numerics`, `structure` and `others`. Annotations use every feature of the `sdy` dialect: sub-axes, open and closed
dimensions, priorities, replicated and unreduced axes, several meshes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import overload

__all__ = ["SIZES", "Callee", "Generator", "Scope", "Shape", "Step", "array", "reducer", "tensor"]

Shape = tuple[int, ...]
Scope = list[tuple[str, Shape]]  # f32 values by name
Step = Callable[["Generator"], None]

MESHES = [
    [("a", 2), ("b", 4)],
    [("a", 4), ("b", 2), ("c", 2)],
    [("x", 8), ("y", 3)],
    [("a", 2), ("b", 1), ("c", 6)],
    [("data", 16)],
    [("a", 12), ("b", 2)],
    [("d", 2), ("e", 2), ("f", 2), ("g", 2)],
]
SIZES = [1, 2, 3, 4, 6, 8, 12, 16, 24]


def tensor(shape: Iterable[int], dtype: str = "f32") -> str:
    """The text of a tensor type."""
    return f"tensor<{''.join(f'{n}x' for n in shape)}{dtype}>"


def array(values: Iterable[int]) -> str:
    """Integers as a dense i64 array attribute."""
    values = list(values)
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


def reducer(name: str = "add", dtype: str = "f32", count: int = 1) -> str:
    """A region that combines `count` pairs of scalars."""
    scalar = tensor((), dtype)
    args = ", ".join(f"%p{i}: {scalar}" for i in range(2 * count))
    lines = [f"%c{i} = stablehlo.{name} %p{i}, %p{count + i} : {scalar}" for i in range(count)]
    names, types = ", ".join(f"%c{i}" for i in range(count)), ", ".join([scalar] * count)
    return f"{{ ^bb0({args}):\n" + "\n".join(lines) + f"\nstablehlo.return {names} : {types} }}"


@dataclass(frozen=True, slots=True)
class Callee:
    """A function that can be called: the shapes of its arguments and results, and the axes that it does not use
    because they were manual where it was made."""

    name: str
    args: tuple[Shape, ...]
    results: tuple[Shape, ...]
    manual: tuple[str, ...]


class Generator:
    """Grows one module. `pool` are the f32 values in scope as (name, shape), `lines` the body under construction,
    `used` the features that have appeared. Steps are drawn from `plain`, and with `features` also from `structured`:
    those with structure, effects or `sdy` semantics."""

    def __init__(self, seed: int, plain: list[Step], structured: list[Step], features: bool = True):
        self.plain, self.structured = plain, structured
        self.rng = random.Random(seed)
        self.features = features
        self.axes = self.rng.choice(MESHES)
        self.used: set[str] = set()
        self.lines: list[str] = []
        self.pool: Scope = []
        self.functions: list[str] = []
        self.callees: list[Callee] = []
        self.called: set[str] = set()
        self.manual: tuple[str, ...] = ()
        self.index = "%index"
        self.depth = 0
        self.groups = 0
        self._count = 0
        self._meshes = {"mesh": self._mesh_text()}
        if any(size == 1 for _, size in self.axes):
            self.used.add("size-one axis")
        if features:
            self._more_meshes()

    # ---- meshes

    def _mesh_text(self, ids: str = "") -> str:
        return "<[" + ", ".join(f'"{n}"={k}' for n, k in self.axes) + f"]{ids}>"

    def _more_meshes(self) -> None:
        rng = self.rng
        if rng.random() < 0.1:
            self._meshes["twin"] = self._meshes["mesh"]
        if rng.random() < 0.08:
            order = list(range(_product(k for _, k in self.axes)))
            rng.shuffle(order)
            if order != sorted(order):
                name = rng.choice(["mesh", "other"])
                self._meshes[name] = self._mesh_text(f", device_ids=[{', '.join(map(str, order))}]")
                self.used.add("device ids")
        if rng.random() < 0.12:
            self._meshes["one_device"] = "<[], device_ids=[1]>"
        if rng.random() < 0.08:
            self._meshes["line"] = f'<["all"={_product(k for _, k in self.axes)}]>'

    def mesh(self) -> str:
        """The mesh of the next sharding, as it is written there."""
        rng = self.rng
        names = [n for n in self._meshes if n not in ("one_device", "line")]
        if len(names) > 1 and rng.random() < 0.3:
            name = rng.choice(names[1:])
            self.used.add("several meshes")
            return f"@{name}"
        if self.features and rng.random() < 0.02:
            self.used.add("inlined mesh")
            return f"mesh{self._meshes['mesh']}"
        return "@mesh"

    # ---- pieces

    def name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def symbol(self, base: str) -> str:
        self._count += 1
        return f"{base}_{self._count}"

    def shape(self) -> Shape:
        return tuple(self.rng.choice(SIZES) for _ in range(self.rng.choice([1, 2, 2, 3, 3, 4])))

    def emit(self, line: str, shape: Sequence[int], name: str | None = None) -> str:
        """Adds `name = line`, an f32 value of `shape`."""
        name = name or self.name()
        self.lines.append(f"{name} = {line}")
        self.pool.append((name, tuple(shape)))
        return name

    def op(
        self,
        name: str,
        operands: Sequence[str],
        types: Sequence[str],
        results: Sequence[str],
        attrs: str = "",
        regions: str = "",
    ) -> list[str]:
        """Adds an operation in generic syntax; the names of its results. Nothing joins the pool."""
        result, count = self.name(), len(results)
        left = f"{result}:{count}" if count > 1 else result
        attr_text = f" {{{attrs}}}" if attrs else ""
        region_text = f" ({regions})" if regions else ""
        self.lines.append(
            f'{left} = "{name}"({", ".join(operands)}){region_text}{attr_text} : '
            f"({', '.join(types)}) -> ({', '.join(results)})"
        )
        return [f"{result}#{i}" for i in range(count)] if count > 1 else [result]

    def keep(self, name: str, shape: Sequence[int]) -> None:
        """An f32 value that was added by `op` joins the pool."""
        self.pool.append((name, tuple(shape)))

    def convert(self, name: str, shape: Sequence[int], source: str, target: str = "f32") -> str:
        """`name` with another element type; f32 values join the pool."""
        (out,) = self.op("stablehlo.convert", [name], [tensor(shape, source)], [tensor(shape, target)])
        if target == "f32":
            self.keep(out, shape)
        return out

    @overload
    def pick(self) -> tuple[str, Shape]: ...

    @overload
    def pick(self, condition: Callable[[Shape], bool]) -> tuple[str, Shape] | None: ...

    def pick(self, condition: Callable[[Shape], bool] | None = None) -> tuple[str, Shape] | None:
        """A recent value, of those whose shape meets `condition`; there is always one that meets none."""
        options = [v for v in self.pool if condition is None or condition(v[1])]
        return self.rng.choice(options[-12:]) if options else None

    def like(self, shape: Sequence[int]) -> str:
        """A value of `shape`: one from the pool, a constant, an iota, or a broadcast scalar."""
        same = [v for v in self.pool if v[1] == tuple(shape)]
        if same and self.rng.random() < 0.75:
            return self.rng.choice(same)[0]
        kind = self.rng.random()
        if kind < 0.4 or not shape:
            return self.emit(f"stablehlo.constant dense<{self.rng.randrange(3)}.5> : {tensor(shape)}", shape)
        if kind < 0.6:
            return self.emit(f"stablehlo.iota dim = {self.rng.randrange(len(shape))} : {tensor(shape)}", shape)
        scalar = self.emit(f"stablehlo.constant dense<{self.rng.randrange(3)}.0> : tensor<f32>", ())
        return self.emit(f"stablehlo.broadcast_in_dim {scalar}, dims = [] : (tensor<f32>) -> {tensor(shape)}", shape)

    def matching(self, scope: Scope, shape: Shape) -> str:
        """One of the newest values of `shape` in `scope`."""
        return self.rng.choice([v for v in scope if v[1] == shape][-4:])[0]

    # ---- annotations

    def parts(self) -> list[tuple[str, int]]:
        """The free mesh axes cut into disjoint references, in random order, with their sizes."""
        out = []
        for name, size in self.axes:
            if name in self.manual:
                continue
            splits = [k for k in range(2, size) if size % k == 0]
            if self.features and splits and self.rng.random() < 0.35:
                k = self.rng.choice(splits)
                out += [(f'"{name}":(1){k}', k), (f'"{name}":({k}){size // k}', size // k)]
                self.used.add("sub-axis")
            else:
                out.append((f'"{name}"', size))
        self.rng.shuffle(out)
        return out

    def sharding(
        self, shape: Sequence[int], closed: bool | None = None, extras: bool = True, priority: bool = True
    ) -> str:
        """`<@mesh, [...]>` for a value of `shape`. `closed` forces all dimensions; `extras` allows replicated and
        unreduced axes."""
        rng, parts = self.rng, self.parts()
        if "line" in self._meshes and shape and not self.manual and rng.random() < 0.15:
            self.used.add("mesh of other axes")
            at = rng.randrange(len(shape))
            end = "" if closed or (closed is None and rng.random() < 0.5) else "?"
            texts = ["{" + ", ".join(['"all"'] * (d == at) + [end] * bool(end)) + "}" for d in range(len(shape))]
            return f"<@line, [{', '.join(texts)}]>"
        dims: list[list[str]] = [[] for _ in shape]
        for part, size in list(parts):
            if shape and rng.random() < 0.55:
                d = rng.randrange(len(shape))
                if dims[d] and _adjacent(dims[d][-1], part):
                    continue
                dims[d].append(part)
                parts.remove((part, size))
        texts = []
        for axes in dims:
            is_open = rng.random() < 0.6 if closed is None else not closed
            entry = "{" + ", ".join(axes + (["?"] if is_open else [])) + "}"
            self.used.add("open dimension" if is_open else "closed dimension")
            if self.features and priority and rng.random() < 0.12 and (axes or is_open):
                entry += f"p{rng.randrange(3)}"
                self.used.add("priority")
            texts.append(entry)
        out = f"<{self.mesh()}, [{', '.join(texts)}]"
        if self.features and extras and parts and rng.random() < 0.15:
            kind = rng.choice(["replicated", "replicated", "unreduced"])
            out += f", {kind}={{{parts[0][0]}}}"
            self.used.add(f"{kind} axis")
            if kind == "replicated" and len(parts) > 1 and rng.random() < 0.3:
                out += f", unreduced={{{parts[1][0]}}}"
                self.used.add("unreduced axis")
        return out + ">"

    def annotate(self, shape: Sequence[int], chance: float) -> str:
        """With probability `chance`, the attribute of a pretty-printed operation of one result."""
        if self.rng.random() >= chance or not shape:
            return ""
        if "one_device" in self._meshes and self.rng.random() < 0.5:
            self.used.add("maximal mesh")
            return " {sdy.sharding = #sdy.sharding_per_value<[<@one_device, []>]>}"
        return f" {{sdy.sharding = #sdy.sharding_per_value<[{self.sharding(shape)}]>}}"

    def annotate_all(self, shapes: Sequence[Sequence[int]], chance: float) -> str:
        """The same for an operation of several results; scalars stay open."""
        if len(shapes) == 1:
            return self.annotate(shapes[0], chance)
        if self.rng.random() >= chance:
            return ""
        texts = [self.sharding(s) if s else "<@mesh, []>" for s in shapes]
        return f" {{sdy.sharding = #sdy.sharding_per_value<[{', '.join(texts)}]>}}"

    def argument(self, name: str, shape: Sequence[int], chance: float) -> str:
        """A function argument or, without a name, result: type and perhaps annotation."""
        note = ""
        if shape and self.rng.random() < chance:
            if name and "one_device" in self._meshes and self.rng.random() < 0.15:
                self.used.add("maximal mesh")
                return f"{name}: {tensor(shape)} {{sdy.sharding = #sdy.sharding<@one_device, []>}}"
            note = f" {{sdy.sharding = #sdy.sharding{self.sharding(shape)}}}"
        return f"{name}: {tensor(shape)}{note}" if name else tensor(shape) + note

    # ---- bodies

    def grow(self) -> None:
        """Adds one random step."""
        self.rng.choice(self.plain + self.structured if self.features and self.depth < 2 else self.plain)(self)

    def nested(self, count: int, args: Scope, isolated: bool = False) -> tuple[list[str], Scope]:
        """The lines and the scope of a body of `count` steps over `args` and, unless `isolated`, recent values."""
        lines, pool = self.lines, self.pool
        self.lines, self.pool = [], (list(args) if isolated else pool[-6:] + list(args))
        self.depth += 1
        for _ in range(count):
            self.grow()
        self.depth -= 1
        inner, scope = self.lines, self.pool
        self.lines, self.pool = lines, pool
        return inner, scope

    def module(self, count: int) -> str:
        """The text of a module of `count` steps."""
        rng = self.rng
        args = [(self.name(), self.shape()) for _ in range(rng.randint(1, 4))]
        self.pool = list(args)
        params = [self.argument(n, s, 0.6) for n, s in args] + ["%index: tensor<i32>"]
        for _ in range(count):
            self.grow()
        returned = [self.pool[-1]] + [rng.choice(self.pool) for _ in range(rng.randint(0, 2))]
        outs = [self.argument("", s, 0.2) for _, s in returned]
        types = ", ".join(tensor(s) for _, s in returned)
        main = (
            f"func.func public @main({', '.join(params)}) -> ({', '.join(outs)}) {{\n"
            + "\n".join(self.lines)
            + f"\nreturn {', '.join(n for n, _ in returned)} : {types} }}"
        )
        meshes = "\n".join(f"sdy.mesh @{name} = {text}" for name, text in self._meshes.items())
        return f"{meshes}\n{main}\n" + "\n".join(self.functions) + "\n"


def _product(values: Iterable[int]) -> int:
    out = 1
    for v in values:
        out *= v
    return out


def _adjacent(first: str, second: str) -> bool:
    """Whether two references would have to be written as one."""
    if ":" not in first or ":" not in second or first.split(":")[0] != second.split(":")[0]:
        return False
    pre, size = first.split(":(")[1].split(")")
    return int(pre) * int(size) == int(second.split(":(")[1].split(")")[0])
