"""What rules of functions with custom derivatives are written with, and integrals, beside JAX's."""

import numpy as np
import pytest

from tests.meshrt.beside import assert_alike

TREE = {"a": np.ones(3, np.float32), "b": np.arange(2), "c": 1.5}


def test_zeros_of_tangents():
    assert_alike(lambda lib: lib.custom_derivatives.zero_from_primal([TREE["a"], {"z": TREE["a"][:0]}]))
    assert_alike(lambda lib: str(lib.custom_derivatives.zero_from_primal(TREE)["b"].dtype))
    assert_alike(
        lambda lib: [z.shape for z in lib.custom_derivatives.zero_from_primal(TREE, symbolic_zeros=True).values()]
    )


def test_values_of_arguments_with_symbolic_zeros():
    def program(lib):
        f = lib.custom_vjp(lambda x: x["a"] * x["b"])

        def forward(x):
            values = lib.custom_derivatives.custom_vjp_primal_tree_values(x)
            return f(values), values

        f.defvjp(forward, lambda x, g: ({"a": g * 3, "b": g * x["a"]},), symbolic_zeros=True)
        return lib.grad(f)({"a": 2.0, "b": 5.0})

    assert_alike(program)
    assert_alike(lambda lib: lib.custom_derivatives.custom_vjp_primal_tree_values({"a": 1.0}))


@pytest.mark.parametrize("options", [{}, {"dx": 0.5}, {"axis": 0}, {"x": np.array([0.0, 1.0, 4.0], np.float32)}])
def test_trapezoid(options):
    y = np.arange(12, dtype=np.float32).reshape(4, 3) ** 2
    assert_alike(lambda lib: lib.scipy.integrate.trapezoid(y, **options))
