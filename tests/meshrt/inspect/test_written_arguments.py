"""`--args`: arguments of a function as a text."""

import json
import os

import numpy as np
import pytest

from meshrt.errors import InspectError
from meshrt.inspect.target import lower_target
from meshrt.inspect.written_arguments import WrittenArguments, dtype_of

MESH = {"data": 4, "model": 2}
SCRIPT = """
import jax
import meshrt.numpy as jnp

def predict(params, x, *, rate=1.0):
    return jnp.tanh(x @ params["w"] + params["b"][0]) * rate

@jax.jit
def theirs(x, w):
    return x @ w

def shapes():
    return (jax.ShapeDtypeStruct((8,), "float32"),)

VALUES = (jax.ShapeDtypeStruct((8,), "float32"),)
double = lambda x: 2 * x
"""


def made(text, mesh=MESH):
    return WrittenArguments(text).made(mesh, lambda shape, dtype, axes: (shape, dtype.name, axes))


def test_arrays_values_and_keywords(tmp_path):
    tree = tmp_path / "tree.json"
    tree.write_text(json.dumps({"w": "f32[64@data+model,2]", "b": ["bf16[3]", 7, None, "mean"]}))
    args, kwargs = made(f'f32[8@data,128], i32[], 3, "a,b", {tree}, rate=0.5, state={{"x": "u8[2]"}}, flag=true')
    assert args[:4] == (((8, 128), "float32", (("data",), ())), ((), "int32", ()), 3, "a,b")
    assert args[4] == {
        "w": ((64, 2), "float32", (("data", "model"), ())),
        "b": [((3,), "bfloat16", ((),)), 7, None, "mean"],
    }
    assert kwargs == {"rate": 0.5, "state": {"x": ((2,), "uint8", ((),))}, "flag": True}
    assert made("") == ((), {})


@pytest.mark.parametrize(
    "text, message",
    [
        ("f32[8,x]", "'x' in f32\\[8,x\\] is no size"),
        ("f32[-8]", "is no size"),
        ("q32[8]", "no element type 'q32'"),
        ("f32[8@rows]", "names axis 'rows'; the mesh has data, model"),
        ("f32[8@data,8@data]", "names an axis twice"),
        ("f32[6@data]", "size 6 does not divide by 4"),
        ("f32[8],,f32[8]", "nothing stands between two commas"),
        ("f32", "'f32' is no argument"),
        ("f32[8", "is no argument"),
        ("x=f32[8],f32[8]", "positional ones come first"),
        ("x=f32[8],x=f32[8]", "'x' is given twice"),
        ("none.json", "none.json: No such file"),
    ],
)
def test_what_is_none_ends_in_one_line(text, message):
    with pytest.raises(InspectError, match=message) as error:
        made(text)
    assert "\n" not in str(error.value)


def test_files_that_are_none(tmp_path):
    path = tmp_path / "a.json"
    for content, message in [(b"{", "not JSON"), (b"\xff", "not JSON"), (b'["f32[8@rows]"]', "names axis 'rows'")]:
        path.write_bytes(content)
        with pytest.raises(InspectError, match=message) as error:
            made(str(path))
        assert str(path) in str(error.value)


def test_files_that_do_not_end(tmp_path):
    deep, pipe = tmp_path / "deep.json", tmp_path / "pipe.json"
    deep.write_text("[" * 200_000)
    os.mkfifo(pipe)
    for path, message in [(deep, "nested too deeply"), (pipe, "is a pipe"), (tmp_path / "none.json", "No such file")]:
        with pytest.raises(InspectError, match=message):
            made(str(path))
    for text in ("[" * 200_000 + "]" * 200_000, "f32[" + "9" * 5000 + "]", "9" * 5000):
        with pytest.raises(InspectError, match=r"is no argument|is no size"):
            made(text)


def test_names_of_element_types():
    names = {"f32": "float32", "s32": "int32", "pred": "bool", "c64": "complex64", "f8_e4m3fn": "float8_e4m3fn"}
    assert {name: dtype_of(name).name for name in names} == names
    assert dtype_of("float64") == np.float64


def test_functions_take_them(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    (tmp_path / "params.json").write_text('{"w": "f32[64,32@model]", "b": ["f32[32]"]}')
    text = f"{tmp_path}/params.json, f32[16@data,64], rate=f32[]"
    lowered = lower_target(path, "predict", MESH, WrittenArguments(text))
    assert [str(s.spec) for s in lowered.propagate().partition().out_shardings] == ["P('data', 'model')"]
    foreign = lower_target(path, "theirs", MESH, WrittenArguments("f32[16@data,64],f32[64,8]"))
    assert "16x64xf32" in foreign and '"data"' in foreign
    for hook in ("shapes", "VALUES"):
        assert "tensor<8xf32>" in lower_target(path, "double", MESH, hook).as_text()
    with pytest.raises(InspectError, match=r"script.py has no others; write .*--factory.*--args"):
        lower_target(path, "double", MESH, "others")
    with pytest.raises(InspectError, match=r"missing 1 required positional argument: 'x'"):
        lower_target(path, "predict", MESH, WrittenArguments("f32[8]"))
