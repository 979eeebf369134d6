"""What works with symbolic sizes: exported with them and called with numbers, functions give what they give else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, export, lax, random
from tests.meshrt.export.symbolic_families import FAMILIES
from tests.meshrt.export.symbolic_rows import ROWS as FIRST_ROWS
from tests.meshrt.export.symbolic_rows_more import MORE

ROWS = [*FIRST_ROWS, *MORE]
DOCUMENT = Path(__file__).parents[3] / "docs" / "export.md"


MODULES = (
    "numpy", "numpy.fft", "numpy.linalg", "lax", "lax.linalg", "nn", "nn.initializers", "scipy.fft", "scipy.linalg",
    "scipy.signal", "scipy.special", "random", "image", "ops",
)  # fmt: skip


def table():
    """The names of the rows and families by their modules, as Markdown."""
    found = {}
    for _, modules in FAMILIES.values():
        for module, names in modules.items():
            found.setdefault(module, {}).update(dict.fromkeys(names.split()))
    for name, *_ in ROWS:
        # What follows a comma is about sizes and options: "numpy.arange, of two", "vmap, along 1".
        module, dot, function = name.partition(",")[0].partition(" of ")[0].rpartition(".")
        is_name = dot and module in MODULES
        kind = module if is_name else "indexing" if name[0] == "x" else "transformations"
        found.setdefault(kind, {})[function if is_name else name] = None
    lines = [f"| {kind} | {', '.join(f'`{n}`' for n in sorted(names))} |" for kind, names in found.items()]
    return "\n".join(["| of | what |", "| --- | --- |", *lines])


def test_the_table_in_the_documentation_is_that_of_the_rows():
    """`python -m tests.meshrt.export.test_symbolic_functions` writes it."""
    assert DOCUMENT.read_text() == written(DOCUMENT.read_text())


def written(text):
    """The document with the table."""
    before, begin, rest = text.partition("<!-- symbolic functions: begin -->\n")
    _, end, after = rest.partition("<!-- symbolic functions: end -->\n")
    return f"{before}{begin}{table()}\n{end}{after}"


def arguments(given):
    rng = np.random.default_rng(0)
    return [rng.random(a, dtype=np.float32) if isinstance(a, tuple) else a for a in given]


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("fun", "shapes", "given"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_symbolic_function(fun, shapes, given):
    args = arguments(given)
    specs = export.symbolic_args_specs(args, list(shapes))
    exported = export.export(meshrt.jit(fun))(*specs)
    found, expected = exported.call(*args), meshrt.jit(fun)(*args)
    assert meshrt.tree.structure(found) == meshrt.tree.structure(expected)
    for a, b in zip(meshrt.tree.leaves(found), meshrt.tree.leaves(expected)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


linalg = meshrt.scipy.linalg
SIZED = {
    "dft": linalg.dft, "dft, n": lambda n: linalg.dft(n, "n"), "dft, sqrtn": lambda n: linalg.dft(n, "sqrtn"),
    "helmert": linalg.helmert, "helmert, full": lambda n: linalg.helmert(n, full=True), "hilbert": linalg.hilbert,
    "invhilbert": linalg.invhilbert, "pascal": linalg.pascal, "pascal, lower": lambda n: linalg.pascal(n, "lower"),
    "pascal, upper": lambda n: linalg.pascal(n, "upper"), "invpascal": linalg.invpascal,
    "invpascal, lower": lambda n: linalg.invpascal(n, "lower"),
}  # fmt: skip


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", SIZED)
def test_matrices_of_a_symbolic_size_are_as_wide_as_those_of_a_number(name, x64):
    with meshrt.enable_x64(x64):
        exported = with_sizes(lambda x: SIZED[name](x.shape[0]), "a")
        for n in (1, 2, 7):
            found, expected = exported.call(np.ones(n, np.float32)), SIZED[name](n)
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_allclose(found, expected, rtol=1e-13 if x64 else 2e-5, atol=1e-14 if x64 else 2e-5)


def with_sizes(fun, *shapes):
    """A jitted function of arrays with the symbolic shapes."""
    specs = [meshrt.ShapeDtypeStruct(export.symbolic_shape(s), np.float32) for s in shapes]
    return export.export(meshrt.jit(fun))(*specs)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_random_numbers_of_a_symbolic_shape(impl):
    """Of each implementation of keys, and where threefry hashes one sequence."""
    x = np.ones((3, 4), np.float32)
    draw = lambda x: random.uniform(random.key(3, impl=impl), x.shape)
    with meshrt.threefry_partitionable(False):
        found = with_sizes(draw, "b, 4").call(x)
        np.testing.assert_array_equal(found, meshrt.jit(draw)(x))


REFUSED = {
    "odd counts": (
        lambda x: random.uniform(random.key(3), x.shape), errors.InconclusiveDimensionOperation,
        "product of the known dimensions must be even",
    ),
    "arange from a float": (
        lambda x: jnp.arange(0.0, x.shape[0]), ValueError, "must be either dimension expressions or integers",
    ),
    "arange by 0": (lambda x: jnp.arange(0, x.shape[0], 0), ValueError, "has step == 0"),
    "arange by either sign": (
        lambda x: jnp.arange(0, x.shape[0], x.shape[0] - 2), errors.InconclusiveDimensionOperation,
        "must be resolved statically if it is > 0 or < 0",
    ),
    "reshape": (
        lambda x: x.reshape([x.shape[0], -1, 3]), errors.InconclusiveDimensionOperation,
        r"Cannot divide evenly the sizes of shapes \(b, 5\) and \(b, -1, 3\)",
    ),
    "squeeze": (jnp.squeeze, ValueError, "squeeze with axis=None is not supported with shape polymorphism"),
    "range": (lambda x: sum(range(x.shape[0])), errors.InconclusiveDimensionOperation, "requires a constant"),
    "len": (lambda x: x + len(x), errors.InconclusiveDimensionOperation, "requires a constant"),
    "delete of several": (lambda x: jnp.delete(x, np.array([0, -1]), 0), NotImplementedError, "delete one at a time"),
    "approx_max_k": (
        lambda x: lax.approx_max_k(x, 1, reduction_dimension=0, aggregate_to_topk=False),
        NotImplementedError, "aggregate_to_topk=False",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_sizes_do_not_decide_is_refused(name):
    fun, error, message = REFUSED[name]
    with meshrt.threefry_partitionable(False), pytest.raises(error, match=message):
        with_sizes(fun, "b, 5")


def test_constraints_on_divisions_decide_reshapes():
    """They may have the divisor with the sign of the size that is left out, as programs for JAX write them."""

    def f(x):
        padded = jnp.concatenate([x, jnp.zeros(x.shape[0] % 2, x.dtype)])
        return x + (padded.reshape(2, -1) + 2).reshape(-1)[: x.shape[0]]

    even = "a + mod(a, 2)"
    for sign in "", "-":
        constraints = [f"mod({even}, {sign}2) == 0", f"{sign}2*floordiv({even}, {sign}2) == {even}"]
        x = meshrt.ShapeDtypeStruct(export.symbolic_shape("a", constraints=constraints), np.float32)
        given = np.arange(5, dtype=np.float32)
        np.testing.assert_array_equal(export.export(meshrt.jit(f))(x).call(given), 2 * given + 2)


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text()))
