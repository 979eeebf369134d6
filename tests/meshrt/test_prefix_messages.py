"""What is said of shardings whose tree does not fit: under the names that the user gave, never those of a helper."""

from __future__ import annotations

import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt.errors import TreeError
from meshrt.sharding import NamedSharding
from meshrt.sharding import PartitionSpec as P


def f(params, x):
    return {"a": x @ params["w"], "b": [x, x]}


def arguments():
    return {"w": jnp.ones((8, 4)), "b": jnp.ones(3)}, jnp.ones((8, 8))


def split():
    return NamedSharding(meshrt.make_mesh((4, 2), ("data", "model")), P("data"))


def message(call):
    with pytest.raises(TreeError) as caught:
        call()
    text = str(caught.value)
    assert "prefix[" not in text and "_Place" not in text and "\n    prefix" not in text
    return text


@pytest.mark.parametrize(
    "given, place, argument",
    [
        (lambda s: ({"w": s}, s), "in_shardings[0]", "params"),
        (lambda s: ([s, s], s), "in_shardings[0]", "params"),
        (lambda s: ({"w": {"a": s}, "b": s}, s), "in_shardings[0]['w']", "params['w']"),
        (lambda s: (s, {"x": s}), "in_shardings[1]", "x"),
    ],
)
def test_in_shardings_name_the_argument(given, place, argument):
    text = message(lambda: meshrt.jit(f, in_shardings=given(split()))(*arguments()))
    assert f"\n    {place}\n" in text
    assert text.endswith(f"\n{place} is for {argument} of f")


def test_an_argument_without_arrays_is_named_by_its_position():
    text = message(lambda: meshrt.jit(lambda none, x: x, in_shardings=([split()], None))((), jnp.ones(8)))
    assert text.endswith("\nin_shardings[0] is for argument 0 of <lambda>")


@pytest.mark.parametrize("given", [lambda s: {"a": s, "b": [s]}, lambda s: {"a": s, "b": {"x": s}}])
def test_out_shardings_and_specs_are_called_so(given):
    text = message(lambda: meshrt.jit(f, out_shardings=given(split()))(*arguments()))
    assert "\n    out_shardings['b']\n" in text
    mesh = split().mesh
    out = meshrt.tree.map(lambda s: s.spec, given(split()))
    called = lambda: meshrt.shard_map(f, mesh=mesh, in_specs=(P(), P()), out_specs=out)(*arguments())
    assert "\n    out_specs['b']\n" in message(called)
    called = lambda: meshrt.shard_map(f, mesh=mesh, in_specs=([P()], P()), out_specs=P())(*arguments())
    assert "\n    in_specs[0]\n" in message(called)


def test_shardings_of_a_value_are_called_so():
    params = arguments()[0]
    text = message(lambda: meshrt.lax.with_sharding_constraint(params, {"w": split()}))
    assert "\n    shardings\n" in text
    with meshrt.set_mesh(split().mesh):
        text = message(lambda: meshrt.reshard(params, [split()]))
    assert "\n    out_shardings\n" in text
