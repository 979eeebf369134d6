"""Why a program communicates otherwise than another: the annotations, mesh axes and operations in which they differ,
swapped one at a time.

Where the programs differ in an annotation or in the size of a mesh axis, one of them is propagated and partitioned
again with what the other says, and nothing else changed: a collective that is then nearer to that of the other program
has its cause there. What comes from an operation that only one program has is put down to that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from collectives.plan import PlanEntry
from meshrt.inspect.changes import CollectiveChange, Comparison
from meshrt.inspect.lint.changes import spec_text
from meshrt.inspect.lint.subject import Subject, Trial
from meshrt.pipeline.names import type_text
from propagation.annotation_sites import Edit, Said, one_after_other, saying_of
from propagation.model import DimSharding, Mesh, TensorSharding
from propagation.program import Op, Program, source
from propagation.shardings import Shardings, map_shardings

__all__ = ["Difference", "differences", "with_causes"]

# Differences that are swapped at most. Chosen: each takes as long as partitioning the program; a pull request has few.
MOST = 40
# Operations before one that communicates among which its cause is looked for. Chosen: a layout comes from nearby.
FAR = 16

Figure = tuple[int, float]  # how many run, bytes
Key = tuple[str, str, str]  # kind, axes, cause


@dataclass(frozen=True, slots=True)
class Difference:
    """Something in which two programs differ, in words; `edit` makes it in the later program (`in_after`) as it was, or
    in the earlier one as it is now."""

    text: str
    edit: Edit
    in_after: bool = True


def with_causes(comparison: Comparison, before: Subject, after: Subject) -> Comparison:
    """A comparison of two programs, each changed collective with what it is because of."""
    if not comparison.collectives:
        return comparison
    old, new = _figures(before.base), _figures(after.base)
    causes: dict[Key, list[str]] = {}
    for difference in differences(before, after)[:MOST]:
        subject = after if difference.in_after else before
        trial = subject.tried(difference.text, difference.edit)
        if trial is None:
            continue
        now = _figures(trial)
        here, there = (new, old) if difference.in_after else (old, new)
        for key in old.keys() | new.keys():
            if _distance(now.get(key), there.get(key)) < _distance(here.get(key), there.get(key)):
                causes.setdefault(key, []).append(difference.text)
    operations = _Operations(before, after)
    explained = [_explained(change, causes, operations) for change in comparison.collectives]
    return replace(comparison, collectives=tuple(explained))


def _explained(
    change: CollectiveChange, causes: Mapping[Key, Sequence[str]], operations: _Operations
) -> CollectiveChange:
    found = operations.at(change) or causes.get((change.kind, change.axes, change.cause), ())
    return replace(change, because=tuple(found))


def _figures(trial: Trial) -> dict[Key, Figure]:
    found: dict[Key, Figure] = {}
    for entry in trial.partitioned.plan:
        key = _key(entry)
        count, sent = found.get(key, (0, 0.0))
        times = entry.times or 1
        found[key] = count + times, sent + entry.bytes * times
    return found


def _key(entry: PlanEntry) -> Key:
    return entry.kind, entry.axes, entry.cause


def _distance(a: Figure | None, b: Figure | None) -> tuple[float, float]:
    (runs, sent), (other_runs, other_sent) = a or (0, 0.0), b or (0, 0.0)
    return abs(sent - other_sent), abs(runs - other_runs)


def differences(before: Subject, after: Subject) -> list[Difference]:
    """In which annotations and mesh axes two programs differ: the mesh first, then arguments and results by name, then
    constraints in their order. What one line says of several values (a constraint of a value and of its gradient) is
    one difference."""
    found: dict[tuple[str, bool], list[Edit]] = {}
    for each in (*_of_meshes(before, after), *_of_edges(before, after), *_of_constraints(before, after)):
        found.setdefault((each.text, each.in_after), []).append(each.edit)
    return [Difference(text, one_after_other(*edits), in_after) for (text, in_after), edits in found.items()]


def _of_meshes(before: Subject, after: Subject) -> Iterator[Difference]:
    old, new = dict(before.own_mesh.axes), dict(after.own_mesh.axes)
    for name in [*new, *(n for n in old if n not in new)]:
        if old.get(name) == new.get(name):
            continue
        had = f"was {old[name]}" if name in old else "is new"
        text = f"mesh axis {name!r} is {new[name]}, {had}" if name in new else f"mesh axis {name!r} is gone"
        axes = [(n, old.get(n, 1) if n == name else s) for n, s in new.items()]
        yield Difference(text, _over([*axes, *([(name, old[name])] if name not in new else [])]))


def _over(axes: Sequence[tuple[str, int]]) -> Edit:
    """What lays a program's shardings over a mesh with other sizes of the axes of these names; parts of axes are whole
    axes then."""

    def edit(program: Program, shardings: Shardings) -> None:
        made = {m: Mesh(m.name, axes) for m in program.meshes.values() if m.axes}
        program.meshes.update((m.name, new) for m, new in made.items())

        def moved(sharding: TensorSharding) -> TensorSharding:
            mesh = made.get(sharding.mesh)
            return sharding if mesh is None else _on(sharding, mesh)

        map_shardings(program, shardings, moved)

    return edit


def _on(sharding: TensorSharding, mesh: Mesh) -> TensorSharding:
    """A sharding over the axes of another mesh that have the same names."""
    known = dict(mesh.axes)
    kept = lambda axes: [mesh.axis(n) for n in dict.fromkeys(a.name for a in axes) if n in known]
    dims = [DimSharding(kept(d.axes), d.is_open, d.priority) for d in sharding.dims]
    return TensorSharding(mesh, dims, kept(sharding.replicated), kept(sharding.unreduced), sharding.reduction)


def _of_edges(before: Subject, after: Subject) -> Iterator[Difference]:
    for kind in ("argument", "result"):
        old, new = _by_name(before, kind), _by_name(after, kind)
        names = list(after.arg_names if kind == "argument" else after.result_names)
        there = set(before.arg_names if kind == "argument" else before.result_names)
        for number, name in enumerate(names):
            was, now = old.get(name), new.get(name)
            if name not in there or _spec(was) == _spec(now):
                continue
            if was is not None and now is not None and len(was.sharding.dims) != len(now.sharding.dims):
                continue
            text = f"{name} is {_annotated(now)}, was {_annotated(was)}"
            wanted = None if was is None else _on(was.sharding, after.own_mesh)
            yield Difference(text, saying_of(kind, number, wanted))


def _by_name(subject: Subject, kind: str) -> dict[str, Said]:
    names = subject.arg_names if kind == "argument" else subject.result_names
    return {names[s.number]: s for s in subject.said if s.kind == kind}


def _spec(said: Said | None) -> str | None:
    return None if said is None else spec_text(said.sharding) + "?" * sum(d.is_open for d in said.sharding.dims)


def _annotated(said: Said | None) -> str:
    return "not annotated" if said is None else f"annotated {spec_text(said.sharding)}"


def _of_constraints(before: Subject, after: Subject) -> Iterator[Difference]:
    inside = lambda subject: [s for s in subject.said if s.kind in ("constraint", "value")]
    shape = lambda subject, said: subject.original.values[said.number].type.text
    old, new = inside(before), inside(after)
    first, second = ([(shape(s, said), _spec(said)) for said in each] for s, each in ((before, old), (after, new)))
    for tag, i, j, k, n in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        for was, now in zip(old[i:j], new[k:n]):
            if shape(before, was) == shape(after, now):
                text = f"{_placed(after, now)}, was {spec_text(was.sharding)}"
                yield Difference(text, now.saying(_on(was.sharding, after.own_mesh)))
        paired = min(j - i, n - k)
        for now in new[k + paired : n]:
            yield Difference(f"{_placed(after, now)} is new", now.saying(None))
        for was in old[i + paired : j]:
            yield Difference(f"{_placed(before, was)} is gone", was.saying(None), in_after=False)


def _placed(subject: Subject, said: Said) -> str:
    where = subject.place(said.where)
    return f"the constraint {spec_text(said.sharding)}" + (f" ({where})" if where else "")


class _Operations:
    """The operations that only one of two programs has, by name and types."""

    def __init__(self, before: Subject, after: Subject):
        self._before, self._after = before, after
        old, new = (_kinds(s.original) for s in (before, after))
        self._gone, self._new = old - new, new - old

    def at(self, change: CollectiveChange) -> list[str]:
        """What is new, gone or of another size among the operations that a changed collective comes from, or those that
        gave it its operands."""
        grows = change.bytes[1] >= change.bytes[0]
        # The line that a change names is the later program's, unless only the earlier one has the collective.
        ways = [grows, not grows] if all(change.count) else [grows]
        return next((told for is_new in ways if (told := self._behind(change, is_new))), [])

    def _behind(self, change: CollectiveChange, is_new: bool) -> list[str]:
        """What is new in the later program, or gone with the earlier one, behind a changed collective."""
        here, there = (self._after, self._before) if is_new else (self._before, self._after)
        only, others = (self._new, self._gone) if is_new else (self._gone, self._new)
        found: dict[str, None] = {}
        for sent in here.base.partitioned.sent():
            op = sent.collective.op
            if isinstance(op, Op) and sent.collective.kind == change.kind and here.place(source(op)) == change.where:
                cause = next((o for o in _behind(op) if only[_kind(o)]), None)
                if cause is not None:
                    found[self._told(here, there, others, cause, is_new)] = None
        return list(found)

    def _told(self, here: Subject, there: Subject, others: Counter[tuple[str, ...]], op: Op, is_new: bool) -> str:
        where = here.place(source(op))
        text = op.name.rpartition(".")[2] + (f" ({where})" if where else "")
        other = self._alike(there, others, op)
        if other is None:
            return f"{text} is {'new' if is_new else 'gone'}"
        now, was = (op, other) if is_new else (other, op)
        return f"{text} takes {_operands(now)}, took {_operands(was)}"

    @staticmethod
    def _alike(subject: Subject, only: Counter[tuple[str, ...]], op: Op) -> Op | None:
        """The operation of a program that another has in a different size: of that name, on a line of that number."""
        line = (source(op) or "").rpartition(":")[2]
        alike = (o for o in subject.original.ops() if o.name == op.name and only[_kind(o)])
        return next((o for o in alike if (source(o) or "").rpartition(":")[2] == line), None)


def _behind(op: Op) -> Iterator[Op]:
    """An operation and those that its operands come from, the nearest first."""
    seen, waiting = {op}, [op]
    yield op
    while waiting and len(seen) < FAR:
        before = [v.op for each in waiting for v in each.operands if v.op is not None]
        waiting = [o for o in dict.fromkeys(before) if o not in seen]
        seen.update(waiting)
        yield from waiting


def _operands(op: Op) -> str:
    return ", ".join(type_text(v) for v in op.operands)


def _kinds(program: Program) -> Counter[tuple[str, ...]]:
    return Counter(map(_kind, program.ops()))


def _kind(op: Op) -> tuple[str, ...]:
    return op.name, *(v.type.text for v in (*op.operands, *op.results))
