"""Calls of programs that take references, as arguments or captured.

Such a program is discharged (`meshrt.transforms.discharge`): it becomes one that takes what they hold and gives what
they hold in the end. That is run like any other, through a driver of its own, with the memory of what is written
donated to what is given back, so that references are written in place, and with its sharding kept.

    f(ref, x)       pure(captured, args, kwargs) -> (results, what the written references hold)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from meshrt import errors, tree_util
from meshrt.core.jaxpr import ClosedJaxpr
from meshrt.core.references import is_ref_type
from meshrt.core.trace import eval_jaxpr
from meshrt.pipeline.lowered import Lowered
from meshrt.pipeline.options import JitOptions
from meshrt.pipeline.static_arguments import NO_STATIC
from meshrt.pipeline.traced import LoweringRequest, Traced, TraceRecord
from meshrt.runtime.reference import Ref, placed_types
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.typed import abstract
from meshrt.transforms.discharge import discharged
from meshrt.transforms.high import plain, taken_apart
from meshrt.transforms.references import check_distinct
from meshrt.transforms.tools import hoist_consts

if TYPE_CHECKING:
    from meshrt.pipeline.driver import Driver
    from meshrt.pipeline.entry import Entry

__all__ = ["StatefulEntry", "StatefulProgram", "StatefulTraced", "held", "types_of"]


def held(leaves: Sequence[Any]) -> list[Any]:
    """The leaves of a call with what references hold in their places."""
    return [x._held() if type(x) is Ref else _array(x) if getattr(x, "is_ref", False) is True else x for x in leaves]


def types_of(leaves: Sequence[Any], placed: bool) -> tuple[Any, ...]:
    """Those of arguments; of references with the split over Auto axes if they are to be `placed`."""
    return placed_types(leaves) if placed else tuple(abstract(x) for x in leaves)


def _array(struct: Any) -> Any:
    """Of a struct that stands for a reference, what the reference holds."""
    return struct.update(is_ref=False)


class StatefulProgram:
    """A trace over references as a driver of its pure form."""

    def __init__(self, record: TraceRecord, make: Callable[..., Driver], options: JitOptions, name: str):
        self.record, self.options, self.name = record, options, name
        self.in_tree = plain(record.in_tree)
        closed = record.closed
        self.is_ref = [is_ref_type(a) for a in closed.in_avals]
        self.captured: list[Ref] = [c for c in closed.consts if type(c) is Ref]
        consts = [c for c in closed.consts if type(c) is not Ref]
        whole = hoist_consts(ClosedJaxpr(closed.jaxpr, closed.consts)).jaxpr
        flags = tuple([is_ref_type(a) for a in whole.in_avals])
        made = discharged(whole, flags)
        count = len(closed.consts)
        from_refs = [type(c) is Ref for c in closed.consts]
        # Positions among the captured references, and among the arguments.
        order = [i for i, f in enumerate(from_refs) if f]
        self.written_captured = [order.index(i) for i in made.written if i < count]
        self.written = [i - count for i in made.written if i >= count]
        function, donated, own = self._function(made.closed, consts, from_refs), self._donated(), self._pure_options()
        self._make: Callable[[Any], Driver] = lambda outs: make(function, donated, own._replace(out_shardings=outs))
        self._drivers: dict[Any, Driver] = {}
        self._entries: dict[Any, Entry] = {}

    def _function(self, closed: ClosedJaxpr, consts: list[Any], from_refs: Sequence[bool]) -> Callable[..., Any]:
        out_tree = self.record.out_tree
        count = out_tree.num_leaves

        def pure(captured: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            refs, rest = iter(captured), iter(consts)
            front = [next(refs) if f else next(rest) for f in from_refs]
            leaves = tree_util.tree_leaves((args, kwargs))
            outs = eval_jaxpr(closed.jaxpr, (), [*closed.consts, *front, *leaves])
            return out_tree.unflatten(outs[:count]), tuple(outs[count:])

        pure.__name__ = pure.__qualname__ = self.name
        return pure

    def _donated(self) -> tuple[bool, ...]:
        captured = [i in self.written_captured for i in range(len(self.captured))]
        return (*captured, *[i in self.written for i in range(len(self.is_ref))])

    def _pure_options(self) -> JitOptions:
        own = self.options
        given = None if own.in_shardings is None else (None, own.in_shardings, None)
        return own._replace(
            in_shardings=given, out_shardings=None, static_argnums=(), static_argnames=(), donate_argnums=(),
            donate_argnames=(), max_traces=None, inline=False,
        )  # fmt: skip

    def _refs(self, leaves: Sequence[Any]) -> list[Ref]:
        """The references that are written, in the order of the results that replace what they hold."""
        return [*[self.captured[i] for i in self.written_captured], *[leaves[i] for i in self.written]]

    def values(self, leaves: Sequence[Any]) -> tuple[list[Any], Any]:
        """The flat arguments of the pure program, and their structure."""
        values = [*held(self.captured), *held(leaves)]
        args, kwargs = self.in_tree.unflatten(values[len(self.captured) :])
        return values, tree_util.tree_structure(((tuple(values[: len(self.captured)]), args, kwargs), {}))

    def forget_calls(self) -> None:
        """Drops what is ready to run."""
        self._entries.clear()

    def check(self, leaves: Sequence[Any]) -> None:
        """ArgumentValueError if a reference has two names in the program."""
        check_distinct("jit", self.record.fun_name, leaves, self.captured, self.record.arg_paths)

    def run(self, entry: StatefulEntry, leaves: Sequence[Any]) -> Any:
        """Runs the program and lets the references hold what it wrote."""
        self.check(leaves)
        values, tree = self.values(leaves)
        key = (entry.key, *[v._sig for v in values[: len(self.captured)]])
        found = self._entries.get(key)
        if found is None:
            found = self._entries[key] = self._pure(leaves).new_call((tree, key), values, tree, NO_STATIC)
        result, final = found.result(values)
        for ref, array in zip(self._refs(leaves), final):
            ref._hold(array)
        return result

    def _pure(self, leaves: Sequence[Any]) -> Driver:
        """The driver of the pure program that lets what is written back lie where it did. There is one for each way in
        which references lie: threads may call with several at once."""
        shardings = tuple([r.sharding if isinstance(r.sharding, NamedSharding) else None for r in self._refs(leaves)])
        asked = self.options.out_shardings is not None or any(s is not None for s in shardings)
        found = self._drivers.get(shardings)
        if found is None:
            wanted = (self.options.out_shardings, shardings) if asked else None
            found = self._drivers.setdefault(shardings, self._make(wanted))
        return found

    def traced(self, leaves: Sequence[Any]) -> StatefulTraced:
        """The first station of a call with these arguments."""
        self.check(leaves)
        values, tree = self.values(leaves)
        return StatefulTraced(self, self._pure(leaves).traced(values, tree, NO_STATIC))

    def call(self, compiled: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a program that `traced` led to."""
        leaves, tree = tree_util.tree_flatten(taken_apart((args, kwargs)))
        if tree != self.record.in_tree:
            raise errors.TreeError(
                f"{self.name} was compiled for arguments {self.record.in_tree}, and called with {tree}"
            )
        self.check(leaves)
        values = self.values(leaves)[0]
        count = len(self.captured)
        args, kwargs = self.in_tree.unflatten(values[count:])
        result, final = compiled(tuple(values[:count]), args, kwargs)
        for ref, array in zip(self._refs(leaves), final):
            ref._hold(array)
        return result


class StatefulEntry:
    """A call of known types of a program over references; as `Entry`."""

    __slots__ = ("direct", "key", "program", "usual")
    is_placed = False

    def __init__(self, program: StatefulProgram, key: Any):
        self.program, self.key = program, key
        self.direct = self.usual = lambda buffers, leaves: self.result(leaves)

    def result(self, leaves: Sequence[Any]) -> Any:
        """Runs the program on the call's flat arguments; returns its result."""
        return self.program.run(self, leaves)


class StatefulTraced(Traced):
    """A function over references, staged: its Jaxpr has them, its lowered program is the discharged one."""

    __slots__ = ("program", "pure")

    def __init__(self, program: StatefulProgram, pure: Traced):
        self.record, self.program, self.pure = program.record, program, pure
        self.request: LoweringRequest = pure.request
        self._onward = pure._onward

    def lower(self, *, lowering_platforms: Sequence[str] | None = None) -> Lowered:
        """Lowers the discharged program: it takes what captured references hold, then the arguments, and gives the
        results, then what the written references hold. The memory of these is donated to that.
        """
        made = self.pure.lower(lowering_platforms=lowering_platforms)
        return StatefulLowered(self.program, made)


class StatefulLowered(Lowered):
    """The discharged program of a function over references, lowered; what it compiles to takes references again."""

    __slots__ = ("program",)

    def __init__(self, program: StatefulProgram, pure: Lowered):
        super().__init__(pure.record, pure.request, pure.module, pure._onward)
        self.program = program

    def compile(self, *args: Any, **options: Any) -> Any:
        """As of any Lowered."""
        return StatefulCompiled(self.program, super().compile(*args, **options))


class StatefulCompiled:
    """A compiled function over references: called like the function, it writes to them. All else is as of the compiled
    program over what they hold.
    """

    __slots__ = ("program", "pure")

    def __init__(self, program: StatefulProgram, pure: Any):
        self.program, self.pure = program, pure

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.program.call(self.pure, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pure, name)
