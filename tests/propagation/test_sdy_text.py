"""The one reader and the one writer of `sdy` text."""

import pytest

from propagation.errors import ModuleParseError
from propagation.parsing import parse
from propagation.quoting import quote, unquote
from propagation.sdy_text import (
    AxisText,
    MeshText,
    axes_in,
    axis_text,
    dim_text,
    mesh_text,
    read_mesh,
    read_sharding,
    read_shardings,
    sharding_text,
)

NAMES = ["data", 'a"b', "back\\slash", "\\41", "é", "p1", "new\nline", "x y"]


@pytest.mark.parametrize("name", NAMES)
def test_names_survive(name):
    assert unquote(quote(name)[1:-1]) == name
    assert read_mesh(mesh_text([(name, 4)])) == MeshText(((name, 4),))
    text = sharding_text(name, [dim_text([axis_text(name, 2, 2)], True, 3)], [axis_text("r")], [axis_text(name)])
    found = read_sharding(text)
    assert (found.mesh, found.replicated, found.unreduced) == (name, (AxisText("r"),), (AxisText(name),))
    assert found.dims == (((AxisText(name, 2, 2),), True, 3),)


@pytest.mark.parametrize("name", NAMES)
def test_mlir_reads_and_writes_the_same(name):
    """What MLIR prints of what is written here is read as what was written."""
    mesh = mesh_text([(name, 8), ("other", 2)], range(15, -1, -1))
    sharding = sharding_text("m", [dim_text([axis_text(name, 1, 2)], True, 1), dim_text([])], [axis_text("other")])
    module = parse(
        f"sdy.mesh @m = {mesh}\n"
        f"func.func @main(%x: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding{sharding}}}) {{ return }}"
    )
    declared, func = module.body.operations
    assert read_mesh(str(declared.attributes["mesh"])) == read_mesh(mesh)
    printed = str(func.arg_attrs[0]["sdy.sharding"])
    assert read_sharding(printed) == read_sharding(sharding)
    assert printed == f"#sdy.sharding{sharding}" or "\\" in name  # MLIR doubles these


def test_every_form_of_a_sharding():
    bare = read_sharding('[{"a", ?}, {?}, {}p2], unreduced={"b"}')
    assert bare.mesh is None and [d.is_open for d in bare.dims] == [True, True, False] and bare.dims[2].priority == 2
    assert read_sharding('#sdy.sharding<@m, [], unreduced=max{"b"}>').reduction == "max"
    inlined = read_sharding('#sdy.sharding<mesh<["a"=2], device_ids=[1, 0]>, [{"a"}]>')
    assert inlined.mesh == MeshText((("a", 2),), (1, 0))
    assert read_sharding("#sdy.sharding<mesh<[], device_ids=[3]>, []>").mesh == MeshText((), (3,))
    lists = read_shardings('#sdy.sharding_per_value<[<@m, [{"a"}]>, <@n, []>]>')
    assert [s.mesh for s in lists] == ["m", "n"] and read_shardings("#sdy.sharding_per_value<[]>") == ()
    assert read_mesh("sdy.mesh @m = <[a=4, b=2]>") == read_mesh('#sdy.mesh<["a"=4, "b"=2]>')
    assert axes_in('#sdy<list_of_axis_ref_lists[{"a", "b":(1)2}, {}]>') == [AxisText("a"), AxisText("b", 1, 2)]


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "expected '<', found 'its end'"),
        ("#sdy.mesh<[]>", "it is an #sdy.mesh, not an #sdy.sharding"),
        ('[{"a" "b"}]', "expected '}', found '\"b\"'"),
        ('[{"a",}]', "expected a string, found '}'"),
        ('[{?, "a"}]', "expected '}', found ','"),
        ("[{a}]", "expected a string, found 'a'"),
        ('[{"a"}', "expected ',', found 'its end'"),
        ('[{"a"}] x', "'x' stands behind its end"),
        ('[{"a"}], open={"a"}', "expected 'replicated' or 'unreduced', found 'open'"),
        ('[{"a"}]; drop', "nothing there begins with '; drop'"),
    ],
)
def test_what_is_no_sharding(text, problem):
    with pytest.raises(ModuleParseError) as e:
        read_sharding(text, "model.py:7")
    assert str(e.value) == f"model.py:7: cannot read {text!r} as sdy text: {problem}"


def test_long_texts_are_shown_in_part():
    """300 characters of them; those that have no more are whole."""
    for size, shown in ((299, "x" * 299), (300, "x" * 300), (301, "x" * 300 + "...")):
        with pytest.raises(ModuleParseError, match=f"cannot read '{shown}' as sdy text"):
            read_sharding("x" * size)


def test_device_ids():
    for ids in ((), (0,), (3, 1, 2, 0), tuple(range(2000))):
        for text in (", ".join(map(str, ids)), " " + " , ".join(map(str, ids)) + " ", ",".join(map(str, ids))):
            assert read_mesh(f'<["a"=4], device_ids=[{text}]>') == MeshText((("a", 4),), ids)
    with pytest.raises(ModuleParseError):
        read_mesh('<["a"=4], device_ids=[x]>')
