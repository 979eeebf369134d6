"""What programs that walk over Jaxprs ask of them, as of JAX's: other programs made of them, their text."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.ad_checkpoint
import jax.extend
import pytest

import meshrt
import meshrt.ad_checkpoint
import meshrt.extend
import meshrt.lax
from meshrt.core.jaxpr import Style
from tests.meshrt.beside import assert_alike


def _program(library: Any) -> Any:
    def f(x: Any) -> Any:
        with library.named_scope("outer"):
            y = library.numpy.sin(x)
            y = library.lax.cond(y > 0, lambda a: library.numpy.cos(a) * 2, lambda a: a, y)
        return library.jit(lambda q: q * 2 + 3)(y)

    return library.make_jaxpr(f)(1.0)


@pytest.mark.parametrize("style", [
    {}, {"source_info": True}, {"name_stack": True}, {"source_info": True, "name_stack": True},
    {"print_shapes": False}, {"width": 30}, {"print_effects": True},
], ids=str)  # fmt: skip
def test_text_is_that_of_jax(style: dict[str, Any]) -> None:
    assert _program(meshrt).pretty_print(**style) == _program(jax).pretty_print(**style)


class _Table(tuple[int, ...]):
    def __repr__(self) -> str:
        return "\n".join(map(str, self))


def test_notes_stand_at_their_lines_where_a_parameter_has_several() -> None:
    tabled = meshrt.extend.core.Primitive("tabled")
    tabled.def_abstract_eval(lambda x, **_: x)

    def f(x: Any) -> Any:
        return meshrt.numpy.sin(tabled.bind(meshrt.numpy.cos(x), rows=_Table(range(9))))

    lines = meshrt.make_jaxpr(f)(1.0).pretty_print(source_info=True).split("\n")
    noted = [line.partition(" # ")[0].rstrip() for line in lines if " # " in line]
    assert noted == ["    b:f32[] = cos a", "    c:f32[] = tabled[rows=0", "    d:f32[] = sin c"]
    assert len({line.index(" # ") for line in lines if " # " in line}) == 1
    assert [line for line in lines if " # " not in line][1:9] == [*"1234567", "8] b"]


def test_effects_stand_behind_the_results() -> None:
    closed = meshrt.make_jaxpr(lambda x: (meshrt.debug.print("{}", x), x)[1])(1.0)
    assert closed.pretty_print(print_effects=True).endswith("in (a,) : { Debug } }")
    assert "Debug }" not in closed.pretty_print()


def test_colours_change_nothing_else() -> None:
    closed = _program(meshrt)
    coloured = closed.pretty_print(use_color=True)
    assert "\x1b[34;1mlambda" in coloured and "\x1b[35m:f32[]" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == str(closed)


def test_an_unknown_style_is_refused() -> None:
    with pytest.raises(TypeError, match="shapes"):
        _program(meshrt).pretty_print(shapes=False)
    assert Style._fields == ("source_info", "print_shapes", "custom_pp_eqn_rules", "name_stack", "print_effects")


def _shorter(library: Any) -> Any:
    """The first equation alone, by another primitive."""
    closed = library.make_jaxpr(lambda x: library.numpy.sin(x) * 2)(1.0)
    jaxpr, first = closed.jaxpr, closed.jaxpr.eqns[0].replace(primitive=library.lax.cos_p)
    made = jaxpr.replace(eqns=[first], outvars=first.outvars)
    return closed.replace(jaxpr=made)


def test_a_program_made_of_another() -> None:
    assert str(_shorter(meshrt)) == str(_shorter(jax))
    assert_alike(lambda lib: lib.extend.core.jaxpr_as_fun(_shorter(lib))(1.0))


def _rebuilt(library: Any) -> Any:
    closed = library.make_jaxpr(lambda x: library.lax.sin(x))(1.0)
    jaxpr = closed.jaxpr
    parts = (jaxpr.constvars, jaxpr.invars, jaxpr.outvars, jaxpr.eqns, jaxpr.effects, jaxpr.debug_info)
    made = library.extend.core.Jaxpr(*parts)
    return made, made.debug_info.func_name


def test_the_constructor_takes_what_that_of_jax_takes() -> None:
    (ours, name), (theirs, their_name) = _rebuilt(meshrt), _rebuilt(jax)
    assert (str(ours), name) == (str(theirs), their_name)


def test_map_jaxpr_keeps_the_constants() -> None:
    array = meshrt.numpy.arange(3.0)
    closed = meshrt.make_jaxpr(lambda x: x + array)(1.0)
    made = closed.map_jaxpr(lambda jaxpr: jaxpr.replace(outvars=jaxpr.invars))
    assert made.consts[0] is array and str(made).endswith("in (b,) }")


def _named(library: Any) -> Any:
    def f(x: Any, w: Any) -> Any:
        h = library.ad_checkpoint.checkpoint_name(library.numpy.sin(x["a"] @ w), "h")
        return library.numpy.sum(library.numpy.cos(h @ w))

    return f


@pytest.mark.parametrize("policy", [
    None, "everything_saveable", "nothing_saveable", "dots_saveable", "names", "checkpoint",
])  # fmt: skip
def test_what_is_saved_is_told_as_jax_tells_it(policy: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for library in (meshrt, jax):
        fun, policies = _named(library), library.checkpoint_policies
        if policy == "names":
            fun = library.checkpoint(fun, policy=policies.save_only_these_names("h"))
        elif policy is not None:
            fun = library.checkpoint(fun, policy=getattr(policies, policy, None))
        x, w = library.numpy.ones((2, 3)), library.numpy.ones((3, 3))
        library.ad_checkpoint.print_saved_residuals(fun, {"a": x}, w)
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    assert "from the argument x['a']" in told[0]


def test_a_policy_that_answers_otherwise_is_refused() -> None:
    assert_alike(lambda lib: lib.grad(lib.checkpoint(lib.numpy.sin, policy=lambda *a, **k: "no"))(1.0))
