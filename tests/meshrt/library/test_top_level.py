"""Names of JAX's top level and of its errors: what they give beside JAX's."""

import importlib.metadata
import warnings

import jax
import numpy as np
import pytest

import meshrt
from tests.meshrt.beside import assert_alike

ERRORS = [
    n for n, c in vars(jax.errors).items() if isinstance(c, type) and n != "InconclusiveDimensionOperation"
]  # that one is of shapes with unknown sizes


@pytest.mark.parametrize("name", ERRORS)
def test_errors_derive_from_what_jaxs_do(name):
    ours, theirs = getattr(meshrt.errors, name), getattr(jax.errors, name)
    for base in theirs.__mro__[1:]:
        if base.__module__ == "builtins":
            assert issubclass(ours, base)
        elif base.__name__ in ERRORS:
            assert issubclass(ours, getattr(meshrt.errors, base.__name__))


def test_each_way_of_asking_for_a_traced_value_has_its_error():
    ways = [bool, int, float, complex, lambda x: [0][x], np.asarray, lambda x: np.arange(3)[x], lambda x: x[x > 0]]

    def program(lib, way):
        with pytest.raises(Exception) as e:
            lib.jit(way)(np.arange(2) if way is ways[-1] else 1)
        return [n for n in ERRORS if isinstance(e.value, getattr(lib.errors, n))]

    for way in ways:
        missing = set(program(jax, way)) - set(program(meshrt, way))
        assert not missing


PROGRAMS = {
    "branches": lambda lib: lambda x: x * 2 if _known(lib, lambda: lib.numpy.sin(3.0) > 0) else x,
    "loops": lambda lib: lambda x: x + sum(int(i) for i in _known(lib, lambda: lib.numpy.arange(3) + 1)),
    "traced values": lambda lib: lambda x: _known(lib, lambda: lib.numpy.sin(x) * lib.numpy.ones(2)),
    "random": lambda lib: lambda x: x + float(_known(lib, lambda: lib.random.uniform(lib.random.key(0)))),
    "jit": lambda lib: lambda x: x + float(_known(lib, lambda: lib.jit(lib.numpy.cos)(1.0))),
    "inner grad": lambda lib: lambda x: x + float(_known(lib, lambda: lib.grad(lib.numpy.cos)(1.0))),
    "refused": lambda lib: lambda x: x if _known(lib, lambda: lib.numpy.sin(x) > 0) else -x,
}


def _known(lib, compute):
    with lib.ensure_compile_time_eval():
        return compute()


@pytest.mark.parametrize("name", PROGRAMS)
def test_ensure_compile_time_eval(name):
    assert_alike(lambda lib: lib.jit(PROGRAMS[name](lib))(1.5))
    if name not in ("refused", "traced values"):
        assert_alike(lambda lib: lib.vmap(lib.grad(PROGRAMS[name](lib)))(np.ones(2)))


def test_named_axes_in_ensure_compile_time_eval():
    program = lambda lib: lambda x: _known(lib, lambda: lib.lax.axis_index("i")) + x
    assert_alike(lambda lib: lib.vmap(program(lib), axis_name="i")(np.ones(3, np.int32)))


def test_processes_by_old_and_new_names():
    assert_alike(lambda lib: lib.process_indices())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (meshrt.host_id(), meshrt.host_count(), meshrt.host_ids()) == (0, 1, [0])
    with pytest.warns(DeprecationWarning, match="process_count"):
        meshrt.host_count("cpu")


def test_environment_and_version(capsys, monkeypatch):
    monkeypatch.setenv("MESHRT_LOG_COMPILES", "0")
    text = meshrt.print_environment_info(return_string=True)
    assert f"meshrt: {meshrt.version.__version__}" in text and "MESHRT_LOG_COMPILES=0" in text
    assert meshrt.print_environment_info() is None and capsys.readouterr().out.startswith("meshrt: ")
    assert meshrt.__version__ == meshrt.version.__version__ == importlib.metadata.version("meshrt")
    assert meshrt.__version_info__ == meshrt.version.__version_info__ == (0, 1, 0)
