"""Functions with transformations around them, beside JAX; places of programs that libraries leave out."""

import jax.extend.linear_util as jlu
import pytest

import meshrt as mrt
from meshrt.core import source
from meshrt.extend import linear_util as mlu
from meshrt.extend import source_info_util


def flat(lu):
    @lu.transformation
    def scaled(factor, *args):
        result = yield args, {"bias": 1.0}
        yield result * factor

    @lu.transformation_with_aux
    def counted(*args):
        result = yield args, {}
        yield result, len(args)

    fun = lu.wrap_init(lambda x, y, bias: x * y + bias)
    fun, count = counted(scaled(fun, 10.0))
    return fun.call_wrapped(2.0, 3.0), count()


def test_transformations_by_generators():
    assert flat(mlu) == flat(jlu) == (70.0, 2)


def test_what_a_library_excludes_is_not_named(tmp_path):
    path = tmp_path / "library.py"
    path.write_text("import meshrt.numpy as jnp\n\ndef double(x):\n    return jnp.sin(x) * 2\n")
    space = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    line = lambda: mrt.make_jaxpr(lambda x: space["double"](x))(1.0).eqns[0].source.file
    assert line() == str(path)
    source_info_util.register_exclusion(str(path))
    try:
        assert line() == __file__
        assert __file__ in source_info_util.summarize(source_info_util.current())
    finally:
        source.include(str(path))
    assert line() == str(path)
    with pytest.raises(ValueError, match="not in list"):
        source.include("nowhere")
