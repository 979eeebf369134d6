"""GSPMD's annotations: their text beside jaxlib's own reader, the meshes behind them, what becomes of modules."""

import itertools
import random

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jaxlib import xla_client as xc

import propagation
from propagation.errors import ModuleParseError, PropagationError, RankMismatchError, UnsupportedModuleError
from propagation.gspmd_mesh import mesh_behind
from propagation.gspmd_text import read_gspmd
from propagation.model import Mesh

TEXTS = [
    "{replicated}", "{manual}", "{maximal device=3}", "{unknown}", "{devices=[4,1,2]<=[8] last_tile_dim_replicate}",
    "{devices=[2,4]<=[4,2]T(1,0)}", "{devices=[2,2]0,2,1,3}", "{devices=[2,1,2]1,3,0,2 last_tile_dim_replicate}",
    "{devices=[1,4,2]<=[8] last_tile_dims={manual, replicated}}",
    "{devices=[8,2]<=[2,8]T(1,0) last_tile_dims={manual}}",
    "{devices=[12]<=[2,3,2]T(2,0,1)}", "{devices=[2]<=[2] metadata={op_name=\"a/b}{\" source_line=3}}",
    "{{replicated}, {devices=[2,1]<=[2]}, {maximal device=1}}",
]  # fmt: skip


def plain(sharding):
    devices = None if sharding.devices is None else sharding.devices.tolist()
    return sharding.kind, sharding.tiles + sharding.sizes, devices, [plain(e) for e in sharding.elements]


def plain_of_jaxlib(sharding):
    elements = sharding.tuple_elements() if str(sharding).startswith("{{") else []
    if elements:
        return "tuple", (), None, [plain_of_jaxlib(e) for e in elements]
    kinds = {"replicated": sharding.is_replicated(), "manual": sharding.is_manual(), "unknown": sharding.is_unknown()}
    kind = next((k for k, holds in kinds.items() if holds), "maximal" if sharding.is_maximal() else "tiled")
    tiles = tuple(sharding.tile_assignment_dimensions()) if kind == "tiled" else ()
    return kind, tiles, sharding.tile_assignment_devices() if kind in ("tiled", "maximal") else None, []


@pytest.mark.parametrize("text", TEXTS)
def test_text_and_message_beside_jaxlib(text):
    theirs = xc.HloSharding.from_string(text)
    assert plain(read_gspmd(text)) == plain_of_jaxlib(theirs)
    message = theirs.to_proto().SerializeToString()
    assert plain(read_gspmd(message)) == plain_of_jaxlib(theirs)
    assert read_gspmd(message).last == read_gspmd(text).last


@pytest.mark.parametrize(
    "data",
    ["{devices=[2,2]0,1,2}", "{devices=[2]<=[3]}", "{devices=[2]<=[2]T(1)}", "{nonsense}", "{replicated",
     "{replicated}}", "{devices=[2]<=[2] last_tile_dims={spare}}", "{devices=[9999999999]<=[9999999999]}",
     "{devices=[2]0,0}",
     b"\x08\x99", b"\x08\x09", b"hello", "{devices=[2]<=[2] metadata={", "{maximal device=}"],
)  # fmt: skip
def test_what_is_no_sharding_is_refused_in_one_line(data):
    with pytest.raises(ModuleParseError) as error:
        read_gspmd(data, "a.py:3")
    assert str(error.value).startswith("a.py:3: ") and "\n" not in str(error.value)


def tile_of(device, axes, grid):
    """Which part of each dimension a device has, of values laid out by `axes`."""
    place = device if grid.places is None else int(grid.places[device])
    coords = dict(zip(grid.mesh.axis_names, np.unravel_index(place, grid.mesh.shape)))
    parts = []
    for dim in axes:
        index = 0
        for a in dim:
            size = grid.mesh.axis_size(a.name)
            index = index * a.size + int(coords[a.name]) // (size // (a.pre * a.size)) % a.size
        parts.append(index)
    return tuple(parts)


@pytest.mark.parametrize("seed", range(30))
def test_devices_have_the_tiles_that_the_mesh_gives_them(seed):
    """Shardings of one random mesh, whose devices are at times in another order: read, and dealt out again."""
    rng = random.Random(seed)
    sizes = [rng.choice([2, 2, 3, 4]) for _ in range(rng.randint(1, 3))]
    count = int(np.prod(sizes))
    order = list(range(count))
    if rng.random() < 0.4:
        rng.shuffle(order)
    devices = np.array(order).reshape(sizes)
    tilings = []
    for _ in range(rng.randint(1, 4)):
        axes = rng.sample(range(len(sizes)), len(sizes))
        groups = [[] for _ in range(3)]
        for axis in axes:
            groups[rng.randrange(3)].append(axis)
        tiles = [int(np.prod([sizes[a] for a in g])) for g in groups]
        ids = devices.transpose([a for g in groups for a in g]).reshape(tiles)
        ids = np.sort(ids, -1).reshape(-1) if seed % 2 else ids.reshape(-1)  # as XLA writes replicas
        text = f"{{devices=[{','.join(map(str, tiles))}]{','.join(map(str, ids))} last_tile_dim_replicate}}"
        tilings.append(read_gspmd(text))
    grid = mesh_behind([(t, None) for t in tilings])
    assert grid.mesh.size == count
    for tiling in tilings:
        table = tiling.devices.reshape(*tiling.tiles, *tiling.sizes)
        axes = grid.axes(tiling)
        for index in itertools.product(*map(range, table.shape)):
            assert tile_of(int(table[index]), axes[:-1], grid) == index[:-1]


def test_tilings_that_cut_one_axis_in_two_ways():
    tilings = [read_gspmd("{devices=[2,3]<=[6]}"), read_gspmd("{devices=[3,2]<=[6]}")]
    grid = mesh_behind([(t, None) for t in tilings])
    assert grid.mesh.axes == (("axis_0", 6),)
    texts = [[a.to_text(grid.mesh) for dim in grid.axes(t) for a in dim] for t in tilings]
    assert texts == [['"axis_0":(1)2', '"axis_0":(2)3'], ['"axis_0":(1)3', '"axis_0":(3)2']]


def test_the_mesh_that_is_asked_for_or_known():
    tiling = read_gspmd("{devices=[4,2]<=[8]}")
    known = Mesh("m", (("data", 4), ("model", 2)))
    assert mesh_behind([(tiling, None)], known=[known]).mesh is known
    assert mesh_behind([(tiling, None)], known=[Mesh("m", (("a", 2),))]).mesh.axis_names == ("axis_0", "axis_1")
    whole = mesh_behind([(tiling, None)], asked=Mesh("m", (("x", 8),)))
    assert [[a.to_text(whole.mesh) for a in dim] for dim in whole.axes(tiling)] == [['"x":(1)4'], ['"x":(4)2']]
    with pytest.raises(UnsupportedModuleError, match="over 4 devices and over 8"):
        mesh_behind([(tiling, None)], asked=Mesh("m", (("x", 4),)))


def test_a_mesh_of_65536_devices():
    tilings = [read_gspmd(t) for t in ("{devices=[256,256]<=[65536]}", "{devices=[256,256]<=[256,256]T(1,0)}")]
    assert mesh_behind([(t, None) for t in tilings]).mesh.shape == (256, 256)


def module(body, result="tensor<8x4xf32>", arguments='%x: tensor<8x4xf32> {mhlo.sharding = "{devices=[4,2]<=[8]}"}'):
    return f"module {{ func.func @main({arguments}) -> {result} {{ {body} }} }}"


def shardings(text):
    found = propagation.run(text)
    main = found.program.main
    return [s and s.to_text().partition(", ")[2] for s in (found.shardings.get(v) for v in main.returned)], found


def test_annotations_of_constraints_results_and_groups():
    body = """%y = stablehlo.tanh %x : tensor<8x4xf32>
      %z = stablehlo.custom_call @Sharding(%y) {
        mhlo.sharding = "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}",
        backend_config = "unspecified_dims=[0]"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
      return %z : tensor<8x4xf32>"""
    (result,), found = shardings(module(body))
    assert result == '[{"axis_0"}, {"axis_1"}]>' and found.program.meshes["mesh"].shape == (4, 2)
    assert "mhlo.sharding" not in found.as_text() and "@Sharding" not in found.as_text()
    alike = """%a = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{unknown shard_as 5}"}
        : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %i = stablehlo.iota dim = 0 : tensor<8x4xf32>
      %b = stablehlo.custom_call @Sharding(%i) {mhlo.sharding = "{unknown shard_as 5}"}
        : (tensor<8x4xf32>) -> tensor<8x4xf32>
      return %b : tensor<8x4xf32>"""
    assert shardings(module(alike))[0] == ['[{"axis_0"}, {"axis_1"}]>']


def test_one_partition_and_nothing_said():
    for sharding in ("{replicated}", "{maximal device=0}", "{unknown}"):
        text = module("return %x : tensor<8x4xf32>", arguments=f'%x: tensor<8x4xf32> {{mhlo.sharding = "{sharding}"}}')
        assert not propagation.run(text).program.meshes


HALF = """%p = stablehlo.custom_call @SPMDFullToShardShape(%x) {mhlo.sharding = "{manual}"}
   : (tensor<8x4xf32>) -> tensor<2x2xf32>
 """


@pytest.mark.parametrize(
    "body, kind, message",
    [
        ('%y = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[8]<=[8]}"}'
         " : (tensor<8x4xf32>) -> tensor<8x4xf32> return %y : tensor<8x4xf32>", RankMismatchError, "tiles 1 dim"),
        ('%y = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[4,1]<=[4]}"}'
         " : (tensor<8x4xf32>) -> tensor<8x4xf32> return %y : tensor<8x4xf32>", UnsupportedModuleError,
         "over 4 devices"),
        ('%y = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[4,2]0,1,2,4,3,5,6,7}"}'
         " : (tensor<8x4xf32>) -> tensor<8x4xf32> return %y : tensor<8x4xf32>", UnsupportedModuleError, "no mesh"),
        (HALF + "return %x : tensor<8x4xf32>", None, None),
        (HALF + "%q = stablehlo.tanh %p : tensor<2x2xf32> return %x : tensor<8x4xf32>", UnsupportedModuleError,
         "no SPMDShardToFullShape"),
        ('%y = stablehlo.tanh %x {mhlo.sharding = "{oops}"} : tensor<8x4xf32> return %y : tensor<8x4xf32>',
         ModuleParseError, "'oops' is not known"),
        (HALF.replace("tensor<2x2", "tensor<4x2") + '%y = stablehlo.custom_call @SPMDShardToFullShape(%p) '
         '{mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<4x2xf32>) -> tensor<8x4xf32> return %y : tensor<8x4xf32>',
         UnsupportedModuleError, "are not tensor<4x2xf32>"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_said_with_its_operation(body, kind, message):
    if kind is None:
        assert propagation.run(module(body)).program.main is not None
        return
    with pytest.raises(PropagationError) as error:
        propagation.run(module(body))
    assert type(error.value) is kind and message in str(error.value) and "-:" in str(error.value)


def test_a_manual_part_with_captures_and_constants():
    """Pieces meet a value of no annotation, a constant, and are put together twice."""
    to_full = '{{mhlo.sharding = "{{devices=[4,2]<=[8]}}"}} : (tensor<2x2xf32>) -> tensor<8x4xf32>'.format()
    body = f"""%c = stablehlo.constant dense<2.0> : tensor<2x2xf32>
      %p = stablehlo.custom_call @SPMDFullToShardShape(%x) {{mhlo.sharding = "{{manual}}"}}
        : (tensor<8x4xf32>) -> tensor<2x2xf32>
      %q = stablehlo.multiply %p, %c : tensor<2x2xf32>
      %1 = stablehlo.custom_call @SPMDShardToFullShape(%q) {to_full}
      %2 = stablehlo.tanh %1 : tensor<8x4xf32>
      %s = stablehlo.broadcast_in_dim %k, dims = [] : (tensor<f32>) -> tensor<2x2xf32>
      %r = stablehlo.add %p, %s : tensor<2x2xf32>
      %3 = stablehlo.custom_call @SPMDShardToFullShape(%r) {to_full}
      %4 = stablehlo.add %2, %3 : tensor<8x4xf32>
      return %4 : tensor<8x4xf32>"""
    arguments = '%x: tensor<8x4xf32> {mhlo.sharding = "{devices=[4,2]<=[8]}"}, %k: tensor<f32>'
    (result,), found = shardings(module(body, arguments=arguments))
    assert result == '[{"axis_0"}, {"axis_1"}]>'
    (manual,) = [op for op in found.program.ops() if op.name == "sdy.manual_computation"]
    assert len(manual.results) == 2 and len(manual.operands) == 2
    assert propagation.run(found.as_text(), "pipeline").program.main is not None


def test_attributes_of_modules_that_jax_lowers():
    """The same program by both of JAX's partitioners: every sharding is the same up to the names of axes."""
    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    spec = lambda *axes: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))

    def f(x, w):
        y = jax.lax.with_sharding_constraint(
            jax.numpy.tanh(x @ w), spec(jax.sharding.PartitionSpec.UNCONSTRAINED, "model")
        )
        return jax.lax.cond(y.sum() > 0, lambda y: y.sum(0), lambda y: y.max(0), y)

    arguments = [jax.ShapeDtypeStruct((16, 32), "float32", sharding=spec("data")),
                 jax.ShapeDtypeStruct((32, 64), "float32", sharding=spec(None, "model"))]  # fmt: skip
    texts = []
    before = jax.config.jax_use_shardy_partitioner
    try:
        for is_shardy in (True, False):
            jax.config.update("jax_use_shardy_partitioner", is_shardy)
            lowered = jax.jit(f, out_shardings=spec("model")).trace(*arguments).lower(lowering_platforms=("cpu",))
            texts.append(propagation.run(lowered.as_text()).as_text())
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
    names = lambda text: [line.split("{sdy.sharding")[1:] for line in text.splitlines() if "sdy.sharding" in line]
    assert "mhlo.sharding" not in texts[1]
    assert names(texts[0]) == names(texts[1].replace("axis_0", "data").replace("axis_1", "model"))
