"""`HiPrim`: operations on high types in the form of JAX 0.12, and what their `batch` rules are written with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshrt import errors, tree_util
from meshrt.core.basic.shapes import bring_to_front
from meshrt.experimental.hijax.vjp_operations import VJPHiPrimitive
from meshrt.interpreters.ad import Zero
from meshrt.transforms.vmap import vmap

__all__ = ["HiPrim", "bdims_at_front", "unmap_avals", "vmap_rule"]


@dataclass(frozen=True)
class RematTrace:
    """What a `remat` rule is told of the checkpoint around: its `policy`, None if that saves nothing."""

    policy: Any


class HiPrim(VJPHiPrimitive):
    """An operation on pytrees of arrays and values of high types, as JAX 0.12 has them.

    A subclass is that of a `VJPHiPrimitive`, but for these methods:

        vjp_bwd(residuals, ct, *accumulators)       may return a dict, which is a log of the backward pass; nobody can
                                                    ask for it here
        vjp_bwd_retval_logs(residuals, ct)          (a tuple with the cotangents, such a dict or None)
        batch(axis_data, args, dims)                (result, its dimension): there is no `batch_dim_rule`
        dce(used_outs, live_ins)                    (used arguments, produced results, operation or None)
        remat(trace, *args)                         (result, residuals, function of residuals and arguments)
        pp_params()                                 what is printed of `params`

    >>> class Sine(HiPrim):
    ...     def __init__(self, aval):
    ...         self.in_avals, self.out_aval, self.params = (aval,), aval, {}
    ...         super().__init__()
    ...     def expand(self, x): return jnp.sin(x)
    ...     def jvp(self, primals, tangents): return self(*primals), tangents[0] * jnp.cos(primals[0])
    ...     vjp_fwd, vjp_bwd_retval = vjp_from_jvp
    >>> meshrt.grad(lambda x: Sine(meshrt.typeof(x))(x))(0.0)

    Raises (AttributeError): an attribute is not set. (NotImplementedError): the class has a `staging` rule.
    """

    skip_linearization_on_zero_tangents = False

    def __init__(self) -> None:
        if hasattr(type(self), "staging"):
            raise errors.UnsupportedError(
                f"{type(self).__name__} has a `staging` rule, which meshrt's traces do not ask: say what the operation "
                "is in `expand`"
            )
        super().__init__()

    def _refuse_two_backward_rules(self) -> None:
        """`vjp_bwd` goes before `vjp_bwd_retval`, which a class may have from another."""

    def vjp_bwd(self, res: Any, outgrad: Any, /, *arg_accums: Any) -> Any:
        """Adds to each accumulator the cotangent of its argument."""
        grads, logs = self.vjp_bwd_retval_logs(res, outgrad)
        self._accumulate(grads, arg_accums)
        return logs

    def vjp_bwd_retval_logs(self, res: Any, outgrad: Any, /) -> Any:
        """(a tuple with the cotangent of each argument, a log of the backward pass or None)."""
        return self.vjp_bwd_retval(res, outgrad), None

    def dce(self, used_outs: Any, live_ins: Any = None) -> Any:
        """(used arguments, produced results, the operation in place of this one, None for none)."""
        return super().dce(used_outs)

    def _without_dead(self, used_outs: Any) -> Any:
        return self.dce(used_outs, self.in_tree.unflatten([True] * self.in_tree.num_leaves))

    def remat(self, trace: Any, *args: Any) -> Any:
        """(result, residuals, what computes it again from these and the arguments)."""
        return self(*args), (), lambda _, *again: self(*again)

    def _has_remat(self) -> bool:
        return type(self).remat is not HiPrim.remat

    def _remat(self, policy: Any, *args: Any) -> Any:
        out, residuals, again = self.remat(RematTrace(policy), *args)
        return out, lambda *operands: again(residuals, *operands)

    def pp_params(self) -> dict[str, Any]:
        """What is printed of the parameters: those whose names do not begin with an underscore."""
        return {k: v for k, v in self.params.items() if not k.startswith("_")}

    def __repr__(self) -> str:
        shown = " ".join(f"{k}={v}" for k, v in self.pp_params().items())
        return f"{type(self).__name__}[{shown}]"


# ---------------------------------------------------------------------------------------------------------------------
# What `batch` is written with


def unmap_avals(axis_data: Any, avals: Any, dims: Any) -> Any:
    """The types of batches whose members have the types `avals`, along `dims`: for the operation that takes batches.

    >>> unmap_avals(axis_data, (meshrt.typeof(1.0),), (0,))  # axis_data of a size of 3
    (ShapedArray(float32[3], weak_type=True),)
    """
    leaves, tree = tree_util.tree_flatten(avals)
    given = tree.flatten_up_to(dims)
    return tree.unflatten([a if d is None else a.inc_rank(axis_data.size, d) for a, d in zip(leaves, given)])


def bdims_at_front(axis_data: Any, args: Any, dims: Any) -> Any:
    """Arguments with their mapped dimension first; those that all members share are repeated."""
    leaves, tree = tree_util.tree_flatten(args)
    return tree.unflatten([bring_to_front(axis_data.size, x, d) for x, d in zip(leaves, tree.flatten_up_to(dims))])


def vmap_rule(
    axis_data: Any, f: Callable[..., Any], in_axes: Any, out_axes: Any, *, sum_match: bool = False
) -> Callable[..., Any]:
    """`f` mapped along `axis_data`, as a `batch` rule needs it; zeros (`Zero`) among arguments and results are mapped.

    Args:
      f: a function of members, such as a method of the operation.
      in_axes, out_axes: as those of `vmap`.
      sum_match: as that of `vmap`.
    """
    size = axis_data.size
    vmapped = vmap(
        f, in_axes, out_axes, axis_name=axis_data.name, axis_size=size, sum_match=sum_match,
        spmd_axis_name=axis_data.spmd_name or axis_data.explicit_mesh_axis,
    )  # fmt: skip
    member = lambda aval, d: aval if d is None else aval.dec_rank(size, d)
    batch = lambda aval, d: aval if d is None else aval.inc_rank(size, d)

    def mapped(*args: Any) -> Any:
        axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
        return _moved(out_axes, vmapped(*_moved(axes, args, member)), batch)

    return mapped


def _moved(axes: Any, tree: Any, change: Callable[[Any, Any], Any]) -> Any:
    """A tree whose zeros have the types that `change` makes of theirs, by the dimension along which they are mapped."""
    leaves, structure = tree_util.tree_flatten(tree, is_leaf=lambda x: type(x) is Zero)
    places = structure.unflatten([0] * len(leaves))
    along = tree_util.broadcast_prefix(axes, places, is_leaf=lambda a: a is None)
    return structure.unflatten([Zero(change(x.aval, d)) if type(x) is Zero else x for x, d in zip(leaves, along)])
