"""What is said of branches whose results differ: JAX's sentences about them stand in ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.lax
import pytest

import meshrt
import meshrt.lax


def _true(x: Any) -> Any:
    return {"a": x, "b": (x, x)}


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "leaf and tuple": (lambda x: x, lambda x: (x, x)),
    "inside": (_true, lambda x: {"a": x, "b": x}),
    "keys": (_true, lambda x: {"a": x, "c": (x, x)}),
    "number of keys": (_true, lambda x: {"a": x}),
    "lengths": (lambda x: (x, x), lambda x: (x, x, x)),
    "list and tuple": (lambda x: [x], lambda x: (x,)),
    "dtype": (lambda x: x, lambda x: 1),
    "two of them": (lambda x: (x, x), lambda x: (1, [2.0, 3.0][0] > x)),
}


def _said(library: Any, branches: tuple[Callable[..., Any], Callable[..., Any]]) -> list[str]:
    with pytest.raises(TypeError) as caught:
        library.lax.cond(True, *branches, 1.0)
    return [line for line in str(caught.value).splitlines() if "true_fun" in line and "Revise" not in line]


@pytest.mark.parametrize("name", CASES)
def test_both_outputs_are_told_in_order(name: str) -> None:
    ours, theirs = _said(meshrt, CASES[name]), _said(jax, CASES[name])
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        assert one.startswith(other.rstrip(".;"))


def test_branches_of_a_switch_are_numbered() -> None:
    with pytest.raises(TypeError, match=r"branch 0 output is a pytree leaf but branch 1 output is a <class 'tuple'>"):
        meshrt.lax.switch(1, [lambda x: x, lambda x: (x, x)], 1.0)
