"""What `checkpoint` may save: policies, and names for values to speak of them.

A policy is asked for each operation, `policy(primitive, *operand_types, **params)`; True lets its results be saved.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from meshrt import errors, tree_util
from meshrt.core.primitive import Primitive

__all__ = ["checkpoint_name", "checkpoint_policies", "name_p"]

Policy = Callable[..., bool]


def _name_jvp(primals, tangents, *, name):
    return name_p.bind(*primals, name=name), tangents[0]


name_p: Primitive = Primitive(
    "name", lambda x, *, name: x, lower=lambda ctx, eqn, x: x, jvp=_name_jvp,
    transpose=lambda ct, x, *, name: [ct],
    batch=lambda size, args, dims, params: (name_p.bind(*args, **params), dims[0]), cheap=True,
)  # fmt: skip


def checkpoint_name(x: Any, name: str) -> Any:
    """The identity on a pytree, which gives its arrays a name for the policies that go by names."""
    return tree_util.tree_map(lambda leaf: name_p.bind(leaf, name=name), x)


def everything_saveable(*_: Any, **__: Any) -> bool:
    """Saves every residual: as without `checkpoint`."""
    return True


def nothing_saveable(*_: Any, **__: Any) -> bool:
    """Saves the arguments only (the default)."""
    return False


def dots_saveable(primitive: Primitive, *_: Any, **__: Any) -> bool:
    """Saves the results of matrix products and convolutions."""
    return primitive.contraction


def dots_with_no_batch_dims_saveable(primitive: Primitive, *_: Any, **params: Any) -> bool:
    """Saves the results of matrix products without batch dimensions: those with parameters, not those of attention."""
    return primitive.batch_dimensions is not None and not primitive.batch_dimensions(params)


def save_anything_except_these_names(*names_not_to_save: str) -> Policy:
    """Saves every residual but those with these names."""
    names = frozenset(names_not_to_save)

    def policy(primitive: Primitive, *_: Any, **params: Any) -> bool:
        return not (primitive is name_p and params["name"] in names)

    return policy


def save_any_names_but_these(*names_not_to_save: str) -> Policy:
    """Saves the values that have a name, unless it is one of these."""
    names = frozenset(names_not_to_save)

    def policy(primitive: Primitive, *_: Any, **params: Any) -> bool:
        return primitive is name_p and params["name"] not in names

    return policy


def save_only_these_names(*names_which_can_be_saved: str) -> Policy:
    """Saves the values that have one of these names."""
    names = frozenset(names_which_can_be_saved)

    def policy(primitive: Primitive, *_: Any, **params: Any) -> bool:
        return primitive is name_p and params["name"] in names

    return policy


def save_from_both_policies(policy_1: Policy, policy_2: Policy) -> Policy:
    """Saves what either policy saves."""

    def policy(primitive: Primitive, *avals: Any, **params: Any) -> bool:
        return bool(policy_1(primitive, *avals, **params) or policy_2(primitive, *avals, **params))

    return policy


def _no_offload(*_: Any, **__: Any) -> Policy:
    raise errors.UnsupportedError(
        "policies that move residuals to host memory are not implemented; use save_only_these_names or "
        "dots_with_no_batch_dims_saveable"
    )


checkpoint_policies = SimpleNamespace(
    everything_saveable=everything_saveable,
    nothing_saveable=nothing_saveable,
    dots_saveable=dots_saveable,
    checkpoint_dots=dots_saveable,
    dots_with_no_batch_dims_saveable=dots_with_no_batch_dims_saveable,
    checkpoint_dots_with_no_batch_dims=dots_with_no_batch_dims_saveable,
    save_anything_except_these_names=save_anything_except_these_names,
    save_any_names_but_these=save_any_names_but_these,
    save_only_these_names=save_only_these_names,
    save_from_both_policies=save_from_both_policies,
    offload_dot_with_no_batch_dims=_no_offload,
    save_and_offload_only_these_names=_no_offload,
)
