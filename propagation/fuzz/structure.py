"""Steps with regions, functions or `sdy` semantics: loops, branches, calls, manual computations, constraints."""

from __future__ import annotations

from collections.abc import Sequence

from .growing import Callee, Generator, Scope, Shape, Step, tensor

__all__ = ["STEPS"]


def loop(g: Generator) -> None:
    values = [g.pick() for _ in range(g.rng.randint(1, 2))]
    args = [(g.name(), v[1]) for v in values]
    inner, scope = g.nested(g.rng.randint(1, 5), args)
    results = [g.matching([*args, *scope], v[1]) for v in values]
    types = ", ".join(tensor(v[1]) for v in values)
    cond_args = ", ".join(f"{g.name()}: {tensor(v[1])}" for v in values)
    body_args = ", ".join(f"{n}: {tensor(s)}" for n, s in args)
    name, count = g.name(), len(values)
    note = g.annotate_all([v[1] for v in values], 0.1)
    g.lines.append(
        f'{name}:{count} = "stablehlo.while"({", ".join(v[0] for v in values)}) ({{ ^bb0({cond_args}):\n'
        f"%true{name[1:]} = stablehlo.constant dense<true> : tensor<i1>\n"
        f"stablehlo.return %true{name[1:]} : tensor<i1> }}, {{ ^bb0({body_args}):\n"
        + "\n".join(inner)
        + f"\nstablehlo.return {', '.join(results)} : {types} }}){note} : ({types}) -> ({types})"
    )
    g.pool += [(f"{name}#{i}", v[1]) for i, v in enumerate(values)]
    g.used.add("while")


def case(g: Generator) -> None:
    values = [g.pick() for _ in range(g.rng.choice([1, 1, 2]))]
    types, branches = [tensor(v[1]) for v in values], []
    for _ in range(2):
        inner, scope = g.nested(g.rng.randint(0, 3), [])
        results = [g.matching([v, *scope], v[1]) for v in values]
        branches.append("{\n" + "\n".join(inner) + f"\nstablehlo.return {', '.join(results)} : {', '.join(types)} }}")
    for name, v in zip(g.op("stablehlo.case", [g.index], ["tensor<i32>"], types, "", ", ".join(branches)), values):
        g.keep(name, v[1])
    g.used.add("case")


def barrier(g: Generator) -> None:
    a, b = g.pick(), g.pick()
    name = g.name()
    types = f"{tensor(a[1])}, {tensor(b[1])}"
    g.lines.append(f"{name}:2 = stablehlo.optimization_barrier {a[0]}, {b[0]} : {types}")
    g.pool += [(f"{name}#0", a[1]), (f"{name}#1", b[1])]
    g.used.add("optimization_barrier")


def constraint(g: Generator) -> None:
    v = g.pick(lambda s: len(s) > 0)
    if v is not None:
        closed = g.rng.choice([True, True, None])
        g.emit(f"sdy.sharding_constraint {v[0]} {g.sharding(v[1], closed)} : {tensor(v[1])}", v[1])
        g.used.add("constraint")


def chain(g: Generator) -> None:
    """A constraint on a constraint: a sequence of reshards."""
    v = g.pick(lambda s: len(s) > 0)
    if v is None:
        return
    first = g.emit(f"sdy.sharding_constraint {v[0]} {g.sharding(v[1], True)} : {tensor(v[1])}", v[1])
    g.pool.pop()
    g.emit(f"sdy.sharding_constraint {first} {g.sharding(v[1], True)} : {tensor(v[1])}", v[1])
    g.used.add("constraint chain")


def group(g: Generator) -> None:
    v = g.pick(lambda s: len(s) > 0)
    if v is None:
        return
    others = [u for u in g.pool if u[1] == v[1] and u is not v]
    if others:
        for u in (v, g.rng.choice(others)):
            g.lines.append(f"sdy.sharding_group {u[0]} group_id={g.groups} : {tensor(u[1])}")
        g.groups += 1
        g.used.add("sharding group")


def stop(g: Generator) -> None:
    v = g.pick()
    kind = g.rng.choice(["NONE", "FORWARD", "BACKWARD"])
    g.emit(f"sdy.propagation_barrier {v[0]} allowed_direction={kind} : {tensor(v[1])}", v[1])
    g.used.add("propagation barrier")


def call(g: Generator) -> None:
    # Functions made where axes were manual use none of these, so that they can be called where fewer are.
    known = [c for c in g.callees if set(g.manual) <= set(c.manual)]
    if known and g.rng.random() < 0.5:
        callee = g.rng.choice(known)
    else:
        callee = _function(g, [g.pick()[1] for _ in range(g.rng.randint(1, 2))])
    operands = [g.like(s) for s in callee.args]
    note = g.annotate_all(callee.results, 0.15)
    name, count = g.name(), len(callee.results)
    ins, outs = (", ".join(tensor(s) for s in shapes) for shapes in (callee.args, callee.results))
    left = f"{name}:{count}" if count > 1 else name
    g.lines.append(f"{left} = func.call @{callee.name}({', '.join(operands)}){note} : ({ins}) -> ({outs})")
    for i, shape in enumerate(callee.results):
        g.keep(f"{name}#{i}" if count > 1 else name, shape)
    g.used |= {"call", "repeated call"} if callee.name in g.called else {"call"}
    if g.manual:
        g.used.add("call in manual computation")
    g.called.add(callee.name)


def _function(g: Generator, shapes: list[Shape]) -> Callee:
    name = g.symbol("f")
    args = [(g.name(), s) for s in shapes]
    outer, g.index = g.index, "%index"
    inner, scope = g.nested(g.rng.randint(1, 4), args, isolated=True)
    g.index = outer
    returned = [scope[-1]] + ([g.rng.choice(scope)] if g.rng.random() < 0.25 else [])
    params = ", ".join(g.argument(n, s, 0.1) for n, s in args)
    results = ", ".join(g.argument("", s, 0.05) for _, s in returned)
    g.functions.append(
        f"func.func private @{name}({params}) -> ({results}) {{\n"
        "%index = stablehlo.constant dense<0> : tensor<i32>\n" + "\n".join(inner) + "\nreturn "
        f"{', '.join(n for n, _ in returned)} : {', '.join(tensor(s) for _, s in returned)} }}"
    )
    callee = Callee(name, tuple(shapes), tuple(s for _, s in returned), g.manual)
    g.callees.append(callee)
    return callee


def _computation(g: Generator, args: Scope) -> tuple[list[str], list[str]]:
    """The lines and the results of a body that sees only `args`, of their types."""
    outer, g.index = g.index, g.name()
    inner, scope = g.nested(g.rng.randint(1, 4), args, isolated=True)
    inner.insert(0, f"{g.index} = stablehlo.constant dense<0> : tensor<i32>")
    g.index = outer
    return inner, [g.matching([*args, *scope], shape) for _, shape in args]


def named_computation(g: Generator) -> None:
    if g.rng.random() < 0.85:
        return  # rare, because the real pipelines refuse most of them (they add data-flow edges twice)
    values = [g.pick() for _ in range(g.rng.randint(1, 2))]
    args = [(g.name(), v[1]) for v in values]
    inner, results = _computation(g, args)
    note = ""
    if g.rng.random() < 0.3:
        ins = ", ".join(g.sharding(s) for _, s in values)
        note = f" in_shardings=[{ins}] out_shardings=[{g.sharding(values[0][1])}]"
    types, out = ", ".join(tensor(s) for _, s in values), tensor(values[0][1])
    g.emit(
        f'sdy.named_computation<"{g.symbol("part")}">({", ".join(n for n, _ in values)}){note} '
        f"({', '.join(f'{n}: {tensor(s)}' for n, s in args)}) {{\n" + "\n".join(inner) + f"\nsdy.return {results[0]} : "
        f"{out} }} : ({types}) -> {out}",
        values[0][1],
    )
    g.used.add("named_computation")


def manual_computation(g: Generator) -> None:
    sized = [(n, k) for n, k in g.axes if k > 1 and n not in g.manual]
    if not sized:
        return
    chosen = g.rng.sample(sized, min(len(sized), g.rng.choice([1, 1, 2])))
    split = [(n, k) for n, k in chosen if g.rng.random() < 0.7]
    factor = 1
    for _, k in split:
        factor *= k
    values: list[tuple[str, Shape, int, tuple[str, Shape]]] = []
    for _ in range(g.rng.choice([1, 1, 2])):
        v = g.pick(lambda s: any(n % factor == 0 for n in s))
        if v is None:
            return
        at = g.rng.choice([d for d, n in enumerate(v[1]) if n % factor == 0])
        local = tuple(n // factor if d == at else n for d, n in enumerate(v[1]))
        values.append((v[0], v[1], at, (g.name(), local)))
    if g.manual:
        g.used.add("nested manual computation")
    outer = g.manual
    g.manual = (*outer, *(n for n, _ in chosen))
    free = [f'"{n}"' for n, k in g.axes if k > 1 and n not in g.manual]
    args = [arg for *_, arg in values]
    inner, results = _computation(g, args)
    g.manual = outer
    manual = ", ".join(f'"{n}"' for n, _ in chosen)
    left, right = (
        ", ".join(_manual_sharding(g, shape, at, split, free) for _, shape, at, _ in values) for _ in range(2)
    )
    types, local_types = (", ".join(tensor(s) for s in shapes) for shapes in zip(*((v[1], v[3][1]) for v in values)))
    name, count = g.name(), len(values)
    g.lines.append(
        f"{name}:{count} = sdy.manual_computation({', '.join(v[0] for v in values)}) in_shardings=[{left}] "
        f"out_shardings=[{right}] manual_axes={{{manual}}} ({', '.join(f'{n}: {tensor(s)}' for n, s in args)}) {{\n"
        + "\n".join(inner)
        + f"\nsdy.return {', '.join(results)} : {local_types} }} : ({types}) -> ({types})"
    )
    for i, (_, shape, *_) in enumerate(values):
        g.keep(f"{name}#{i}", shape)
    g.used.add("manual_computation")


def _manual_sharding(g: Generator, shape: Shape, at: int, split: Sequence[tuple[str, int]], free: list[str]) -> str:
    """Manual axes lead dimension `at`; free axes may follow anywhere, and a dimension may have a priority."""
    dims: list[list[str]] = [[] for _ in shape]
    dims[at] = [f'"{n}"' for n, _ in split]
    if free and g.rng.random() < 0.3:
        g.rng.choice(dims).append(g.rng.choice(free))
    texts = []
    for axes in dims:
        end = ["?"] if g.rng.random() < 0.5 else []
        rank = f"p{g.rng.randrange(3)}" if (axes or end) and g.rng.random() < 0.05 else ""
        texts.append("{" + ", ".join(axes + end) + "}" + rank)
        if rank:
            g.used.add("priority")
    return f"<@mesh, [{', '.join(texts)}]>"


STEPS: list[Step] = [
    loop, case, barrier, constraint, constraint, chain, group, stop, call, call, named_computation, manual_computation,
    manual_computation,
]  # fmt: skip
