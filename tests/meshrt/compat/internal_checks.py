"""What tests written for JAX ask of its internal modules, as a script that prints: with JAX, and where `import jax`
gives meshrt (`test_internal_modules.py`)."""

import sys
import warnings

# ruff: noqa: E402  (what is imported depends on the argument)
if sys.argv[1:] == ["meshrt"]:
    import meshrt.compat

    meshrt.compat.as_jax()
warnings.simplefilter("ignore")

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import (
    api,
    api_util,
    config,
    core,
    dtypes,
    effects,
    jaxpr_util,
    literals,
    mesh,
    monitoring,
    named_sharding,
    op_shardings,
    sharding_impls,
    sourcemap,
    state,
    tree_util,
    util,
)  # fmt: skip
from jax._src import linear_util as lu
from jax._src import pretty_printer as pp
from jax._src import source_info_util as si
from jax._src.export import shape_poly
from jax._src.interpreters import mlir
from jax._src.interpreters import partial_eval as pe
from jax._src.lib import xla_client as xc
from jax._src.lib.mlir import ir
from jax._src.random import core as jax_random
from jax._src.random import prng
from jax._src.state import discharge, primitives, types


def show(*functions, length=25):
    for function in functions:
        try:
            print(function())
        except Exception as e:
            kinds = [k.__name__ for k in (ValueError, TypeError, NameError) if isinstance(e, k)]
            print(kinds, str(e)[:length])


def named(x, y, *, z=1):
    return x


def source_maps():
    numbers = (0, 1, -1, 15, 16, -16, 1000, -123456)
    print([sourcemap.encode_vlq(n) for n in numbers], [sourcemap.decode_vlq(sourcemap.encode_vlq(n)) for n in numbers])
    text = "AAAA,IAAM;;EACAA,CAAC"
    lines = sourcemap.deserialize_mappings(text)
    print(lines, sourcemap.serialize_mappings(lines))
    whole = sourcemap.SourceMap(3, ["a.py"], ["x"], ["n"], lines)
    print(json.loads(whole.to_json()), sourcemap.SourceMap.from_json(whole.to_json()) == whole)
    made = sourcemap.MappingsGenerator()
    made.new_group()
    made.new_segment(0, 0, 0, 0)
    made.new_segment(4, 0, 2, 6)
    made.new_group()
    made.new_segment(3)
    made.new_segment(5, 1, 1, 1, 2)
    print([list(map(tuple, group)) for group in made.mappings()])


def documents():
    three = pp.join(pp.text(",") + pp.brk(), [pp.text("b")] * 3)
    whole = pp.group(pp.text("aaa") + pp.nest(2, pp.brk() + three))
    print(
        whole.format(width=5), str(whole), repr(pp.color(pp.text("a"), foreground=pp.Color.RED).format(use_color=True))
    )


def programs():
    closed = jax.make_jaxpr(lambda x, y: (jnp.sin(x), jnp.sin(x) * jnp.cos(y), y))(1.0, 2.0)
    for unknowns in ([False, True], [True, True]):
        print(*pe.partial_eval_jaxpr_nounits(closed, unknowns, False))
    print(pe.partial_eval_jaxpr_nounits(closed, [False, True], True)[2:])
    print(pe.close_jaxpr(closed.jaxpr), pe.move_binders_to_back(closed, [True, False]))
    print(pe.convert_constvars_jaxpr(jax.make_jaxpr(lambda x: x + np.ones(3))(np.ones(3)).jaxpr))
    print([(e and e.primitive.name) for e in core.last_used(closed.jaxpr).values()])
    jitted = jax.make_jaxpr(jax.jit(lambda x: jnp.sin(x) + jnp.cos(x) * 2))(jnp.ones(3)).jaxpr
    print(jaxpr_util.primitives(jitted), sorted(jaxpr_util.primitives_by_shape(jitted).items()))


def references():
    ref = types.shaped_array_ref((4,), jnp.dtype("float32"))

    def traced(f):
        fun = lu.wrap_init(f, debug_info=api_util.debug_info("test", f, (1,), {}))
        jaxpr, _, consts = pe.trace_to_jaxpr_dynamic(fun, [ref])
        return core.ClosedJaxpr(jaxpr, consts)

    def step(r):
        primitives.ref_addupdate(r, (1,), 2.0)
        return [primitives.ref_swap(r, (3,), 1.0), primitives.ref_get(r, (slice(0, 2),))]

    closed = traced(step)
    print(closed.jaxpr, [e.primitive is p for e, p in zip(closed.eqns, (primitives.addupdate_p, primitives.swap_p))])
    plain = discharge.discharge_state(closed)
    print(core.eval_jaxpr(plain.jaxpr, plain.consts, jnp.arange(4.0)), ref, state.AbstractRef is types.AbstractRef)

    def double(refs):
        refs[1][...] = refs[0][...] * 2

    print(discharge.run_state(double)((jnp.arange(3.0), jnp.zeros(3))))


def shardings():
    over = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    P, NamedSharding = jax.sharding.PartitionSpec, jax.sharding.NamedSharding
    for spec in (P("x", "y"), P(None, ("x", "y")), P(("y", "x")), P("y"), P()):
        named = NamedSharding(over, spec)
        hlo = named._to_xla_hlo_sharding(2)
        print(
            sharding_impls.parse_flatten_op_sharding(hlo, over), op_shardings.get_num_ways_dim_sharded(hlo),
            op_shardings.op_sharding_to_indices(hlo, (8, 8), 8), op_shardings.is_hlo_sharding_replicated(hlo),
            sorted((d.id, r) for d, r in sharding_impls.device_replica_id_map(named, (8, 8)).items()),
            sharding_impls.num_addressable_indices(named, 0, (8, 8)),
            sharding_impls.local_to_global_shape(named, (8, 2)),
        )  # fmt: skip
    proto = xc.OpSharding()
    proto.type = xc.OpSharding.Type.OTHER
    proto.tile_assignment_dimensions = [4, 2]
    proto.tile_assignment_devices = [7, 6, 5, 4, 3, 2, 1, 0]
    given = sharding_impls.GSPMDSharding(jax.devices(), proto)
    x = jax.device_put(np.arange(16.0).reshape(8, 2), given)
    print(
        sorted((s.device.id, str(s.index)) for s in x.addressable_shards),
        given.shard_shape((8, 2)),
        given.is_fully_replicated,
    )
    print(sharding_impls.array_mapping_to_axis_resources({"x": 0, "y": 0, "z": 2}))
    specs_of = jax.sharding.AbstractMesh((2, 1, 4), ("x", "y", "z"))
    for s in (
        jax.P("x", "y"),
        jax.P(("x", "y"), "z"),
        jax.P(("y",)),
        jax.P(None, "z"),
        jax.P(jax.P.UNCONSTRAINED, "y"),
    ):
        print(named_sharding.remove_size_one_mesh_axis(s, specs_of), named_sharding.flatten_spec(s))
        print(named_sharding.get_array_mapping(s))
    keys = jax.typeof(jax.random.split(jax.random.key(0), 8))
    for s in (named, jax.NamedSharding(over, P("x")), jax.NamedSharding(over, P())):
        show(lambda s=s: sharding_impls.make_key_array_phys_sharding(keys, s).spec)
    print(core.physical_aval(keys), core.physical_shape((3,), keys.dtype), core.physical_aval(jax.typeof(jnp.ones(2))))


def settings():
    mode = config.enum_state("internal_checks_mode", ["a", "b"], "a", "a mode")
    with mode("b"):
        print(mode.value)
    number = config.int_state("internal_checks_number", 3, "a number")
    jax.config.update("internal_checks_number", 4)
    print(mode.value, number.value, jax.config.internal_checks_number, config.enable_x64.value)
    show(
        lambda: jax.config.update("internal_checks_mode", "c") and None,
        lambda: config.enum_state("internal_checks_other", ["a"], "b", ""),
        lambda: config.string_state("internal_checks_text", "a", "")(3).__enter__(),
        lambda: config.int_state("internal_checks_count", "a", ""),
        lambda: config.optional_string_state("internal_checks_word", 1, ""),
        lambda: bool(mode), length=0,
    )  # fmt: skip


def sequences():
    nested = jax.tree.structure([0, 0]), jax.tree.structure([(0, 0), 0])
    show(
        lambda: util.merge_lists([False, True, False], [1, 2], [3]),
        lambda: util.canonicalize_axis(-1, 3),
        lambda: util.canonicalize_axis(3, 3),
        lambda: util.tuple_insert((1, 2), 1, 3),
        lambda: util.unflatten([1, 2, 3], [1, 2]),
        lambda: util.safe_zip([1], [1, 2]),
        lambda: util.subs_list([None, 0], [7], [1]),
        lambda: util.wrap_name("jvp", "f"),
        lambda: util.curry(lambda x, y: x + y)(1)(2),
        lambda: util.split_list_checked([1, 2, 3], [1, 2]),
        lambda: tree_util.broadcast_flattened_prefix_with_treedef([1, 2], *nested),
        lambda: dtypes.safe_to_cast(1, np.float32),
        lambda: dtypes.jax_dtype(int),
        lambda: dtypes.to_numeric_dtype(bool),
        lambda: {k: len(v) for k, v in dtypes._dtype_kinds.items()},
        lambda: core.canonicalize_shape((2, np.int64(3))),
        lambda: core.canonicalize_shape((2.0, 3)),
        lambda: [core.divide_shape_sizes((4, 3), shape) for shape in ((2,), (12,), (3, 1))],
        lambda: [core.is_dim(v) for v in (3, np.int32(3), 2.0, "3", np.ones(2))],
        lambda: dtypes.check_and_canonicalize_user_dtype(None, "f"),
        lambda: (core.canonicalize_dim(3), core.canonicalize_dim(-1)),
        lambda: core.canonicalize_dim("a"),
        lambda: [core.stride_dim(*sizes) for sizes in ((10, 3, 2), (2, 3, 2), (0, 3, 1), (3, 3, 1))],
        lambda: [core.dilate_dim(*sizes) for sizes in ((3, 2), (0, 2), (1, 3))],
        lambda: [core.definitely_equal_one_of_dim(3, sizes) for sizes in ((1, 3), (1, 2), ())],
        lambda: [core.is_literalable(x) for x in (1.0, 2, True, np.float32(1), np.ones(1), jnp.ones(()))],
        lambda: core.to_concrete_value(2.5),
    )
    calls = []

    @util.weakref_lru_cache
    def remembered(key, x):
        calls.append(x)
        return x

    class Key:
        pass

    key = Key()
    print([remembered(key, x) for x in (1, 1, 2)], calls, remembered.cache_info().hits)


def arguments():
    tree = jax.tree.structure(((1, (2, 3)), {"a": 1, "b": (1, 2)}))
    signature = api_util.fun_signature(named)
    show(
        lambda: api_util.donation_vector((1,), ("b",), tree), lambda: api_util.rebase_donate_argnums((1, 3), (0, 2)),
        lambda: api_util.rebase_donate_argnums((0,), (0,)),
        lambda: api_util.resolve_argnums(named, signature, (0,), None, None, "z"),
        lambda: api_util.resolve_argnums(named, signature, None, "y", (0,), None),
        lambda: api_util.resolve_argnums(named, signature, (0,), None, 0, None),
        lambda: api.flatten_axes("q", jax.tree.structure((1, (2, 3))), (0, 1)),
        lambda: api.flatten_axes("q", jax.tree.structure((1, (2, 3))), (0, 1, 2)),
    )  # fmt: skip

    wrapped = lu.wrap_init(lambda a, b, c: (a, b, c), debug_info=api_util.debug_info("test", named, (1, 2), {}))
    for places in ((0, 2), (1,), 2):
        part, dynamic = api_util.argnums_partial(wrapped, places, (1, 2, 3))
        print(dynamic, part.call_wrapped(*(10 * d for d in dynamic)))
    show(lambda: api_util.argnums_partial(wrapped, 0, (1, [2], 3)) and None)

    class Node:
        def __init__(self, name, *parents):
            self.name, self.parents = name, list(parents)

    first = Node("first")
    last = Node("last", Node("left", first), Node("right", first))
    names = [n.name for n in util.toposort([last])]
    print(names[0], sorted(names[1:3]), names[3])


def stacks():
    with jax.named_scope("outer"), jax.named_scope("inner"):
        print(si.current_name_stack(), repr(si.new_name_stack("a")))
    print(si.new_name_stack().extend("q").transform("vmap").transform("jvp").extend("r").extend("s"))
    with core.extend_axis_env_nd([("i", 4)]):
        print(core.get_axis_env().axis_size("i"), core.get_axis_env().axis_exists("j"))
    found = [jax_random.resolve_prng_impl(given) for given in (None, "rbg", prng.prngs["threefry2x32"])]
    print([impl.name for impl in found], jax_random.default_prng_impl().name)
    show(lambda: jax_random.resolve_prng_impl("nothing"))
    auto, manual = mesh.AxisType.Auto, mesh.AxisType.Manual
    print(mesh.all_axis_types_match((auto, manual), auto), mesh.any_axis_types_match((auto, manual), manual))
    print(isinstance(jax.random.key(0), prng.PRNGKeyArray), isinstance(jnp.ones(2), prng.PRNGKeyArray))


def sizes():
    a, b = shape_poly.symbolic_shape("a, b")
    best = shape_poly.BoundsPrecision.BEST
    print([shape_poly._bounds_decision(e, best) for e in (a, 2 * a + b - 1, a - b, a % 3, a // 2, 4, -a)])
    print(shape_poly.all_dim_vars([core.ShapedArray((a, 2, b + 1), np.float32)]))


def rules():
    from jax._src.custom_partitioning_sharding_rule import sdy_sharding_rule_to_mlir, str_to_sdy_sharding_rule

    with mlir.make_ir_context(), ir.Location.unknown():
        kinds = [ir.RankedTensorType.get(shape, ir.F32Type.get()) for shape in ((4, 8), (8, 2), (4, 2))]
        print(sdy_sharding_rule_to_mlir(str_to_sdy_sharding_rule("i j, j k -> i k"), kinds[:2], kinds[2:]))
    show(*(lambda text=text: str_to_sdy_sharding_rule(text) for text in ("i (j -> k", "i j", "... i ... -> i")))
    print(literals.TypedInt.__name__, monitoring.get_event_listeners is not None)


def effects_of_ones_own():
    class Allowed(effects.Effect):
        pass

    class Other(effects.Effect):
        pass

    for allowed in (effects.control_flow_allowed_effects, effects.lowerable_effects):
        allowed.add_type(Allowed)
    told = core.Primitive("told")
    told.multiple_results = True
    told.def_effectful_abstract_eval(lambda *avals, effect: ([], {effect}))
    mlir.register_lowering(told, lambda ctx, *values, effect: [])

    for effect in (Allowed(), Other()):

        def step(x, effect=effect):
            told.bind(effect=effect)
            return x + 1.0

        programs = {
            "plain": step,
            "cond": lambda x: lax.cond(x > 0, step, lambda x: x, x),
            "switch": lambda x: lax.switch(0, [step, step, step], x),
            "while": lambda x: lax.while_loop(lambda x: x < 3, step, x),
            "scan": lambda x: lax.scan(lambda c, _: (step(c), None), x, None, length=2)[0],
            "fori": lambda x: lax.fori_loop(0, 2, lambda i, c: step(c), x),
        }
        for name, program in programs.items():
            print(name)
            show(lambda: effect in jax.make_jaxpr(program)(1.0).effects, lambda: jax.jit(program)(1.0))


def parts_of_lax():
    from jax._src.lax import lax as internal

    for x in (1, 2.5, 1j, True, np.int8(3), np.arange(3.0), jnp.arange(3), np.float32([1, np.nan])):
        for given in ((None, True), (None, False), ("float32", True), ("int32", False), ("complex64", True)):
            if isinstance(x, complex) and given[0] in ("float32", "int32"):
                continue
            made = internal._convert_element_type(x, given[0] and np.dtype(given[0]), given[1])
            print(repr(made), made.weak_type)
        print(internal._ones(x), internal._zeros(x, shape=(2,)), internal._one(x).dtype, internal._zero(x))
    print(internal._tri("float32", (2, 3), 1), internal._eye("int32", (3, 2)))
    print(internal._delta("float32", (2, 3, 2), (0, 2)), internal._isnan(np.float32([1, np.nan])))


def attributes():
    over, P = (
        jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2),
        jax.sharding.PartitionSpec,
    )
    spec = P("x", unreduced={"y"})
    print([s._normalized_spec_for_aval(3) for s in (P("x"), P("x", None), spec)], P("x", "y")._partitions)
    named = jax.sharding.NamedSharding(over, P("x"), memory_kind="device")
    x = jax.device_put(np.arange(8.0), named) * 2
    print(len(x._arrays), x._arrays[0].shape, x._sharding == x.sharding, x._npy_value, named._logical_device_ids)
    print(x._value.sum(), x._npy_value is None, named._memory_kind, jax.jit(sizes)._fun is sizes)
    key = jax.random.key(3)
    print(key._base_array, key._impl.name, jax.sharding.SingleDeviceSharding(jax.devices()[1])._device.id)


def quantised():
    from jax._src.cudnn.scaled_matmul_stablehlo import quantize, shape_normalization

    x = jax.random.normal(jax.random.key(0), (1, 4, 64))
    for how in (("mxfp8",), ("nvfp4", jnp.ones(1))):
        elements, scales = quantize(x, jax.nn.get_scaled_dot_general_config(*how))
        print(
            elements.dtype, scales.dtype, scales.shape, elements.astype("float32").sum(), scales.astype("float32").sum()
        )
    print(shape_normalization(jnp.arange(24.0).reshape(2, 3, 4), ((0,), (2,)))[0, :, 0])


def noted_errors():
    from jax._src import error_check

    @jax.jit
    def checked(x):  # the first that is ever checked here: in a trace
        error_check.set_error_if(x < 0, "negative")
        error_check.set_error_if(x > 9, "large")
        return x + 1

    def noted(x):
        checked(np.float32(x))
        return error_check.raise_if_error()

    def inside():
        with error_check.error_checking_context():
            checked(np.float32(-1))  # which notes it outside, where it was traced
            error_check.raise_if_error()

    def member(x):
        error_check.set_error_if(x < 0, "a slope's")
        return x

    show(lambda: noted(-1), lambda: noted(1), lambda: noted(10), inside, error_check.raise_if_error, length=5)
    show(lambda: jax.grad(member)(-1.0), error_check.raise_if_error, error_check.raise_if_error, length=5)


class Number:
    """A class that takes nothing but numbers."""

    def __init__(self, value):
        if not isinstance(value, int):
            raise TypeError("no number")
        self.value = value


jax.tree_util.register_pytree_node(Number, lambda n: ((n.value,), None), lambda _, children: Number(*children))


def structures_of_ones_own():
    whole = jax.tree.structure({"a": Number(1), "b": [1, 2]})
    show(
        lambda: api.flatten_axes("q", whole, {"a": 0, "b": None}),
        lambda: api.flatten_axes("q", whole, {"a": Number(1), "b": [None, 1]}),
        lambda: api.flatten_axes("q", whole, 5),
        lambda: api_util.donation_vector((0,), ("z",), jax.tree.structure(((1,), {"k": 1, "z": Number(3)}))),
        lambda: api_util.donation_vector((), ("k",), jax.tree.structure(((1,), {}))),
    )
    nested = jax.tree.structure(((Number(1), 2), 3))
    for prefix, leaves in (((0, 0), [7, 8]), (0, [None]), ((0, 0, 0), [7, 8, 9])):
        try:
            print(tree_util.broadcast_flattened_prefix_with_treedef(leaves, jax.tree.structure(prefix), nested))
        except ValueError:
            print("no prefix")


def placed_parts():
    from jax._src.lax import lax as internal
    from jax._src.numpy import util as numpy_util

    wide, P = np.dtype("float32"), jax.sharding.PartitionSpec
    explicit = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    auto = jax.sharding.NamedSharding(jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,)), P("x"))
    for convert in (internal._convert_element_type, jax.jit(internal._convert_element_type, static_argnums=(1, 2, 3))):
        print(convert(jnp.arange(4), wide, False, auto).sharding.spec)
        with jax.set_mesh(explicit):
            split = jax.sharding.NamedSharding(explicit, P("x"))
            print(jax.typeof(convert(jnp.arange(4), wide, False, split)))
    with jax.set_mesh(explicit):
        print(
            jax.typeof(
                numpy_util._broadcast_to(jnp.arange(4), (3, 4), jax.sharding.NamedSharding(explicit, P(None, "x")))
            )
        )
    for told in (True, False):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            print(internal._convert_element_type(jnp.array([2j, 1]), wide, warn_on_complex_to_real_cast=told))
        print([w.category.__name__ for w in heard])


CHECKS = (
    noted_errors, structures_of_ones_own, placed_parts, effects_of_ones_own, quantised, attributes, parts_of_lax,
    source_maps, documents, programs, references, shardings, settings, sequences, arguments, stacks, sizes, rules,
)  # fmt: skip
for check in CHECKS:
    check()
