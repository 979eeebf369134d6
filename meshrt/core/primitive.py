"""The protocol of primitives: one record holds all that the system knows of an operation.

A primitive is declared in one place, in `meshrt/primitives/<family>.py` (those that transformations themselves write
in `meshrt/core/basic`, those that are transformations in `meshrt/transforms`), by one call of `Primitive` with its
rules:

    infer       types of the results from types of the operands and parameters
    lower       StableHLO for it
    jvp         pushes tangents forward (None stands for a zero tangent)
    linearize   optional, for primitives with Jaxprs in their parameters: see `meshrt.transforms.linearize`
    transpose   pulls cotangents back through a linear use
    batch       maps it over a leading or other dimension: takes (size, args, dims, params), and with `batch_axis=True`
                the `MappedAxis` of `meshrt.transforms.batching` instead of its size (to map Jaxprs in parameters)
    dce         `dce(eqn, used) -> Eqn`, for primitives with Jaxprs in their parameters: the equation without the
                results that are not flagged in `used`
    recompute   `recompute(eqn, wanted, policy) -> Split or None`, for those as well: what a checkpoint policy saves
                inside, and how the results flagged in `wanted` are computed again; None if nothing is saved inside
                (see `meshrt.transforms.recompute`)
    again       from parameters: None, or `rule(policy, *operands) -> (results, function)`, with which a checkpoint runs
                an application forward, and the function of the operands that it runs, and derives, in the backward pass
                (see `meshrt.transforms.run_again`)
    passing     `passing(params, positions) -> (params, order, at)`, for those as well: the parameters of an application
                that returns the operands at these positions too, in front of its result `at`; `order` is where its
                operands stand among those of this one. None where one cannot be returned (see
                `meshrt.transforms.running_sums`)
    effects     the effects of an application, from operand types and parameters
    thread      `thread(eqn, token, threaded) -> (equations, token)`, for primitives that may have ordered effects: the
                equation with a token passing through it (see `meshrt.transforms.ordering`)
    impl        evaluates it on values, where it is not compiled like any other single operation

and its traits:

    multiple_results   `bind` returns a list
    typed              `infer` gives complete types, with shardings and varying axes; the rule of all others sees and
                       gives bare types, which `meshrt.core.completion` completes. By default if not `cache_types`
    explicit           what it refuses or knows beyond the factor rule where mesh axes are Explicit: a function of an
                       `Application` (see `meshrt.core.explicit`)
    sums               which axes results are unreduced and reduced over where operands are: likewise; None refuses
    space              from operand types: the memory space of results, where operands may lie in different ones; by
                       default arrays among the operands have to lie in one, and results lie there
    cache_types        False where parameters hold Jaxprs, whose identity would make every entry of a table unique
    literals           the lowering rule takes Literals as they are, and writes constants in the shape it needs
    cheap              results cost no more to compute than to read from memory: views, conversions, simple arithmetic
    fuses              computed element by element, inside the operation that uses the result (cheap ones do as well)
    pulls_zeros        `transpose` runs for cotangents that are all zero, too (a user's rule may say other things)
    reads_part         the result is a part of the first operand: its transpose writes that part of an array of zeros
    finite             its derivative is finite where its operands are, if nothing overflows (not that of log at 0)
    calls              the parameter that holds the Jaxpr of which an application is nothing but a call
    scope              what paths of equations inside of its Jaxprs say of it, "" for nothing (None: its name)
    once               an application computes what its one Jaxpr does (its derivatives may be others): no loop
    contraction        a matrix product or convolution
    batch_dimensions   for matrix products, from parameters: the dimensions that both operands are batched over
    constraint         from parameters: the sharding that operand and result are asked to have
    optional           parameters that JAX's primitive has always, and this one only where they are not None
    names              from parameters: the axes that an application names, for collectives; they concern a vmap that
                       binds such a name even if no operand is mapped
    alike              for collectives: along these axes all devices get the same results
    decides            for branches and loops: from an equation, the value by which each device chooses what it runs,
                       and the Jaxpr inside in which that is computed, None where it is an operand
    place              from parameters: the name of the function, and where the program has to run because of it: a
                       Mesh, an AbstractMesh, the sharding of a single device, None
    varies             from parameters: over which Manual axes each operand is made to vary, for primitives with Jaxprs
    absent             rule -> why there is none, for rules that are missing on purpose

Those that take high types (see `meshrt.core.high`) have `to_lojax(*args, **params)`, which computes an application on
high values by operations on the arrays that they consist of, and more where they concern them:

    applies            from parameters: the Jaxprs inside, each with the positions of the operands that are its
                       arguments. An application is high where one of them is
    unbox              as `to_lojax`, for primitives with Jaxprs: takes apart mutable operands only, so that what is
                       written to them becomes results
    mutates            from operand types and parameters: operand position -> type state that the operand has then; by
                       default what follows from `applies`
    kernel_facts       from parameters: what reports say of a kernel that an application runs
    boxes              how an application on a mutable value passes through a trace that transforms: an object with
                       methods jvp and batch of (trace, args, params)

How it is sharded follows from the StableHLO it lowers to: `propagation.rules` and `collectives.ops` hold that
for its family under the same stem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NoReturn

from meshrt import errors
from meshrt.core.completion import OUT_SHARDING, complete, undeclared
from meshrt.core.explicit import Policy, Sums
from meshrt.core.jaxpr import NO_EFFECTS, Atom, Effects, Eqn, Jaxpr, final_states
from meshrt.core.references import is_ref_type
from meshrt.core.spaces import DEVICE, Space
from meshrt.core.trace import Trace, current_trace, set_trace
from meshrt.core.types import ShapedArray, aval_of, aval_rules, register_aval

__all__ = [
    "NOT_LINEAR", "NotLinearError", "Primitive", "Undefined", "also", "as_list", "is_undefined",
    "missing_rule", "set_agreement",
]  # fmt: skip

Rule = Callable[..., Any]


# For `absent`: why a primitive has no transpose rule.
NOT_LINEAR: Mapping[str, str] = MappingProxyType({"transpose": "it is not linear in any operand"})
_NOTHING: Mapping[str, str] = MappingProxyType({})
_WORDS = {"jvp": "jvp", "transpose": "transpose", "batch": "batching"}
_TITLES = {
    "jvp": "Differentiation rule",
    "transpose": "Transpose rule (for reverse-mode differentiation)",
    "batch": "Batching rule",
}


# Makes the operands of an application agree on the Manual axes over which they vary; None where none are in use, which
# is what `bind` pays for.
_agreement: Callable[[Primitive, Sequence[Any], dict[str, Any]], Sequence[Any]] | None = None


def also(*names: str) -> Callable[[Eqn], dict[str, Any]]:
    """A rule `shown` of a primitive: all its parameters are printed, and those that are called `names` where they are
    None or not given, too."""
    left_out = dict.fromkeys(names)
    return lambda eqn: {k: v for k, v in {**left_out, **eqn.params}.items() if v is not None or k in left_out}


def set_agreement(agree: Callable[[Primitive, Sequence[Any], dict[str, Any]], Sequence[Any]] | None) -> None:
    """For `meshrt.core.basic.agreement`: what `bind` does with operands."""
    global _agreement
    _agreement = agree


class Undefined:
    """Stands for a linear operand in a transpose rule: only its type is known."""

    __slots__ = ("aval",)

    aval: ShapedArray

    def __init__(self, aval: ShapedArray):
        self.aval = aval

    def __repr__(self) -> str:
        return f"Undefined({self.aval.short()})"


class NotLinearError(Exception):
    """A transpose rule reads a linear operand: the operation has another one, and is linear in each alone.

    Whoever asked the rule knows which operation that is, and says so.
    """


def _refuse_type(value: Undefined) -> NoReturn:
    raise NotLinearError


register_aval(Undefined, _refuse_type)


def is_undefined(value: Any) -> bool:
    """Whether an operand of a transpose rule is a linear one, to be given a cotangent."""
    return type(value) is Undefined


class Primitive:
    """An operation: all its rules and traits, given at construction and not changed after it.

    Rules that are None are absent: using them raises UnsupportedError naming the primitive.
    """

    __slots__ = (
        "_types",
        "absent",
        "again",
        "alike",
        "allocates",
        "applies",
        "batch",
        "batch_axis",
        "batch_dimensions",
        "batches_refs",
        "boxes",
        "cache_types",
        "calls",
        "cheap",
        "constraint",
        "contraction",
        "dce",
        "decides",
        "discharge",
        "effects_rule",
        "explicit",
        "finite",
        "fuses",
        "impl",
        "infer_rule",
        "jvp",
        "kernel_facts",
        "linearize",
        "literals",
        "lower",
        "multiple_results",
        "mutates",
        "name",
        "names",
        "on_cells",
        "once",
        "optional",
        "passing",
        "place",
        "printed",
        "pulls_zeros",
        "reads_part",
        "recompute",
        "repeats",
        "scope",
        "selects",
        "shown",
        "space",
        "sums",
        "thread",
        "to_lojax",
        "transpose",
        "typed",
        "unbox",
        "varies",
    )

    # JAX's traits of primitives that call functions, for programs that walk over Jaxprs: none here says so.
    call_primitive = map_primitive = False

    name: Final[str]
    infer_rule: Final[Rule | None]
    lower: Final[Rule | None]
    jvp: Final[Rule | None]
    linearize: Final[Rule | None]
    transpose: Final[Rule | None]
    batch: Final[Rule | None]
    batch_axis: Final[bool]
    dce: Final[Rule | None]
    recompute: Final[Rule | None]
    passing: Final[Rule | None]
    again: Final[Callable[[dict[str, Any]], Rule | None] | None]
    discharge: Final[Rule | None]
    printed: Final[Rule | None]
    shown: Final[Callable[[Eqn], dict[str, Any]] | None]
    allocates: Final[bool]
    repeats: Final[bool]
    selects: Final[Callable[..., bool] | None]
    batches_refs: Final[bool]
    on_cells: Final[bool]
    effects_rule: Final[Callable[..., Effects] | None]
    thread: Final[Rule | None]
    impl: Final[Rule | None]
    multiple_results: Final[bool]
    typed: Final[bool]
    explicit: Final[Policy | None]
    sums: Final[Sums | None]
    space: Final[Callable[[Sequence[ShapedArray]], Space] | None]
    cache_types: Final[bool]
    literals: Final[bool]
    cheap: Final[bool]
    fuses: Final[bool]
    pulls_zeros: Final[bool]
    reads_part: Final[bool]
    finite: Final[bool]
    calls: Final[str | None]
    scope: Final[str]
    once: Final[bool]
    contraction: Final[bool]
    batch_dimensions: Final[Callable[[dict[str, Any]], Sequence[int]] | None]
    constraint: Final[Callable[[dict[str, Any]], Any] | None]
    optional: Final[tuple[str, ...]]
    names: Final[Callable[[dict[str, Any]], Sequence[Any]] | None]
    alike: Final[bool]
    decides: Final[Callable[[Eqn], tuple[Jaxpr | None, Atom]] | None]
    place: Final[Callable[[dict[str, Any]], tuple[str, Any]] | None]
    varies: Final[Callable[[dict[str, Any]], Sequence[frozenset[Any]]] | None]
    to_lojax: Final[Rule | None]
    applies: Final[Callable[[dict[str, Any]], Sequence[tuple[Jaxpr, Sequence[int]]]] | None]
    unbox: Final[Rule | None]
    mutates: Final[Callable[[Sequence[Any], dict[str, Any]], dict[int, Any]] | None]
    kernel_facts: Final[Callable[[dict[str, Any]], Any] | None]
    boxes: Final[Any]
    absent: Final[Mapping[str, str]]
    _types: Final[dict[Any, tuple[ShapedArray, ...]]]

    def __init__(
        self,
        name: str,
        infer: Rule | None = None,
        *,
        lower: Rule | None = None,
        jvp: Rule | None = None,
        linearize: Rule | None = None,
        transpose: Rule | None = None,
        batch: Rule | None = None,
        batch_axis: bool = False,
        dce: Rule | None = None,
        recompute: Rule | None = None,
        passing: Rule | None = None,
        again: Callable[[dict[str, Any]], Rule | None] | None = None,
        discharge: Rule | None = None,
        printed: Rule | None = None,
        shown: Callable[[Eqn], dict[str, Any]] | None = None,
        allocates: bool = False,
        repeats: bool = False,
        selects: Callable[..., bool] | None = None,
        batches_refs: bool = False,
        on_cells: bool = False,
        effects: Callable[..., Effects] | None = None,
        thread: Rule | None = None,
        impl: Rule | None = None,
        multiple_results: bool = False,
        typed: bool | None = None,
        explicit: Policy | None = None,
        sums: Sums | None = None,
        space: Callable[[Sequence[ShapedArray]], Space] | None = None,
        cache_types: bool = True,
        literals: bool = False,
        cheap: bool = False,
        fuses: bool = False,
        pulls_zeros: bool = False,
        reads_part: bool = False,
        finite: bool = False,
        calls: str | None = None,
        scope: str | None = None,
        once: bool = False,
        contraction: bool = False,
        batch_dimensions: Callable[[dict[str, Any]], Sequence[int]] | None = None,
        constraint: Callable[[dict[str, Any]], Any] | None = None,
        optional: tuple[str, ...] = (),
        names: Callable[[dict[str, Any]], Sequence[Any]] | None = None,
        alike: bool = False,
        decides: Callable[[Eqn], tuple[Jaxpr | None, Atom]] | None = None,
        place: Callable[[dict[str, Any]], tuple[str, Any]] | None = None,
        varies: Callable[[dict[str, Any]], Sequence[frozenset[Any]]] | None = None,
        to_lojax: Rule | None = None,
        applies: Callable[[dict[str, Any]], Sequence[tuple[Jaxpr, Sequence[int]]]] | None = None,
        unbox: Rule | None = None,
        mutates: Callable[[Sequence[Any], dict[str, Any]], dict[int, Any]] | None = None,
        kernel_facts: Callable[[dict[str, Any]], Any] | None = None,
        boxes: Any = None,
        absent: Mapping[str, str] = _NOTHING,
    ):
        self.name = name
        self.infer_rule = infer
        self.lower, self.jvp, self.linearize = lower, jvp, linearize
        self.transpose, self.batch, self.batch_axis = transpose, batch, batch_axis
        self.dce, self.recompute, self.effects_rule, self.impl = dce, recompute, effects, impl
        self.again, self.passing, self.reads_part = again, passing, reads_part
        self.thread, self.discharge, self.printed, self.shown = thread, discharge, printed, shown
        self.allocates, self.on_cells, self.repeats, self.selects = allocates, on_cells, repeats, selects
        self.batches_refs = batches_refs
        self.multiple_results, self.cache_types, self.literals = multiple_results, cache_types, literals
        self.typed = not cache_types if typed is None else typed
        self.explicit, self.sums, self.space = explicit, sums, space
        self.cheap, self.fuses, self.finite, self.calls = cheap, cheap or fuses, finite, calls
        self.contraction, self.batch_dimensions, self.constraint = contraction, batch_dimensions, constraint
        self.pulls_zeros, self.once = pulls_zeros, once or calls is not None
        self.scope = name if scope is None else scope
        self.names, self.to_lojax, self.optional = names, to_lojax, optional
        self.alike, self.decides = alike, decides
        self.place, self.varies = place, varies
        self.applies, self.unbox, self.mutates, self.boxes = applies, unbox, mutates, boxes
        self.kernel_facts = kernel_facts
        self.absent = absent
        self._types = {}

    def __repr__(self) -> str:
        return self.name

    @property
    def communicates(self) -> bool:
        """Whether devices along the axes that an application names wait for each other."""
        return self.names is not None and not self.cheap

    def get_bind_params(self, params: dict[str, Any]) -> dict[str, Any]:
        """What `bind` takes for an equation with these parameters: they themselves. (Programs that evaluate Jaxprs of
        JAX's ask each primitive.)"""
        return params

    def bind_with_trace(self, trace: Any, args: Sequence[Any], avals: Sequence[Any], params: dict[str, Any]) -> Any:
        """Applies the primitive in `trace`, for traces of libraries' own that hand on what they have looked at.

        `avals` are the types of `args`, which these know themselves.
        """
        with set_trace(trace):
            return self.bind_in(trace, args, params)

    def bind(self, *args: Any, **params: Any) -> Any:
        """Applies the primitive in the current trace: evaluates, stages, differentiates or batches it."""
        for name in self.optional:
            if params.get(name, self) is None:
                del params[name]
        trace = current_trace()
        try:
            operands: Sequence[Any] = args if _agreement is None else _agreement(self, args, params)
            if self.to_lojax is not None and self.is_high(*map(aval_of, operands), **params):
                return trace.process_high(self, operands, params)
            return trace.process_primitive(self, operands, params)
        except errors.ArgumentTypeError:
            self._refuse_untyped(args)  # names the operand, where that is what is wrong
            raise

    def _refuse_untyped(self, args: Sequence[Any]) -> None:
        for position, arg in enumerate(args):
            if not any(cls in aval_rules or hasattr(cls, "__jax_array__") for cls in type(arg).__mro__):
                raise errors.ArgumentTypeError(
                    f"Error interpreting argument to {self.name} as a JAX value. The problematic value is of type "
                    f"{type(arg)} and was passed to {self.name} at position {position}. It is not a valid JAX type: "
                    "give an array, a NumPy array or scalar, or a Python number, or convert with numpy.asarray"
                ) from None

    def bind_in(self, trace: Trace, operands: Sequence[Any], params: dict[str, Any]) -> Any:
        """The application in `trace`, which is the current one and to which another passes it on."""
        if self.to_lojax is not None and self.is_high(*map(aval_of, operands), **params):
            return trace.process_high(self, operands, params)
        return trace.process_primitive(self, operands, params)

    def is_high(self, *avals: Any, **params: Any) -> bool:
        """Whether an application with these operand types and parameters takes or makes values of high types."""
        if self.applies is not None:
            return any(jaxpr.is_high for jaxpr, _ in self.applies(params)) or any(a.is_high for a in avals)
        return any(a.is_high for a in avals) or any(a.is_high for a in self.infer(avals, params))

    def final_states(self, avals: Sequence[Any], params: dict[str, Any]) -> dict[int, Any]:
        """The type states in which an application leaves mutable operands, of those that it writes to, by position."""
        if self.mutates is not None:
            return self.mutates(avals, params)
        found: dict[int, Any] = {}
        for jaxpr, positions in () if self.applies is None else self.applies(params):
            for v, state in final_states(jaxpr).items():
                if v in jaxpr.invars:
                    found[positions[jaxpr.invars.index(v)]] = state
        return found

    def infer(self, avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> tuple[ShapedArray, ...]:
        """Types of the results (always a tuple), memoised by operand types and parameters."""
        if not self.cache_types:
            return self._infer(avals, params)
        key = (avals, *params.items()) if params else avals
        try:
            return self._types[key]
        except KeyError:
            types = self._types[key] = self._infer(avals, params)
            return types
        except TypeError:
            return self._infer(avals, params)

    def _infer(self, avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> tuple[ShapedArray, ...]:
        if self.infer_rule is None:
            raise errors.UnsupportedError(f"Abstract evaluation for {self.name!r} not implemented: it has no type rule")
        if self.discharge is None and self.cache_types and any(map(is_ref_type, avals)):
            ref = next(filter(is_ref_type, avals))
            raise errors.ReferenceOperandError(
                f"Attempting to pass a Ref {ref} to a primitive: {self.name} -- did you forget to unpack ([...]) the "
                "ref? ref[...] is the array that it holds"
            )
        if not self.typed:
            if OUT_SHARDING in params:
                return self._complete(avals, params)
            for a in avals:
                if a.explicit is not None or a.vma or a.memory_space is not DEVICE:
                    return self._complete(avals, params)
        out = self.infer_rule(*avals, **params)
        return tuple(out) if self.multiple_results else (out,)

    def _complete(self, avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> tuple[ShapedArray, ...]:
        types = self.infer(tuple([a.bare() for a in avals]), undeclared(params))
        return complete(self, avals, params, types)

    def abstract_eval(self, *avals: Any, **params: Any) -> tuple[Any, Effects]:
        """The type of the result (a list of types with `multiple_results`) and the effects of an application."""
        types = self.infer(avals, params)
        return list(types) if self.multiple_results else types[0], self.effects(avals, params)

    def effects(self, avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Effects:
        return NO_EFFECTS if self.effects_rule is None else self.effects_rule(*avals, **params)


def missing_rule(primitive: Primitive, rule: str, consequence: str, where: Any = None) -> errors.UnsupportedError:
    """The error for a rule, named as in `Primitive`, that does not exist; `where` is the line of the operation."""
    reason = f" ({primitive.absent[rule]})" if rule in primitive.absent else ""
    place = "" if where is None else f" at {where}"
    title = _TITLES.get(rule)
    return errors.UnsupportedError(
        (f"{title} for '{primitive.name}' not implemented: " if title else "")
        + f"the primitive '{primitive.name}'{place} has no {_WORDS[rule]} rule{reason}, so it {consequence}; "
        f"define custom_jvp or custom_vjp around it, or express it by other operations"
    )


def as_list(primitive: Primitive, out: Any) -> Sequence[Any]:
    """The results of a rule of `primitive` as a list."""
    return out if primitive.multiple_results else [out]
