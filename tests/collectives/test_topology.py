"""Topologies: the files that come along, how a mesh lies over a slice, what a group gets, and what is refused."""

from __future__ import annotations

import math
import re
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import collectives
from collectives.cost import ITEM_BITS, item_bytes, seconds, seconds_to_send, sent_bytes
from collectives.errors import TopologyError
from collectives.network import Digit, Link, Network
from collectives.topology import Topology, known, load
from propagation.model import Mesh

TORUS = Network("torus", (16, 16), 1e-6, 4.5e10, wrap=16)


def mesh(**axes: int) -> Mesh:
    return Mesh("mesh", tuple(axes.items()))


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["v5e", "v5p", "v6e", "h100", "h200", "cpu"])
def test_every_figure_of_a_file_has_its_source_and_the_date_it_was_read(name):
    topology = load(name)
    assert topology.name == name == load(known()[name]).name
    figures = {"flops", "memory_bandwidth"} | ({"network.bandwidth", "network.latency"} if topology.network else set())
    assert figures <= set(topology.sources)
    for figure in figures | ({"memory"} if topology.memory else set()):
        source, date = topology.sources[figure].rsplit(", ", 1)
        assert len(source) > 5 and len(date) == 10
    with known()[name].open("rb") as f:
        data = tomllib.load(f)
    assert data["compiler"] == topology.compiler
    network = data.get("network", {})
    between = network.pop("between", {})
    rows = [r for table in (network, between, data.get("device", {}), data.get("default", {})) for r in table.items()]
    for row, value in rows:
        assert row == "name" or (value["source"] and value["read_on"] and "value" in value), row


def test_a_mesh_axis_covers_digits_of_the_hardware():
    slice_ = load("v5e:16x16").on(mesh(data=32, model=8))
    assert slice_.places == {"model": (Digit(1, 1, 8),), "data": (Digit(0, 1, 16), Digit(1, 8, 2))}
    cube = load("v5p:8x8x8").on(mesh(a=8, b=8, c=8))
    assert [cube.places[n] for n in "abc"] == [(Digit(d, 1, 8),) for d in range(3)]


@settings(deadline=None)
@given(st.permutations([2, 2, 4, 4, 4]), st.integers(1, 4))
def test_the_digits_number_the_chips_as_the_mesh_does(sizes, joined):
    sizes = [math.prod(sizes[:joined]), *sizes[joined:]]
    m = Mesh("mesh", tuple((f"a{i}", n) for i, n in enumerate(sizes)))
    places = load("v5e:16x16").on(m).places
    for axis, place in places.items():
        stride = math.prod(n for i, n in enumerate(sizes) if f"a{i}" > axis)
        for digit in reversed(place):
            assert (16 if digit.dim == 0 else 1) * digit.stride == stride
            stride *= digit.size


def test_rings_lines_and_shared_links():
    ring = TORUS.link((16, 16), [Digit(0, 1, 16)])
    assert (ring.bandwidth, ring.rounds) == (9e10, 8)
    line = TORUS.link((4, 4), [Digit(0, 1, 4)])
    assert (line.bandwidth, line.rounds) == (4.5e10, 3)
    both = TORUS.link((16, 16), [Digit(0, 1, 16), Digit(1, 1, 16)])
    assert (both.bandwidth, both.rounds) == (1.8e11, 16)
    apart = TORUS.link((16, 16), [Digit(1, 4, 4)])
    assert apart.bandwidth == 4.5e10 / 4 and apart.shift == 4.5e10 / 4
    # All-to-all on a ring of n: a quarter of the time in which everybody would get everything.
    everything = seconds("all_gather", 16, 1e9, ring)
    assert seconds("all_to_all", 16, 16e9, ring) > seconds("all_to_all", 16, 1e9, ring)
    assert math.isclose(seconds("all_to_all", 16, 1e9, ring) / everything, 1 / 4, rel_tol=1e-3)


def test_devices_of_one_host_come_before_those_of_the_next():
    hosts = load("h100:8x4").on(mesh(data=8, model=4))
    assert hosts.places == {"model": (Digit(0, 1, 4),), "data": (Digit(1, 1, 4), Digit(0, 4, 2))}
    assert (hosts.spec, hosts.devices) == ("h100:8x4", 32)
    inner, across = hosts.network, hosts.network.between
    assert hosts.link(["model"]) == Link(inner.latency, inner.bandwidth)
    assert load("h100:8x4").on(mesh(data=4, model=8)).link(["data"]) == across
    # 8 members on each host send 8 times what one can, or what their own switch gives; in an all-to-all 24 of 31 parts
    # leave the host.
    everybody = hosts.link(["data", "model"])
    assert everybody.bandwidth == min(inner.bandwidth, 8 * across.bandwidth) and everybody.shift == across.bandwidth
    assert math.isclose(everybody.exchange, across.bandwidth * 31 / 24) and everybody.latency == across.latency
    slices = load("v5e:16x16x2").on(mesh(dcn=2, data=16, model=16))
    assert slices.link(["dcn"]) == slices.network.between and slices.link(["model"]).rounds == 8
    assert slices.link(["dcn", "model"]).rounds == 9 and slices.link(["data"]) == load("v5e:16x16").on(
        mesh(data=16, model=16)
    ).link(["data"])


@settings(deadline=None)
@given(st.integers(0, 3), st.integers(0, 5), st.floats(1e3, 1e9))
def test_hosts_send_no_faster_than_their_ports(members, hosts, sent):
    """A hierarchical all-reduce sends each port's share once around; nothing on a host is slower for more hosts."""
    g, h = 2**members, 2**hosts
    network = Network("switch", (8,), 0.0, 4e11, between=Link(0.0, 5e10))
    link = network.link((8, 64), [Digit(0, 1, g), Digit(1, 1, h)])
    if h == 1:
        assert link == network.link((8,), [Digit(0, 1, g)])
    else:
        assert seconds_to_send("all_reduce", g * h, sent, link) >= sent / (5e10 * g) * (1 - 1e-12)
        through_a_port = sent * (g * h - g) / (g * h - 1) / 5e10  # of what goes to everybody
        assert math.isclose(seconds_to_send("all_to_all", g * h, sent, link), through_a_port)


def test_what_has_one_position_needs_no_links():
    ring = TORUS.link((16, 16), [Digit(0, 1, 16)])
    assert TORUS.link((16, 16), [Digit(0, 1, 16), Digit(1, 4, 1)]) == ring
    assert TORUS.link((16, 1), [Digit(1, 1, 1)]) == TORUS.link((16, 16), []) == Link(1e-6, 4.5e10)
    line = TORUS.link((16, 16), [Digit(0, 2, 4), Digit(0, 8, 2)])  # 8 of 16 positions, every other one
    assert line == Link(1e-6, 4.5e10 / 2, 4 * 4.5e10 / 2 / 8, 4.5e10 / 2, 2 * 7)


def test_everybody_reaches_everybody_over_a_switch():
    switch = Network("switch", (8,), 2e-6, 1e11)
    for digits in ([], [Digit(0, 1, 8)], [Digit(0, 4, 2)]):
        assert switch.link((8,), digits) == Link(2e-6, 1e11)
    assert not switch.closes((8,), 0)


def test_which_dimensions_are_rings():
    """Of multiples of 4 chips: each by itself, all or none, or never."""
    each, whole, never = (Network("torus", (16, 16), 0.0, 1.0, *wrap) for wrap in ((4, False), (4, True), (0, False)))
    table = {(4, 8): (1, 1), (4, 6): (1, 0), (2, 4): (0, 1), (3, 5): (0, 0), (16, 16): (1, 1)}
    for shape, rings in table.items():
        assert tuple(each.closes(shape, d) for d in (0, 1)) == rings
        assert all(whole.closes(shape, d) == all(rings) for d in (0, 1))
        assert not never.closes(shape, 0)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"limits": (16, 0)}, "positive sizes"), ({"limits": (-1, 16)}, "positive sizes"), ({"limits": ()}, "sizes"),
        ({"limits": (16.0,)}, "positive sizes"), ({"limits": (True, 4)}, "positive sizes"),
        ({"kind": "ring"}, "'ring'"),
        ({"wrap": -1}, "wrap of a network"), ({"wrap": 1.0}, "wrap of a network"),
        ({"wrap_all": 1}, "wrap of a network"),
        ({"bandwidth": 0.0}, "bandwidth > 0"), ({"latency": -1.0}, "latency >= 0"), ({"latency": math.inf}, "latency"),
        ({"bandwidth": math.inf}, "bandwidth"), ({"bandwidth": True}, "numbers"), ({"latency": "1"}, "numbers"),
    ],
)  # fmt: skip
def test_networks_that_are_none(fields, says):
    sound = {"kind": "torus", "limits": (1, 16), "latency": 0.0, "bandwidth": 1.0, "wrap": 0, "wrap_all": False}
    Network(**sound)
    with pytest.raises(TopologyError, match=says):
        Network(**{**sound, **fields})


@pytest.mark.parametrize("shape", [(4, 8), (8, 4), (1, 1), (2, 8), (8, 1)])
def test_shapes_are_made_in_any_order_up_to_the_limits(shape):
    small = Network("torus", (4, 8), 0.0, 1.0)
    small.check("x", shape)
    for larger in ((5, 8), (8, 5), (9, 1), (1, 9), (8, 8)):
        with pytest.raises(TopologyError, match="x is made up to 4x8, not"):
            small.check("x", larger)
    for none in ((4,), (4, 8, 2)):
        with pytest.raises(TopologyError, match=r"x has no shape 4.*; write a shape of up to 4x8"):
            small.check("x", none)


def test_seconds_are_latencies_and_bytes_over_the_rate_of_the_pattern():
    link = Link(1.0, 10.0, exchange=5.0, shift=2.0)
    table = {
        "all_gather": (3, 10.0), "reduce_scatter": (3, 10.0), "all_reduce": (6, 10.0), "all_to_all": (1, 5.0),
        "ragged_all_to_all": (1, 5.0), "collective_permute": (1, 2.0), "collective_broadcast": (3, 10.0),
    }  # fmt: skip
    for kind, (steps, rate) in table.items():  # of groups of 8 on a switch
        assert seconds_to_send(kind, 8, 40.0, link) == steps + 40.0 / rate, kind
        assert seconds(kind, 8, 40.0, link) == steps + sent_bytes(kind, 8, 40.0) / rate, kind
        steps_on_a_torus = {"collective_permute": 1, "all_reduce": 14}.get(kind, 7)
        assert seconds_to_send(kind, 8, 40.0, Link(1.0, 10.0, 5.0, 2.0, 7)) == steps_on_a_torus + 40.0 / rate, kind
        assert seconds_to_send(kind, 8, 40.0, Link(1.0, 10.0)) == steps + 4.0, kind  # no rates of their own
        assert seconds(kind, 1, 40.0, link) == (21.0 if kind == "collective_permute" else 0.0)
    assert seconds_to_send("all_gather", 5, 0.0, link) == 3.0  # 2, 4, 8: as many steps as doublings reach them


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("i1", 1.0), ("i2", 0.25), ("ui4", 0.5), ("i8", 1.0), ("bf16", 2.0), ("f32", 4.0), ("tf32", 4.0), ("i64", 8.0),
     ("complex<f64>", 16.0), ("f8E4M3FN", 1.0), ("f4E2M1FN", 0.5), ("f6E3M2FN", 0.75), ("!quant", 1.0)],
)  # fmt: skip
def test_bytes_of_elements(dtype, size):
    assert item_bytes(dtype) == size


def test_types_are_as_wide_as_their_names_say():
    """A Boolean takes a byte, complex numbers two parts."""
    for dtype, bits in ITEM_BITS.items():
        width = int(re.search(r"\d+", dtype)[0])
        assert bits == {"i1": 8}.get(dtype, 2 * width if dtype.startswith("complex") else width), dtype


@settings(deadline=None)
@given(
    st.sampled_from(["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "collective_permute"]),
    st.integers(1, 64), st.floats(0, 1e9), st.floats(1e6, 1e12), st.floats(1, 8),
)  # fmt: skip
def test_time_grows_with_bytes_and_falls_with_bandwidth(kind, n, operand, bandwidth, factor):
    slow, fast = Link(1e-6, bandwidth), Link(1e-6, bandwidth * factor)
    assert seconds(kind, n, operand, fast) <= seconds(kind, n, operand, slow) * (1 + 1e-12)
    assert seconds(kind, n, operand, slow) <= seconds(kind, n, operand * factor, slow) * (1 + 1e-12)
    assert seconds(kind, n, operand, slow) >= sent_bytes(kind, n, operand) / bandwidth * (1 - 1e-12)


@pytest.mark.smoke
def test_a_mesh_of_another_size_is_refused_with_sizes_and_a_shape_that_fits():
    with pytest.raises(TopologyError, match=r"v5e:4x4 and the mesh \(d=8, m=4\) .*, 16 and 32; use v5e:4x8"):
        load("v5e:4x4").on(mesh(d=8, m=4))
    with pytest.raises(TopologyError, match="use h100:8x8, or"):
        load("h100:8").on(mesh(d=64))
    for devices, shape in ((12, "6x2"), (9, "3x3"), (11, "1x11")):  # hosts need not be full
        with pytest.raises(TopologyError, match=f"use h100:{shape}, or"):
            load("h100:8").on(mesh(d=devices))
    with pytest.raises(TopologyError, match="use h100:4x3, or"):  # over 6x2 an axis of 4 would lie across
        load("h100:8").on(mesh(a=3, b=4))
    with pytest.raises(TopologyError, match="axis 'b' of size 6 cannot be laid over v5e:6x4"):
        load("v5e:6x4").on(mesh(a=4, b=6))


def test_a_mesh_larger_than_machines_without_a_network_between_them(tmp_path):
    path = write(tmp_path, ALONE)
    with pytest.raises(TopologyError, match="16 and 17; no shape up to mine:4x4 has as many"):
        load(f"{path}:4x4").on(mesh(d=17))
    with pytest.raises(TopologyError, match="made up to 4x4"):
        load(f"{path}:1x17")


@pytest.mark.parametrize("name", ["h100", "v5e", "v5p"])
@pytest.mark.parametrize("devices", [1, 7, 8, 12, 34, 96, 257, 384, 10007])
def test_shapes_are_made_and_hold_as_many(name, devices):
    """What is advised is what `load` takes, and a mesh of one axis lies over it."""
    shape = load(name).network.shape_for(devices)
    topology = load(f"{name}:{'x'.join(map(str, shape))}")
    assert topology.on(mesh(d=devices)).devices == devices


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("v5e:16", "no shape 16; write a shape of up to 16x16, and of several hosts x their number, as in v5e:16x16x2"),
        ("v5e:32x32", "up to 16x16"),
        ("v5e:0x4", "no machine has"),
        ("v5e:99999999999x4", "no machine has"),
        ("h100:8x4x2", "no shape 8x4x2"),
        ("h100:16x2", "made up to 8, not 16x2; use several hosts, as in h100:8x2"),
        ("nope", "one of cpu, h100, h200, v5e, v5p, v6e"),
        ("nope.toml", "cannot read"),
        ("", "no topology"),
    ],
)
def test_names_that_say_nothing(what, says):
    with pytest.raises(TopologyError, match=says):
        load(what)


ALONE = 'name = "mine"\n[network]\nkind = "torus"\nlimits = [4, 4]\nlatency = 1e-6\nbandwidth = 1e9\n'


def write(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_a_user_replaces_rows_of_a_known_topology(tmp_path):
    path = write(tmp_path, 'base = "v5e"\nmemory = 1000\n[network]\nbandwidth = 1e9\n[axes.data]\nbandwidth = 5e8\n')
    mine = load(f"{path}:4x4").on(mesh(data=4, model=4))
    assert (mine.memory, mine.flops, mine.compiler) == (1000, load("v5e").flops, "tpu")
    assert mine.link(["data"]).bandwidth == 5e8 and mine.link(["model"]).bandwidth == 1e9
    assert mine.link(["data", "model"]).bandwidth == 5e8
    assert mine.sources["memory"] == str(path) and "Google" in mine.sources["flops"]


def test_what_was_measured_goes_with_the_rate_that_it_is_of(tmp_path):
    base = load("h200").measured
    assert {"flops", "flops_f32", "memory_bandwidth", "kernel"} <= set(base)
    faster = load(write(tmp_path, 'base = "h200"\nflops = 2e15\n')).measured
    assert set(base) - set(faster) == {"flops", "flops_f32"} and faster.items() <= base.items()
    assert load(write(tmp_path, 'base = "h200"\nmemory = 1e11\n')).measured == base
    own = load(write(tmp_path, 'base = "h200"\nmemory_bandwidth = 9e12\n[measured]\nmemory_bandwidth = 8e12\n'))
    assert own.measured == {**base, "memory_bandwidth": 8e12} and own.key() != load("h200").key()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("flop = 1", "unknown keys flop"),
        ("flops = 'many'", "flops of topology mine must be a positive number"),
        ("flops = -1", "positive"),
        ("memory = true", "positive"),
        ("[flops]\nsource = 'x'", "flops lacks value"),
        ("[default]\nspeed = 3", "unknown keys default.speed; known are bandwidth, exchange"),
        ("[axes.data]\nspeed = 3", "unknown keys axes.data.speed"),
        ("[device]\nspeed = 3", "unknown keys device.speed"),
        ("[measured]\nspeed = 3", "unknown keys measured.speed"),
        ("[measured]\nkernel = 'short'", "mine.toml: measured.kernel is a positive number, got 'short'"),
        ("[measured]\nlu = 0", "measured.lu is a positive number, got 0"),
        ("[device]\ncores = [3]", "mine.toml: device.cores is a number or a name"),
        ("base = ['v5e']", "not one of"),
        ("base = 'v5e'\n[network]\nwrap = 'x'", "mine.toml: wrap of a network is a size"),
        ("[default]\nbandwidth = 'fast'", "numbers"),
        ("axes = 3", "axes is a table"),
        ("[axes]\ndata = 3", r"mine.toml: axes.data is a table \(\[axes.data\]\), got 3"),
        ("compiler = 'gcc'", "none of tpu, cuda, cpu"),
        ("base = 'nope'", "not one of"),
        ("[network]\nkind = 'torus'", "network lacks"),
        ("[network]\nkind = 'string'\nlimits = [4]\nlatency = 1e-6\nbandwidth = 1e9", "'torus' or a 'switch'"),
        ("[network]\nkind = 'torus'\nlimits = [0]\nlatency = 1e-6\nbandwidth = 1e9", "positive sizes"),
        ("[network]\nkind = 'torus'\nlimits = 4\nlatency = 1e-6\nbandwidth = 1e9", "list of sizes"),
        ("name = \x01", "cannot read"),
    ],
)
def test_malformed_files_are_typed_errors(tmp_path, text, says):
    with pytest.raises(TopologyError, match=says):
        load(write(tmp_path, text))


PROGRAM = """
sdy.mesh @mesh = <["data"=16, "model"=16]>
func.func @main(%x: tensor<4096x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>})
    -> (tensor<4096x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
  return %x : tensor<4096x8192xf32>
}
"""


def test_the_plan_predicts_times_on_the_topology():
    uniform = collectives.partition(PROGRAM).plan
    (ring,) = collectives.partition(PROGRAM, "v5e:16x16").plan
    (faster,) = collectives.partition(PROGRAM, "v6e:16x16").plan
    gathered = 15 / 16 * 4096 // 16 * 8192 * 4
    assert math.isclose(ring.seconds, 8e-6 + gathered / 9e10, rel_tol=1e-6)
    assert faster.seconds < ring.seconds and uniform.bytes == ring.bytes
    assert "time" in collectives.partition(PROGRAM, "v5e:16x16").plan.as_text().splitlines()[0]
    with pytest.raises(TopologyError, match="use v5e:16x16"):
        collectives.partition(PROGRAM, "v5e:8x8")


def test_topologies_are_keys_of_caches():
    a, b = load("v5e:16x16"), load("v5e:16x16")
    assert a == b and hash(a) == hash(b) and a.key() != load("v5e:8x8").key()
    assert Topology().on(mesh(a=3)) == Topology()
