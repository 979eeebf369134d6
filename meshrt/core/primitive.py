"""The protocol of primitives: one record holds all that the system knows of an operation.

A primitive is declared in one place, in `meshrt/primitives/<family>.py`, with

    infer       types of the results from types of the operands and parameters
    lower       StableHLO for it
    jvp         pushes tangents forward (None stands for a zero tangent)
    linearize   optional, for primitives with Jaxprs in their parameters: see `meshrt.transforms.linearize`
    transpose   pulls cotangents back through a linear use
    batch       maps it over a leading or other dimension: takes (size, args, dims, params), and with `batch_axis=True`
                the `MappedAxis` of `meshrt.transforms.batching` instead of its size (to map Jaxprs in parameters)

How it is sharded follows from the StableHLO it lowers to: `propagation.rules` and `collectives.partition` hold that
for its family under the same stem.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors
from meshrt.core.jaxpr import NO_EFFECTS
from meshrt.core.trace import current_trace
from meshrt.core.types import ShapedArray, aval_of

__all__ = ["Primitive"]

Infer = Callable[..., Any]


class Primitive:
    """An operation. `multiple_results` says whether `bind` returns one value or a list.

    Rules that are None are absent: using them raises UnsupportedError naming the primitive. `cache_types=False` is for
    parameters that hold Jaxprs, whose identity would make every entry unique.
    """

    __slots__ = (
        "_types",
        "batch",
        "batch_axis",
        "cache_types",
        "dce",
        "effects_rule",
        "impl",
        "infer_rule",
        "jvp",
        "linearize",
        "literals",
        "lower",
        "may_be_high",
        "multiple_results",
        "name",
        "to_lojax",
        "transpose",
    )

    def __init__(
        self,
        name: str,
        infer: Infer | None = None,
        *,
        lower: Callable[..., Any] | None = None,
        jvp: Callable[..., Any] | None = None,
        linearize: Callable[..., Any] | None = None,
        transpose: Callable[..., Any] | None = None,
        batch: Callable[..., Any] | None = None,
        batch_axis: bool = False,
        multiple_results: bool = False,
        cache_types: bool = True,
    ):
        self.name = name
        self.infer_rule = infer
        self.lower, self.jvp, self.linearize = lower, jvp, linearize
        self.transpose, self.batch, self.batch_axis = transpose, batch, batch_axis
        self.multiple_results = multiple_results
        self.cache_types = cache_types
        self._types: dict[Any, tuple[ShapedArray, ...]] = {}
        self.effects_rule: Callable[..., frozenset] | None = None
        self.impl: Callable[..., Any] | None = None
        # `dce(eqn, used) -> Eqn` drops results not flagged in `used` (primitives with Jaxprs; see transforms.tools).
        self.dce: Callable[..., Any] | None = None
        # Whether the lowering rule takes Literals as they are (and writes constants only in the shape it needs).
        self.literals = False
        # Hijax: set `may_be_high` and `to_lojax` on primitives over high types (checked by one attribute in `bind`).
        self.may_be_high = False
        self.to_lojax: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        return self.name

    def bind(self, *args: Any, **params: Any) -> Any:
        """Applies the primitive in the current trace: evaluates, stages, differentiates or batches it."""
        trace = current_trace()
        if self.may_be_high and trace.requires_low and self.is_high(*map(aval_of, args), **params):
            return self.to_lojax(*args, **params)
        return trace.process_primitive(self, args, params)

    def is_high(self, *avals: Any, **params: Any) -> bool:
        """Whether an application works on high types and must be lowered before plain traces see it."""
        return any(a.is_high for a in avals)

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
            raise errors.UnsupportedError(f"the primitive {self.name} has no type rule")
        out = self.infer_rule(*avals, **params)
        return tuple(out) if self.multiple_results else (out,)

    def effects(self, avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> frozenset:
        return NO_EFFECTS if self.effects_rule is None else self.effects_rule(*avals, **params)


def missing_rule(primitive: Primitive, rule: str, consequence: str) -> errors.UnsupportedError:
    """The error for a rule that does not exist."""
    return errors.UnsupportedError(
        f"the primitive '{primitive.name}' has no {rule} rule, so it {consequence}; "
        f"define custom_jvp or custom_vjp around it, or express it by other operations"
    )


def as_list(primitive: Primitive, out: Any) -> Sequence[Any]:
    """The results of a rule of `primitive` as a list."""
    return out if primitive.multiple_results else [out]
