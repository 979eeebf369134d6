"""What a pullback holds: which of its residuals are arguments, and what becomes of it where they are replaced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshrt
import meshrt.numpy as mj


def both(program):
    return program(jax, jnp), program(meshrt, mj)


@pytest.mark.parametrize("jitted", [False, True])
def test_arguments_and_what_was_computed_are_told_apart(jitted):
    def program(j, np_):
        def pulled(x, w):
            return j.vjp(lambda x, w: x * np_.sin(w["a"]), x, w)[1]

        pull = (j.jit(pulled) if jitted else pulled)(np_.arange(3.0), {"a": np_.ones(3), "b": np_.ones(2)})
        return pull.args_res, pull.opaque_residuals, pull.in_tree, pull.out_tree, pull.jaxpr

    for theirs, ours in zip(*both(program)):
        assert str(theirs) == str(ours)


def test_residuals_may_be_replaced():
    def program(j, np_):
        pull = j.vjp(lambda x, w: x * w, np_.arange(3.0), np_.ones(3))[1]
        pull.args_res[0] = 2 * pull.args_res[0]
        first = pull(np_.ones(3))
        pull.args_res = [np_.ones(3), *pull.args_res[1:]]
        mapped = j.tree.map(lambda r: -r, pull)
        return [*first, *pull(np_.ones(3)), *mapped(np_.ones(3)), *j.jit(lambda p, c: p(c))(pull, np_.ones(3))]

    for theirs, ours in zip(*both(program)):
        np.testing.assert_array_equal(theirs, ours)


@pytest.mark.parametrize("name", ["args_res", "opaque_residuals"])
def test_residuals_are_as_many_as_before(name):
    pull = meshrt.vjp(lambda x: mj.sin(x) * x, mj.arange(3.0))[1]
    setattr(pull, name, [])
    with pytest.raises(meshrt.errors.ArgumentValueError, match="1 arguments with 2 opaque residuals was given"):
        pull(mj.ones(3))
