"""The calling convention of exported programs whose sizes or platform are known when they are called.

    main(platform_index?, args...)                  computes the variables from the arguments' sizes, and checks them
    _wrapped_jax_export_main(platform_index?, variables..., args...)     the program

What has to hold of the sizes is a custom call `shape_assertion` with a condition, the numbers, and the message in
which they belong; whoever specialises the program evaluates it. These are JAX's names, for what reads its files.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshrt.config import settings
from meshrt.core.dimensions.expression import Dim, DimExpr, is_symbolic_dim
from meshrt.core.dimensions.solving import Requirement, Solution
from meshrt.lowering.size_writer import SizeWriter
from meshrt.lowering.sizes import PLATFORM_INDEX, GlobalConstants, plain, with_global_constants
from propagation.asm import FunctionWriter, ModuleWriter, Ref
from propagation.quoting import quote

__all__ = ["WRAPPED", "add_global_constants"]

WRAPPED = "_wrapped_jax_export_main"
# Beyond this many, consumers of the custom call do not look at numbers for its message.
_MAX_NUMBERS = 32


def add_global_constants(
    writer: ModuleWriter, solution: Solution | None, kept: Sequence[int], *, several_platforms: bool
) -> None:
    """Gives the functions of a module their platform's index and the variables of their sizes.

    `solution` is None where no size is symbolic; `kept` are the arguments, by number, that `@main` has.
    """
    values = {} if solution is None else solution.values
    scope = next((v.scope for v in values.values() if is_symbolic_dim(v)), None)
    integer = "i64" if settings.enable_x64 else "i32"
    constants = GlobalConstants(tuple(values), scope, integer, several_platforms)
    main = next(f for f in writer.functions if f.public)
    with_global_constants(writer, constants)
    if solution is not None:
        _wrap(writer, main, constants, solution, kept)


def _wrap(
    writer: ModuleWriter, main: FunctionWriter, constants: GlobalConstants, solution: Solution, kept: Sequence[int]
) -> None:
    count = len(constants.names)
    outer = writer.function("main", [a.type for a in main.args[count:]], public=True, loc=main.loc)
    outer.arg_attrs, outer.result_attrs = main.arg_attrs[count:], main.result_attrs
    # What is said of donation and of names concerns the caller.
    main.name, main.public = WRAPPED, False
    main.arg_attrs = [a if i < count else _without_donation(a) for i, a in enumerate(main.arg_attrs)]
    args = list(outer.args)
    leading = []
    if constants.names[:1] == (PLATFORM_INDEX,):
        leading = [Ref(outer.fresh(), constants.type_of(PLATFORM_INDEX))]
        outer.args[:0], outer.arg_attrs[:0] = leading, [f'jax.global_constant = "{PLATFORM_INDEX}"']
    place = {i: k for k, i in enumerate(kept)}
    first = len(args) - len(kept)
    sizes = {}
    for unknown in solution.unknowns:
        found = outer.op(
            "stablehlo.get_dimension_size", [args[first + place[unknown.argument]]], ["tensor<i32>"],
            f"dimension = {unknown.dim} : i64",
        )  # fmt: skip
        sizes[unknown.name] = _as_integer(outer, found, constants.integer)
    compute = SizeWriter(outer, sizes, constants.integer)
    for requirement in solution.requirements:
        _assert(outer, compute, requirement)
    variables = [compute.size(solution.values[n]) for n in constants.names if n != PLATFORM_INDEX]
    kinds = [plain(t) for t in main.result_types]
    results = outer.ops("func.call", [*leading, *variables, *args], kinds, f"callee = @{WRAPPED}")
    attrs = outer.result_attrs
    outer.ret(results)
    outer.result_attrs = attrs
    main.result_attrs = [""] * len(kinds)
    writer.functions.insert(0, writer.functions.pop())


def _as_integer(body: FunctionWriter, size: Ref, integer: str) -> Ref:
    return size if integer == "i32" else body.op("stablehlo.convert", [size], [f"tensor<{integer}>"])


def _without_donation(attrs: str) -> str:
    kept = [a for a in attrs.split(", ") if not a.startswith(("tf.aliasing_output", "jax.buffer_donor"))]
    return ", ".join(kept)


def _assert(body: FunctionWriter, compute: SizeWriter, requirement: Requirement) -> None:
    left, right = compute.size(requirement.left), compute.size(requirement.right)
    holds = compute.compare(left, right, "EQ" if requirement.is_equality else "GE")
    text, numbers = _message(requirement.message)
    body.ops(
        "stablehlo.custom_call", [holds, *[compute.size(n) for n in numbers]], (),
        'call_target_name = "shape_assertion", has_side_effect = true, api_version = 2 : i32, backend_config = ""',
        (), "", f"error_message = {quote(text)}",
    )  # fmt: skip


def _message(parts: Sequence[str | Dim]) -> tuple[str, list[Dim]]:
    """The message with `{0}`, `{1}`, ... for numbers, and those."""
    numbers: dict[Dim, str] = {}
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
        elif not isinstance(part, DimExpr):
            text += str(part)
        elif part in numbers or len(numbers) < _MAX_NUMBERS:
            text += numbers.setdefault(part, f"{{{len(numbers)}}}")
        else:
            text += "N/A"
    return text, list(numbers)
