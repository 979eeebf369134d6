"""Shapes of modules for which work or memory could grow with the square of their size."""

from __future__ import annotations

import tracemalloc

import pytest

import propagation
from propagation import bytecode, errors

T = "tensor<8x16xf32>"


def _loop(count: int) -> str:
    """A loop that carries `count` values."""
    types, values = ", ".join([T] * count), [f"%b{k}" for k in range(count)]
    args = lambda letter: ", ".join(f"%{letter}{k}: {T}" for k in range(count))
    return f"""sdy.mesh @mesh = <["a"=2]>
    func.func public @main(%x: {T} {{sdy.sharding = #sdy.sharding<@mesh, [{{"a"}}, {{}}]>}}, %i: tensor<i1>) -> {T} {{
      %r:{count} = "stablehlo.while"({", ".join(["%x"] * count)}) ({{ ^bb0({args("c")}):
        stablehlo.return %i : tensor<i1> }}, {{ ^bb0({args("b")}):
        stablehlo.return {", ".join(values)} : {types} }}) : ({types}) -> ({types})
      return %r#0 : {T} }}"""


def _peak(text: str) -> int:
    tracemalloc.start()
    try:
        propagation.run(text)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_for_operations_of_many_results():
    propagation.run(_loop(10))
    small, large = (_peak(_loop(count)) for count in (500, 2000))
    assert large < 6 * small


def test_more_bytecode_may_take_longer(monkeypatch):
    asked = []

    def run(*_, timeout, **__):
        asked.append(timeout)
        raise bytecode.subprocess.TimeoutExpired("", timeout)

    monkeypatch.setattr(bytecode.subprocess, "run", run)
    for size in (1, 50 << 20):
        with pytest.raises(errors.LimitError, match="took more than"):
            bytecode.to_text(bytes(size))
    assert 59 < asked[0] < 61 and 300 < asked[1] < 320
