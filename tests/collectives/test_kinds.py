"""The records of collectives: they agree with the operations, with each other, and one file adds one."""

from __future__ import annotations

import subprocess
import sys

import pytest

import collectives
from collectives.cost import sent_bytes
from collectives.kinds import by_op, kind_of, kinds
from propagation import ops


def test_every_operation_that_communicates_has_a_kind():
    # An older form of `all_reduce`, and one that only newer versions of the dialect have.
    without = {"stablehlo.cross-replica-sum", "stablehlo.collective_reduce"}
    assert set(by_op()) == ops.COMMUNICATING - without
    for name, kind in by_op().items():
        assert name == f"stablehlo.{kind.name}"
        assert kind.reduces == ("reducing" in ops.OPS[name].traits)


@pytest.mark.parametrize("name", kinds())
def test_records_agree_with_each_other(name):
    kind = kind_of(name)
    assert kind.hlo == name.replace("_", "-")
    assert kind.sent(8, 0.0) == 0.0 and kind.sent(8, 1024.0) > 0
    assert kind.pairs or sent_bytes(name, 1, 1024.0) == 0.0
    if kind.transpose is not None:
        back = kind_of(kind.transpose)
        assert back.transpose == name
        # What is sent forward and what is sent back are as many bytes: the transpose's operand is the result.
        result = 1024.0 * 1024.0 / kind.operand_bytes(8, 1024.0)
        assert back.sent(8, result) == pytest.approx(kind.sent(8, 1024.0))


def test_what_a_group_sends_is_at_least_what_it_lacks():
    """A gather brings each device the others' operands, an exchange all but its own part."""
    for n in (2, 3, 8):
        assert sent_bytes("all_gather", n, 6.0) == (n - 1) * 6.0
        assert sent_bytes("all_to_all", n, 6.0 * n) == (n - 1) * 6.0
        assert sent_bytes("all_reduce", n, 6.0 * n) == 2 * sent_bytes("reduce_scatter", n, 6.0 * n)


# kind: (gathers, scatters, sums, dimensions, operand of a result of 24 bytes in groups of 4, what a device sends for
# an operand of 24 bytes)
FACTS = {
    "all_gather": (True, False, False, ("all_gather_dim",), 6.0, 72.0),
    "reduce_scatter": (False, True, False, ("scatter_dimension",), 96.0, 18.0),
    "all_reduce": (False, False, True, (), 24.0, 36.0),
    "all_to_all": (False, False, False, ("split_dimension", "concat_dimension"), 24.0, 18.0),
    "ragged_all_to_all": (False, False, False, (), 24.0, 18.0),
    "collective_permute": (False, False, False, (), 24.0, 24.0),
    "collective_broadcast": (False, False, False, (), 24.0, 24.0),
}


@pytest.mark.parametrize("name", FACTS)
def test_what_a_collective_does_with_its_operand(name):
    kind = kind_of(name)
    facts = kind.gathers, kind.scatters, kind.sums, kind.dimensions, kind.operand_bytes(4, 24.0), kind.sent(4, 24.0)
    assert facts == FACTS[name] and set(FACTS) == set(kinds())
    assert kind.groups_attribute == ("source_target_pairs" if name == "collective_permute" else "replica_groups")
    sizes = [kind.result_size(4, 24, *ends) for ends in ((False, False), (True, False), (False, True), (True, True))]
    assert sizes == [24, 6, 96, 24]


BROADCAST = """
sdy.mesh @m = <["x"=4, "y"=2]>
func.func @main(%a: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@m, [{"x", "y"}, {}]>})
    -> (tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@m, [{"x", "y"}, {}]>}) {
  %0 = sdy.manual_computation(%a) in_shardings=[<@m, [{"x", "y"}, {}]>] out_shardings=[<@m, [{"x", "y"}, {}]>]
      manual_axes={"x", "y"} (%b: tensor<1x6xf32>) {
    %1 = "stablehlo.collective_broadcast"(%b) {replica_groups = dense<[[0, 2, 4, 6], [3, 1, 5, 7]]> : tensor<2x4xi64>}
      : (tensor<1x6xf32>) -> tensor<1x6xf32>
    sdy.return %1 : tensor<1x6xf32>
  } : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %0 : tensor<8x6xf32>
}"""


def test_a_broadcast_of_the_program_is_planned():
    """(Compilers of CPUs have none, so that nothing is run.)"""
    result = collectives.partition(BROADCAST)
    (entry,) = result.plan
    assert (entry.kind, entry.groups, entry.group_size, entry.bytes) == ("collective_broadcast", 2, 4, 6 * 4)
    assert "stablehlo.collective_broadcast" in str(result.module)


# A collective that nobody has: members of a group exchange half of their operand with the next one.
SWAP = '''
"""Half of each device's operand goes to the next device of its group."""

from collectives.kinds.record import CollectiveKind

KIND = CollectiveKind(
    "half_swap", "half-swap", lambda n, operand: operand / 2, "shift", "stablehlo.half_swap", transpose="half_swap",
)
'''
USE = '''
import sys
import collectives.kinds

collectives.kinds.__path__.append(sys.argv[1])  # as if the file lay there

import numpy as np
from collectives.cost import seconds, sent_bytes
from collectives.ir.program import Collective, ModuleBuilder
from collectives.kinds import kind_of
from collectives.layout import Atoms
from collectives.network import Link
from collectives.optimize import optimize
from collectives.options import Options
from collectives.passes.compilers.cpu import as_bits
from collectives.machine import machine_of
from collectives.passes.varying import varying
from collectives.plan import plan_of
from collectives.ir.printer import program_text
from collectives.reshard.realise import Realiser
from collectives.topology import Topology
from meshrt.runtime.hlo import collectives as read
from propagation.model import Mesh

assert sent_bytes("half_swap", 4, 64.0) == 32.0
assert seconds("half_swap", 4, 64.0, Link(1e-6, 1e9)) == 1e-6 + 32e-9

atoms = Atoms(Mesh("m", (("x", 4),)))
for dtype in ("f32", "bf16"):
    builder = ModuleBuilder("m", "mhlo.num_replicas = 4 : i32")
    main = builder.function("main", [((4, 2), dtype), ((4, 3), dtype)], True, "")
    main.layouts = (((0,), ()), ((0,), ()))
    realiser = Realiser(atoms, builder)
    groups = realiser.groups((0,))
    main.results = [
        realiser.collective(main.region, "half_swap", (0,), x, x.shape, groups, (), None, "by hand", "")
        for x in main.region.args
    ]
    assert all(not found for r, found in varying(main).items() if r.item is not None)  # nothing is known of it
    machine = machine_of(atoms, Topology(default=Link(1e-3, 1e12)), Options())
    optimize(builder, realiser, machine, Options())
    plan = plan_of(main, {"main": main}, machine)
    (entry,) = plan
    assert (entry.kind, len(entry.members)) == ("half_swap", 2), plan.as_text()
    item = np.dtype("float32").itemsize if dtype == "f32" else 2
    assert plan.bytes == 4 * 5 * item / 2
    assert "1 half_swap" in plan.as_text()
    assert as_bits(main) == (dtype == "bf16")
    printed = program_text(builder)
    assert printed.count('"stablehlo.half_swap"') == 1 and "replica_groups" in printed

HLO = """HloModule m
ENTRY %main (p: f32[4,2]) -> f32[4,2] {
  %p = f32[4,2]{1,0} parameter(0)
  ROOT %s = f32[4,2]{1,0} half-swap(f32[4,2]{1,0} %p), replica_groups={{0,1,2,3}}
}
"""
(found,) = read(HLO, 4)
assert (found.kind, found.bytes) == ("half_swap", 16.0)

from collectives.walk.families import rules
assert "stablehlo.half_swap" in rules()
'''


def test_a_new_collective_is_one_file(tmp_path):
    (tmp_path / "kinds").mkdir()
    (tmp_path / "kinds" / "half_swap.py").write_text(SWAP)
    command = [sys.executable, "-c", USE, str(tmp_path / "kinds")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
