"""Steps with regions, functions or `sdy` semantics: loops, branches, calls, manual computations, constraints."""

from __future__ import annotations

from .generator import Generator, Shape, Step, tensor

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
    note = g.annotate(values[0][1], 0.1) if count == 1 else ""
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
    v = g.pick()
    branches = []
    for _ in range(2):
        inner, scope = g.nested(g.rng.randint(0, 3), [])
        result = g.matching([v, *scope], v[1])
        branches.append("{\n" + "\n".join(inner) + f"\nstablehlo.return {result} : {tensor(v[1])} }}")
    g.emit(f'"stablehlo.case"({g.index}) ({", ".join(branches)}) : (tensor<i32>) -> {tensor(v[1])}', v[1])
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
    if g.depth or v is None:
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
    if g.callees and g.rng.random() < 0.5:
        name, shapes, out = g.rng.choice(g.callees)
    else:
        shapes = [g.pick()[1] for _ in range(g.rng.randint(1, 2))]
        name, out = _function(g, shapes)
    operands = ", ".join(g.like(s) for s in shapes)
    types = ", ".join(tensor(s) for s in shapes)
    note = g.annotate(out, 0.15)
    g.emit(f"func.call @{name}({operands}){note} : ({types}) -> {tensor(out)}", out)
    g.used |= {"call", "repeated call"} if name in g.called else {"call"}
    g.called.add(name)


def _function(g: Generator, shapes: list[Shape]) -> tuple[str, Shape]:
    name = g.symbol("f")
    args = [(g.name(), s) for s in shapes]
    outer, g.index = g.index, "%index"
    inner, scope = g.nested(g.rng.randint(1, 4), args, isolated=True)
    g.index = outer
    value, shape = scope[-1]
    params = ", ".join(g.argument(n, s, 0.1) for n, s in args)
    g.functions.append(
        f"func.func private @{name}({params}) -> {tensor(shape)} {{\n"
        "%index = stablehlo.constant dense<0> : tensor<i32>\n" + "\n".join(inner) + f"\nreturn {value} : "
        f"{tensor(shape)} }}"
    )
    g.callees.append((name, list(shapes), shape))
    return name, shape


def _computation(g: Generator, args):
    """The lines and the result of a body that sees only `args`, of the type of the first."""
    callees, g.callees = g.callees, []
    outer, g.index = g.index, g.name()
    inner, scope = g.nested(g.rng.randint(1, 4), args, isolated=True)
    inner.insert(0, f"{g.index} = stablehlo.constant dense<0> : tensor<i32>")
    g.index, g.callees = outer, callees
    return inner, g.matching([*args, *scope], args[0][1])


def named_computation(g: Generator) -> None:
    if g.rng.random() < 0.85:
        return  # rare, because the real pipelines refuse most of them (they add data-flow edges twice)
    values = [g.pick() for _ in range(g.rng.randint(1, 2))]
    args = [(g.name(), v[1]) for v in values]
    inner, result = _computation(g, args)
    note = ""
    if g.rng.random() < 0.3:
        ins = ", ".join(g.sharding(s) for _, s in values)
        note = f" in_shardings=[{ins}] out_shardings=[{g.sharding(values[0][1])}]"
    types, out = ", ".join(tensor(s) for _, s in values), tensor(values[0][1])
    g.emit(
        f'sdy.named_computation<"{g.symbol("part")}">({", ".join(n for n, _ in values)}){note} '
        f"({', '.join(f'{n}: {tensor(s)}' for n, s in args)}) {{\n" + "\n".join(inner) + f"\nsdy.return {result} : "
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
    v = g.pick(lambda s: len(s) > 0 and s[0] % factor == 0)
    if v is None:
        return
    if g.manual:
        g.used.add("nested manual computation")
    local = (v[1][0] // factor, *v[1][1:])
    outer = g.manual
    g.manual = (*outer, *(n for n, _ in chosen))
    free = [f'"{n}"' for n, k in g.axes if k > 1 and n not in g.manual]
    arg = (g.name(), local)
    inner, result = _computation(g, [arg])
    g.manual = outer
    manual = ", ".join(f'"{n}"' for n, _ in chosen)
    left, right = (_manual_sharding(g, v[1], split, free) for _ in range(2))
    g.emit(
        f"sdy.manual_computation({v[0]}) in_shardings=[{left}] out_shardings=[{right}] "
        f"manual_axes={{{manual}}} ({arg[0]}: {tensor(local)}) {{\n"
        + "\n".join(inner)
        + f"\nsdy.return {result} : {tensor(local)} }} : ({tensor(v[1])}) -> {tensor(v[1])}",
        v[1],
    )
    g.used.add("manual_computation")


def _manual_sharding(g: Generator, shape: Shape, split, free: list[str]) -> str:
    """Manual axes lead the first dimension; free axes may follow anywhere."""
    first = [f'"{n}"' for n, _ in split]
    dims = [first] + [[] for _ in shape[1:]]
    if free and g.rng.random() < 0.3:
        g.rng.choice(dims).append(g.rng.choice(free))
    texts = ["{" + ", ".join(axes + (["?"] if g.rng.random() < 0.5 else [])) + "}" for axes in dims]
    return f"<@mesh, [{', '.join(texts)}]>"


STEPS: list[Step] = [
    loop, case, barrier, constraint, constraint, chain, group, stop, call, call, named_computation, manual_computation,
    manual_computation,
]  # fmt: skip
