"""platform_dependent: only the branch of the program's platform is written; errors."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as mnp
from meshrt import lax
from meshrt.core.primitive import Primitive

X = np.arange(3, dtype=np.float32)


def chosen(x):
    return lax.platform_dependent(x, cuda=lax.tanh, tpu=lax.tanh, cpu=lax.sin, default=lax.cos)


@pytest.mark.parametrize(
    "program",
    [
        chosen,
        meshrt.vmap(chosen),
        meshrt.jit(chosen),
        meshrt.grad(lambda x: mnp.sum(meshrt.jit(chosen)(x))),
        meshrt.grad(lambda x: mnp.sum(meshrt.checkpoint(chosen)(x))),
        lambda x: lax.scan(lambda c, y: (chosen(c), chosen(y)), x[0], x),
    ],
    ids=["plain", "vmap", "jit", "grad of jit", "grad of checkpoint", "scan"],
)
def test_no_other_branch_is_written(program) -> None:
    text = meshrt.jit(program).lower(X).as_text()
    assert "sine" in text
    assert not any(word in text for word in ("stablehlo.case", "tanh"))


def test_eager_calls_run_only_their_branch() -> None:
    np.testing.assert_allclose(chosen(X), np.sin(X), rtol=1e-6)
    assert lax.platform_dependent(cpu=lambda: 1, default=lambda: "of any kind") == 1


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        lambda lax, x: lax.platform_dependent(x, cuda=lax.sin),
        lambda lax, x: lax.platform_dependent(x, gpu=lax.sin),
        lambda lax, x: lax.platform_dependent(x, cpu=3),
        lambda lax, x: lax.platform_dependent(x, default=3),
    ],
    ids=["no branch", "gpu", "not callable", "default not callable"],
)
def test_errors_are_of_jaxs_classes(call, traced: bool) -> None:
    raised = []
    for library in (jax, meshrt):
        function = lambda x, library=library: call(library.lax, x)
        with pytest.raises((TypeError, ValueError, NotImplementedError)) as info:
            (library.jit(function) if traced else function)(X)
        raised.append(info.value)
    assert isinstance(
        raised[1], next(c for c in (TypeError, ValueError, NotImplementedError) if isinstance(raised[0], c))
    )


@pytest.mark.parametrize("library", [jax, meshrt])
def test_there_must_be_something_to_choose(library) -> None:
    with pytest.raises(NotImplementedError):
        library.lax.platform_dependent(X)


def test_what_one_platform_has_need_not_be_writable_for_others():
    """Each branch is written for its platforms alone."""

    def only_on(name):
        def lower(ctx, eqn, x):
            assert ctx.module.platforms == (name,), ctx.module.platforms
            return ctx.op("stablehlo.negate", [x], eqn.outvars[0].aval)

        return Primitive(f"only_on_{name}", lambda x: x, lower=lower).bind

    f = lambda x: lax.platform_dependent(x, cuda=only_on("cuda"), tpu=only_on("tpu"), default=lax.cos)
    lowered = meshrt.jit(f).trace(np.float32(1)).lower(lowering_platforms=("cpu", "cuda", "tpu"))
    assert lowered.as_text().count("stablehlo.negate") == 2
