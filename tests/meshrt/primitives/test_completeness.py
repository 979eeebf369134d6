"""Every primitive has a row, or a written reason why not."""

from __future__ import annotations

import ast
import importlib
import pathlib
import pkgutil
from types import ModuleType

import pytest

import meshrt.core.basic
import meshrt.primitives
import meshrt.transforms
from meshrt.core.jaxpr import Jaxpr, subjaxprs
from meshrt.core.primitive import Primitive, missing_rule
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import aval_of
from meshrt.transforms.linearize import linearize_flat
from tests.meshrt.primitives import programs
from tests.meshrt.primitives.table import CASES

# Primitives that only derivatives produce, and a case that does.
THROUGH_DERIVATIVES = {
    "select_and_gather_add": "reduce_window max-float32",
    "select_and_scatter_add": "reduce_window max-float32",
}
# Collectives stand under names that something binds, which rows do not: test_collective*.py judge them.
COLLECTIVES = "it is to be called under vmap(axis_name=...) or shard_map; test_collective*.py judge it"
REASONS = {
    **dict.fromkeys(
        ("from_parts", "swap_batches", "to_parts", "vary_parts"), "they are of high types: tests/meshrt/hijax"
    ),
    **dict.fromkeys(
        ("assert_consumed_value", "consume"), "they compute nothing: tests/meshrt/random/test_key_reuse.py"
    ),
    **dict.fromkeys(
        (
            "all_gather",
            "all_gather_reduced",
            "preduced",
            "reduced_vary",
            "unreduced_psum",
            "unreduced_reduce_scatter",
            "vary_unreduced",
            "all_gather_invariant",
            "all_to_all",
            "axis_index",
            "pbroadcast",
            "pmax",
            "pmin",
            "ppermute",
            "psum",
            "psum_invariant",
            "pvary",
            "ragged_all_to_all",
            "reduce_scatter",
        ),
        COLLECTIVES,
    ),
    **dict.fromkeys(
        ("rng_bit_generator", "rng_uniform"), "the compiler's numbers; tests/meshrt/random/test_generators.py judges it"
    ),
    **dict.fromkeys(
        ("addupdate", "empty_ref", "free_ref", "freeze", "get", "new_ref", "swap"),
        "operations on references; tests/meshrt/refs judge them",
    ),
    **dict.fromkeys(("after_all", "create_token"), "tokens are of a high type: test_tokens.py judges them"),
    "select_and_scatter": "no public function of lax makes one; test_select_and_scatter.py judges it",
    **dict.fromkeys(
        ("scatter-and", "scatter-or", "scatter-xor"),
        "no public function of lax makes one; tests/meshrt/kernels/test_random_atomics.py judges them",
    ),
    "dim_as_value": "sizes that are symbols; tests/meshrt/export judges it",
    "linear_call": "a function of the user's; tests/meshrt/transforms/test_linear_call.py judges it",
    "dce_sink": "it has no results; tests/meshrt/lax/test_named.py judges it",
    "copy": "the identity; no public function of lax makes one",
    "custom_partitioning": "a function of the user's; tests/meshrt/experimental judges it",
    "mesh_region": "part of a program on a mesh; tests of Explicit axes judge it",
    **dict.fromkeys(
        ("from_edtype", "to_edtype"), "of dtypes that users define; tests/meshrt/dtypes/test_extended.py judges them"
    ),
    "reshard": "the identity on one device; tests of Explicit axes judge it",
    "ffi_call": "a function of another language; tests/meshrt/test_ffi.py judges it",
    "geqrf": "no public function of lax makes one; jnp.linalg.qr in tests/meshrt/numpy/test_surface.py",
    "geqp3": "part of qr with pivoting, which has rows",
    "factored_solve": "no public function of lax makes one; jnp.linalg.solve in tests/meshrt/numpy/test_surface.py",
    "jit": "a call; tests of jit judge it",
    "linear_zero": "made by linearization of loops only; tests of control flow judge it",
    "device_put": "the identity on one device; test_places judges it",
    "memory_put": "changes no value; test_memory_spaces judges it",
    "shard_alike": "the identity on one device; tests/meshrt/experimental judges it",
    "shard_map": "programs over it are judged in tests/meshrt/shard_map",
    "sharding_constraint": "the identity on one device; tests of sharding judge it",
    "layout_constraint": "the identity but for the layout; test_memories judges it",
    "xla_metadata_value": "changes no value; tests/meshrt/experimental/test_xla_metadata.py judges it",
    "inspect_sharding": "it has no results; tests/meshrt/callbacks",
    **dict.fromkeys(("debug_callback", "io_callback", "pure_callback"), "they call Python; tests/meshrt/callbacks"),
}


def defined(*packages: ModuleType) -> dict[str, Primitive]:
    """All primitives that the modules of these packages hold."""
    found = {}
    for package in packages:
        for info in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{info.name}")
            found.update({v.name: v for v in vars(module).values() if isinstance(v, Primitive)})
    return found


EVERYWHERE = (meshrt.primitives, meshrt.core.basic, meshrt.transforms)


def used_in(jaxpr: Jaxpr) -> set[str]:
    names = set()
    for eqn in jaxpr.eqns:
        names.add(eqn.primitive.name)
        for sub in subjaxprs(eqn.params):
            names |= used_in(sub)
    return names


def staged_names(case) -> set[str]:
    avals = [aval_of(a) for a in case.draw()]
    fun = lambda *xs: [programs.OURS.data(o) for o in programs.as_list(case.fun(programs.OURS.lax, *xs))]
    return used_in(trace_to_jaxpr(fun, avals, case.name).jaxpr)


def derivative_names(case) -> set[str]:
    args = case.draw()

    def program(*xs):
        fun = lambda *ys: programs.as_list(case.fun(programs.OURS.lax, *ys))
        out, pull = programs.OURS.vjp(fun, *xs)
        return [*programs.OURS.jvp(fun, xs, xs)[1], *pull(out)]

    return used_in(trace_to_jaxpr(program, [aval_of(a) for a in args], case.name).jaxpr)


def tape_names(case) -> set[str]:
    """What linearization of a case records."""
    names: set[str] = set()
    fun = lambda *xs: programs.as_list(case.fun(programs.OURS.lax, *xs))
    avals = [aval_of(a) for a in case.draw()]

    def linearized(*xs):
        outs, recorded = linearize_flat(fun, xs, [a.is_differentiable for a in avals])
        names.update(step.primitive.name for step in recorded.trace.tape)
        return outs

    try:
        trace_to_jaxpr(linearized, avals, case.name)
    except meshrt.errors.UnsupportedError as e:
        assert "differentiated with respect to its updates only with unique_indices" in str(e)
    return names


@pytest.mark.smoke
def test_every_primitive_has_a_row() -> None:
    by_name = {c.name: c for c in CASES}
    covered = set().union(*(staged_names(c) for c in CASES))
    for primitive, case in THROUGH_DERIVATIVES.items():
        assert primitive in derivative_names(by_name[case])
        covered.add(primitive)
    primitives = set(defined(meshrt.primitives, meshrt.core.basic))
    assert not REASONS.keys() & covered, "reasons for primitives that have rows"
    assert primitives - covered - REASONS.keys() == set()


@pytest.mark.parametrize("primitive", defined(*EVERYWHERE).values(), ids=str)
def test_a_record_holds_every_rule_or_a_reason_for_its_absence(primitive: Primitive) -> None:
    assert primitive.infer_rule is not None and primitive.lower is not None
    missing = {rule for rule in ("jvp", "transpose", "batch") if getattr(primitive, rule) is None}
    if primitive.linearize is not None:
        missing.discard("jvp")
    assert missing == set(primitive.absent)
    assert all(primitive.absent.values())
    assert primitive.fuses or not primitive.cheap
    has_jaxprs = primitive.linearize is not None or primitive.calls is not None
    assert not has_jaxprs or (primitive.effects_rule is not None and not primitive.cache_types)


def test_a_missing_rule_is_named_with_its_reason() -> None:
    iota = defined(meshrt.primitives)["iota"]
    assert str(missing_rule(iota, "batch", "cannot be used under vmap")) == (
        "Batching rule for 'iota' not implemented: the primitive 'iota' has no batching rule (it has no operands), so "
        "it cannot be used under vmap; define custom_jvp or custom_vjp around it, or express it by other operations"
    )


def test_operations_on_the_tape_can_be_transposed() -> None:
    """What derivatives record is linear, so reasons for missing transpose rules hold."""
    primitives = defined(*EVERYWHERE)
    for case in (c for c in CASES if c.derivatives and c.reverse):
        recorded = tape_names(case)
        assert not {n for n in recorded if primitives[n].transpose is None}, case.name


def name_of(node: ast.expr) -> str:
    """`x` and the last part of `a.b.x`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def mistakes(tree: ast.Module, names: set[str]) -> list[tuple[int, str]]:
    """(line, what) of assignments to records, of questions for a primitive's name, of lists of such names."""
    is_public = lambda s: isinstance(s, ast.Assign) and name_of(s.targets[0]) == "__all__"
    public = {id(n) for s in tree.body if is_public(s) for n in ast.walk(s)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            held = name_of(node.value)
            if held.endswith("_p") or held == "primitive":
                found.append((node.lineno, f"changes {held} after its construction"))
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute):
            if node.left.attr == "name" and name_of(node.left.value) == "primitive":
                found.append((node.lineno, "asks for a primitive by its name: give it a trait"))
        elif isinstance(node, ast.List | ast.Set | ast.Tuple) and len(node.elts) > 2 and id(node) not in public:
            known = [e for e in node.elts if isinstance(e, ast.Constant) and e.value in names]
            if 2 * len(known) > len(node.elts):
                found.append((node.lineno, "lists primitives: make it a trait"))
    return found


def test_what_is_to_be_known_of_a_primitive_stands_in_its_record() -> None:
    names = set(defined(*EVERYWHERE))
    for path in pathlib.Path(meshrt.__file__).parent.rglob("*.py"):
        if path.parent.name == "internal_test_util":  # tables of functions to test
            continue
        assert not mistakes(ast.parse(path.read_text()), names), path


def test_mistakes_are_found() -> None:
    text = """
add_p.jvp, e.primitive.batch = a, b
if e.primitive.name in X: pass
CHEAP = frozenset(["add", "mul", "square"])
__all__ = ["add", "mul", "sub"]
"""
    assert [line for line, _ in sorted(mistakes(ast.parse(text), {"add", "mul", "sub"}))] == [2, 2, 3, 4]


def test_traits() -> None:
    primitives = defined(*EVERYWHERE)
    assert {n for n, p in primitives.items() if p.contraction} == {"dot_general", "conv_general_dilated"}
    assert {n for n, p in primitives.items() if p.calls} == {"jit"}
    assert {n for n, p in primitives.items() if p.constraint is not None} == {"sharding_constraint"}
    cheap = {n for n, p in primitives.items() if p.cheap}
    assert {"add", "mul", "reshape", "transpose", "broadcast_in_dim", "convert_element_type", "slice"} <= cheap
    assert not {"exp", "tanh", "dot_general", "reduce_sum", "gather"} & cheap
    assert {"exp", "tanh", "select_n"} <= {n for n, p in primitives.items() if p.fuses}
