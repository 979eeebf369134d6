"""What `checkpoint` may save: policies, and names for values to speak of them.

A policy is asked for each operation, `policy(primitive, *operand_types, **params)`; True lets its results be saved, an
`Offloadable` has them saved in another memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from meshrt import errors, tree_util
from meshrt.core.explicit import moved
from meshrt.core.primitive import Primitive
from meshrt.transforms.recompute import Offloadable, Policy

__all__ = ["checkpoint_name", "checkpoint_policies", "name_p"]


def _name_jvp(primals, tangents, *, name):
    return name_p.bind(*primals, name=name), tangents[0]


name_p: Primitive = Primitive(
    "name", lambda x, *, name: x, lower=lambda ctx, eqn, x: x, jvp=_name_jvp,
    transpose=lambda ct, x, *, name: [ct],
    batch=lambda size, args, dims, params: (name_p.bind(*args, **params), dims[0]), cheap=True,
    impl=lambda x, *, name: x, sums=moved,
)  # fmt: skip


def checkpoint_name(x: Any, name: str) -> Any:
    """The identity on a pytree, which gives its arrays a name for the policies that go by names.

    >>> from meshrt.ad_checkpoint import checkpoint_name
    >>> policy = meshrt.checkpoint_policies.save_only_these_names("sine")
    >>> f = meshrt.checkpoint(lambda x: checkpoint_name(jnp.sin(x), "sine") ** 2, policy=policy)
    >>> meshrt.grad(f)(0.0)
    Array(0., dtype=float32, weak_type=True)
    """
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
    """Saves what either policy saves. ArgumentValueError when one answers otherwise than with a bool."""

    def policy(primitive: Primitive, *avals: Any, **params: Any) -> bool:
        answers = [p(primitive, *avals, **params) for p in (policy_1, policy_2)]
        if not all(isinstance(answer, bool) for answer in answers):
            raise errors.ArgumentValueError(
                f"The return value of the policies should be a boolean. Got: {answers[0]} and {answers[1]}. "
                "save_from_both_policies cannot tell in which memory to save; write a policy that asks both"
            )
        return any(answers)

    return policy


def offload_dot_with_no_batch_dims(offload_src: str, offload_dst: str) -> Policy:
    """Saves what `dots_with_no_batch_dims_saveable` saves in another memory, from where the backward pass takes it.

    >>> policy = meshrt.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")
    >>> layer = meshrt.checkpoint(layer, policy=policy)

    `offload_src` and `offload_dst` are kinds of memory; MemorySpaceError if values do not lie in the first one.
    """

    def policy(primitive: Primitive, *_: Any, **params: Any) -> bool | Offloadable:
        saved = dots_with_no_batch_dims_saveable(primitive, **params)
        return Offloadable(offload_src, offload_dst) if saved else False

    return policy


def save_and_offload_only_these_names(
    *,
    names_which_can_be_saved: Sequence[str],
    names_which_can_be_offloaded: Sequence[str],
    offload_src: str,
    offload_dst: str,
) -> Policy:
    """Saves the values that have one of some names, those with others in another memory.

    `offload_src` and `offload_dst` are kinds of memory, such as "device" and "pinned_host".

    Raises:
      ArgumentValueError: a name stands in both lists.
    """
    saved, offloaded = frozenset(names_which_can_be_saved), frozenset(names_which_can_be_offloaded)
    if saved & offloaded:
        raise errors.ArgumentValueError(
            "The names should be exclusive and should not intersect in `names_which_can_be_saved` and "
            f"`names_which_can_be_offloaded`. Got names_which_can_be_saved={sorted(saved)}, "
            f"names_which_can_be_offloaded={sorted(offloaded)} and the intersection={sorted(saved & offloaded)}; leave "
            "them in one"
        )

    def policy(primitive: Primitive, *_: Any, **params: Any) -> bool | Offloadable:
        if primitive is not name_p:
            return False
        return Offloadable(offload_src, offload_dst) if params["name"] in offloaded else params["name"] in saved

    return policy


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
    offload_dot_with_no_batch_dims=offload_dot_with_no_batch_dims,
    save_and_offload_only_these_names=save_and_offload_only_these_names,
)
