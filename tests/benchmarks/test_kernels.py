"""The figures of kernels need the compiler for TPUs, and say so where it is missing."""

import importlib.util

import pytest

from benchmarks import kernels

HAS_COMPILER = importlib.util.find_spec("libtpu") is not None


@pytest.mark.skipif(HAS_COMPILER, reason="libtpu is installed")
def test_without_the_compiler_a_line_says_so(capsys):
    assert kernels.main([]) == 0
    assert "skipped" in capsys.readouterr().out


@pytest.mark.tpu
@pytest.mark.skipif(not HAS_COMPILER, reason="needs libtpu")
def test_kernels_move_less_and_send_nothing_by_collectives(capsys):
    assert kernels.main(["--small"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9 and all("kernel" in a and "arrays" in b for a, b in zip(lines[1::2], lines[2::2]))
    _, moved, _, sent = zip(*(map(float, line.split()[-4:]) for line in lines[1:]))
    assert moved[0] < moved[1] and moved[2] < moved[3]  # attention, and its derivative
    assert sent[4] == sent[6] == 0 < min(sent[5], sent[7])  # rings
