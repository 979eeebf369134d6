"""The table of operations: complete, without contradictions, and read by name."""

import jaxlib.mlir.dialects._chlo_ops_gen as chlo
import jaxlib.mlir.dialects._sdy_ops_gen as sdy
import jaxlib.mlir.dialects._stablehlo_ops_gen as stablehlo
import pytest

from propagation import ops


@pytest.mark.parametrize("dialect", [stablehlo, chlo, sdy], ids=["stablehlo", "chlo", "sdy"])
def test_every_operation_of_the_dialects_has_a_row(dialect):
    classes = [c for c in vars(dialect).values() if isinstance(c, type) and hasattr(c, "OPERATION_NAME")]
    names = {c.OPERATION_NAME for c in classes}
    assert len(names) > 10
    assert names - set(ops.OPS) == set()


def test_names_stand_once():
    rows = [*ops._STABLEHLO, *ops._CHLO, *ops._SDY, *ops._FUNC]
    assert len(rows) == len(ops.OPS)


def test_traits_agree():
    for name, row in ops.OPS.items():
        traits = row.traits
        assert "permuting" not in traits or "rearranging" in traits, name
        assert not {"linear", "multilinear"} <= traits, name
        assert "contraction" not in traits or "multilinear" in traits, name
        assert "control" not in traits or "data_flow" in traits, name
        assert not {"pointwise", "rearranging"} <= traits, name
        assert "message" not in traits or "impure" in traits, name


def test_plain_operations_are_known_and_plain():
    for name, plain in ops.PLAIN.items():
        assert plain in ops.OPS, name
        assert plain not in ops.PLAIN, name


def test_having_takes_several_traits_and_knows_them():
    assert ops.having("contraction", "windowed") == {"stablehlo.convolution", "stablehlo.dynamic_conv"}
    with pytest.raises(ValueError, match="no trait of operations is called elementwise; there are"):
        ops.having("elementwise")


def test_reductions_of_booleans_are_reductions():
    kinds = {row.kind for row in ops.REDUCTIONS.values()}
    assert {row.of_booleans for row in ops.REDUCTIONS.values()} <= kinds
    assert set(ops.REDUCTIONS) <= ops.POINTWISE
