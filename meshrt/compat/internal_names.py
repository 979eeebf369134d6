"""Where internal names of JAX's stand here, and which internal modules JAX has.

A line of a table is `home: name name theirs=ours`: names that stand in the module `home`, one under a name of its own;
`theirs=` is the module itself. What a table does not have is looked for in the module's file in `layer`, or where
`modules.ELSEWHERE` says.
"""

from __future__ import annotations

import functools

__all__ = ["TABLES", "homes", "is_internal"]

_STATE_TYPES = """
    meshrt.core.references: AbstractRef AccumEffect ReadEffect RefEffect StateEffect=RefEffect WriteEffect
    meshrt.primitives.references: TransformedRef=RefView
    meshrt.primitives.state: uninitialized
    meshrt.compat.layer._src.state.types: get_ref_state_effects shaped_array_ref
"""
_SHARDINGS = """
    meshrt.core.marks: UNSPECIFIED UnspecifiedValue
    meshrt.errors: DuplicateSpecError IndivisibleError
    meshrt.sharding.rules: ArrayMapping
    meshrt.sharding.sdy_array: SdyArray SdyDim
"""

TABLES: dict[str, str] = {
    "_src.ad_checkpoint": """
        meshrt.transforms.checkpoint_policies: name_p
        meshrt.extend.core.primitives: remat_p
    """,
    "_src.api": """
        meshrt.core.tracebacks: api_boundary=boundary
        meshrt.compat.layer._src.arguments: flatten_axes
    """,
    "_src.api_util": """
        meshrt.compat.layer._src.arguments: donation_vector flatten_axes fun_signature fun_sourceinfo is_hashable
        meshrt.compat.layer._src.arguments: argnums_partial rebase_donate_argnums resolve_argnums
    """,
    "_src.array": "meshrt.runtime.shard: Shard",
    "_src.basearray": "typing: StaticScalar=Any",
    "_src.buffer_callback": """
        meshrt.experimental.buffer_callback: Buffer ExecutionContext buffer_callback
    """,
    "_src.callback": """
        meshrt.core.effects: IOEffect OrderedIOEffect _IOEffect=IO _OrderedIOEffect=ORDERED_IO
        meshrt.primitives.callback: io_callback_p pure_callback_p
    """,
    "_src.checkify": """
        meshrt.experimental.checkify.failures: BatchedError DivisionByZeroError FailedCheckError NaNError OOBError
        meshrt.experimental.checkify.checks: check_p
    """,
    "_src.compilation_cache": "meshrt.compat.layer._src.disk_state: is_cache_used is_persistent_cache_enabled",
    "_src.custom_partitioning_sharding_rule": """
        meshrt.sharding.rules: ArrayMapping BATCHING CompoundFactor str_to_sdy_sharding_rule=parse_rule
        meshrt.experimental.custom_partitioning: SdyShardingRule
        meshrt.compat.layer._src.sharding_rules: sdy_sharding_rule_to_mlir
    """,
    "_src.debugger.core": "meshrt.debug: breakpoint",
    "_src.debugging": """
        meshrt.primitives.callback: debug_callback_p
        meshrt.debug: debug_callback=callback debug_print=print
        meshrt.core.effects: debug_effect=DEBUG ordered_debug_effect=ORDERED_DEBUG
    """,
    "_src.dispatch": "meshrt.primitives.sharding: device_put_p",
    "_src.dtypes": "meshrt.dtypes: float4_e2m1fn float8_e4m3fn float8_e5m2 int2 int4 uint2 uint4",
    "_src.distributed": "meshrt.distributed: initialize is_initialized shutdown",
    "_src.effects": """
        meshrt.extend.core: no_effects
        meshrt.compat.layer._src.effect_types: control_flow_allowed_effects custom_derivatives_allowed_effects
        meshrt.compat.layer._src.effect_types: lowerable_effects ordered_effects partial_eval_kept_effects
        meshrt.compat.layer._src.effect_types: remat_allowed_effects shardable_ordered_effects
    """,
    "_src.environment_info": "meshrt.environment: print_environment_info",
    "_src.export": "meshrt.export: deserialize export",
    "_src.export._export": "meshrt.export.calling: call_exported",
    "_src.export.serialization": "meshrt.export: deserialize",
    "_src.export.shape_poly": """
        meshrt.compat.layer._src.shape_poly: BoundsPrecision Comparator _bounds_decision all_dim_vars
        meshrt.compat.layer._src.shape_poly: shape_and_dtype_jax_array
        meshrt.core.dimensions.expression: _DimExpr=DimExpr
        meshrt.core.dimensions.terms: _DimFactor=Factor _DimTerm=Term
        meshrt.errors: InconclusiveDimensionOperation
    """,
    "_src.ffi": "meshrt.primitives.ffi: ffi_call_p",
    "_src.hijax": "meshrt.experimental.hijax.box: box_get_p box_set_p new_box_p",
    "_src.indexing": "meshrt.primitives.state_indices: Slice ds dslice=ds",
    "_src.interpreters.ad": "meshrt.ad_checkpoint: remat_p",
    "_src.interpreters.mlir": """
        jaxlib.mlir.dialects.func: func_dialect=
        jaxlib.mlir.dialects.stablehlo: hlo=
    """,
    "_src.interpreters.partial_eval": """
        meshrt.core.trace: DynamicJaxprTrace=JaxprTrace
        meshrt.ad_checkpoint: Offloadable Recompute Saveable
        meshrt.compat.layer._src.partial_evaluation: abstract_eval_fun close_jaxpr convert_constvars_jaxpr
        meshrt.compat.layer._src.partial_evaluation: move_binders_to_back move_binders_to_front
        meshrt.compat.layer._src.partial_evaluation: partial_eval_jaxpr_nounits
    """,
    "_src.interpreters.pxla": "meshrt.sharding: Mesh",
    "_src.lax.control_flow": "meshrt.lax: cond_p scan_p while_p",
    "_src.lax.lax": """
        meshrt.compat.layer._src.lax_parts: _const _convert_element_type _delta _eye _isnan _ndim _one _ones _tri
        meshrt.compat.layer._src.lax_parts: _zero _zeros
        meshrt.extend.core.primitives: empty2_p
        meshrt.numpy: asarray
    """,
    "_src.lax.parallel": "meshrt.compat.layer._src.gathers: all_gather_reduced",
    "_src.lax.linalg": "meshrt.primitives.householder: geqp3 geqrf geqrf_p",
    "_src.lib": """
        jaxlib.mlir: mlir=
        meshrt.xla.jaxlib_modules: cpu_feature_guard lapack utils weakref_lru_cache xla_client
        meshrt.xla.jaxlib_modules: _jax=xla_client._xla ffi=xla_client._xla.ffi guard_lib=xla_client._xla.guard_lib
        meshrt.xla.jaxlib_modules: hlo=xla_client.hlo ifrt_version=xla_client._ifrt_version
        meshrt.xla.jaxlib_modules: jax_jit=xla_client._xla.jax_jit jaxlib_extension_version=xla_client._version
        meshrt.xla.jaxlib_modules: pytree=xla_client._xla.pytree
        jaxlib.version: version_str=__version__
        meshrt.xla.jaxlib_api: version=VERSION
    """,
    "_src.lib.mlir": """
        jaxlib.mlir.ir: ir=
        jaxlib.mlir.passmanager: passmanager=
    """,
    "_src.lib.mlir.dialects": """
        jaxlib.mlir.dialects.arith: arith=
        jaxlib.mlir.dialects.builtin: builtin=
        jaxlib.mlir.dialects.chlo: chlo=
        jaxlib.mlir.dialects.func: func=
        jaxlib.mlir.dialects.gpu: gpu=
        jaxlib.mlir.dialects.llvm: llvm=
        jaxlib.mlir.dialects.math: math=
        jaxlib.mlir.dialects.memref: memref=
        jaxlib.mlir.dialects.mpmd: mpmd=
        jaxlib.mlir.dialects.nvvm: nvvm=
        jaxlib.mlir.dialects.scf: scf=
        jaxlib.mlir.dialects.sdy: sdy=
        jaxlib.mlir.dialects.sparse_tensor: sparse_tensor=
        jaxlib.mlir.dialects.vector: vector=
        jaxlib.mlir.dialects.stablehlo: hlo=
    """,
    "_src.linear_util": "meshrt.core.naming: DebugInfo",
    "_src.literals": "meshrt.core.typed_numbers: TypedComplex TypedFloat TypedInt",
    "_src.mesh": """
        meshrt.sharding.axes: AbstractDevice
        meshrt.compat.layer._src.axis_kinds: all_axis_types_match any_axis_types_match
    """,
    "_src.monitoring": "meshrt.compat.layer._src.listeners: get_event_duration_listeners get_event_listeners",
    "_src.named_sharding": f"""
        {_SHARDINGS}
        meshrt.compat.layer._src.shardings: array_mapping_to_axis_resources flatten_spec get_array_mapping
        meshrt.compat.layer._src.shardings: named_sharding_to_xla_hlo_sharding remove_size_one_mesh_axis
    """,
    "_src.pallas.core": """
        meshrt.experimental.kernels.mapping: BlockMapping GridMapping
        meshrt.experimental.kernels.memory: CoreMemorySpace MemoryRef MemorySpace
        meshrt.experimental.kernels.memory: barrier_semaphore semaphore semaphore_dtype
        meshrt.experimental.kernels.params: CompilerParams CostEstimate
        meshrt.experimental.kernels.specs: Blocked BlockSpec BoundedSlice Buffered Element GridSpec Indirect
        meshrt.experimental.kernels.specs: RevisitMode Squeezed squeezed
    """,
    "_src.pallas.cost_estimate": "meshrt.experimental.kernels.facts: estimate_cost",
    "_src.pallas.pallas_call": """
        meshrt.experimental.kernels.call: pallas_call
        meshrt.experimental.kernels.call_primitive: pallas_call_p
    """,
    "_src.pallas.utils": "meshrt.experimental.kernels.helpers: cdiv next_power_of_2",
    "_src.pjit": """
        meshrt.primitives.call: jit_p pjit_p=jit_p
        meshrt.primitives.sharding: sharding_constraint_p
        meshrt.sharding: reshard
    """,
    "_src.pmap": "meshrt.pmap: pmap",
    "_src.random": """
        meshrt.compat.layer._src.prng: default_prng_impl resolve_prng_impl
        meshrt.primitives.key_marks: random_clone_p
        meshrt.primitives.random: random_bits_p random_fold_in_p random_seed_p random_split_p
    """,
    "_src.random.core": "meshrt.compat.layer._src.prng: default_prng_impl resolve_prng_impl",
    "_src.random.prng": """
        meshrt.extend.random: rbg_prng_impl seed_with_impl threefry2x32_p threefry_2x32 threefry_prng_impl
        meshrt.extend.random: unsafe_rbg_prng_impl
        meshrt.primitives.random: random_bits random_bits_p random_fold_in random_fold_in_p random_seed random_seed_p
        meshrt.primitives.random: random_split random_split_p random_unwrap random_unwrap_p random_wrap random_wrap_p
        meshrt.compat.layer._src.prng: KeyTy PRNGImpl PRNGKeyArray prngs register_prng
    """,
    "_src.scipy.linalg": "meshrt.scipy.linalg.factors: _lu",
    "_src.shard_alike": "meshrt.experimental.shard_alike: shard_alike",
    "_src.shard_map": """
        meshrt.shard_map: smap
        meshrt.primitives.shard_map: shard_map_p
    """,
    "_src.sharding": f"""
        {_SHARDINGS}
        meshrt.compat.layer._src.shardings: common_devices_indices_map
    """,
    "_src.sharding_impls": f"""
        {_SHARDINGS}
        meshrt.compat.layer._src.shardings: common_devices_indices_map device_replica_id_map num_addressable_indices
        meshrt.compat.layer._src.shardings: local_to_global_shape get_process_index_and_count
        meshrt.compat.layer._src.shardings: array_mapping_to_axis_resources named_sharding_to_xla_hlo_sharding
        meshrt.compat.layer._src.shardings: NonUniformShardingError make_key_array_phys_sharding physical_sharding
        meshrt.compat.layer._src.gspmd: GSPMDSharding parse_flatten_op_sharding
    """,
    "_src.source_info_util": """
        meshrt.compat.layer._src.name_stacks: NameStack Scope Transform current_name_stack new_name_stack
        meshrt.compat.layer._src.name_stacks: new_source_info
    """,
    "_src.state": _STATE_TYPES,
    "_src.state.discharge": """
        meshrt.compat.layer._src.state.discharged: discharge_state run_state run_state_reference
    """,
    "_src.state.indexing": """
        meshrt.primitives.state_indices: NDIndexer=Indexer Slice ds dslice=ds
    """,
    "_src.state.primitives": """
        meshrt.primitives.references: ref_addupdate ref_get ref_set ref_swap
        meshrt.primitives.state: addupdate_p get_p swap_p
    """,
    "_src.state.types": _STATE_TYPES,
    "_src.tpu.linalg.qdwh": "meshrt.compat.layer._src.polar: qdwh",
    "_src.tree_util": """
        meshrt.tree_util: dispatch_registry=default_registry none_leaf_registry=default_registry
        meshrt.tree_util: tracing_registry=default_registry
    """,
    "_src.xla_bridge": """
        meshrt.extend.backend: backend_xla_version backends
        meshrt.environment: host_id
        meshrt.runtime.backend: local_device_count process_indices
        meshrt.xla.jaxlib_modules: xla_client
    """,
}

# The internal modules of JAX: what a test of its may import, and find what it asks of them missing.
_NAMES = """
    abstract_arrays ad_checkpoint ad_util api api_util array basearray blocked_sampler buffer_callback cache_key
    callback checkify cloud_tpu_init clusters clusters.cloud_tpu_cluster clusters.cluster clusters.k8s_cluster
    clusters.mpi4py_cluster clusters.ompi_cluster clusters.slurm_cluster compilation_cache
    compilation_cache_interface compiler compute_on config core cudnn cudnn.fused_attention_stablehlo cudnn.fusion
    cudnn.scaled_matmul_stablehlo custom_api_util custom_batching custom_derivatives custom_partitioning
    custom_partitioning_sharding_rule debugger debugger.cli_debugger debugger.colab_debugger debugger.colab_lib
    debugger.core debugger.web_debugger debugging deprecations dispatch distributed dlpack dtypes earray effects
    environment_info error_check errors export export._export export.serialization export.serialization_generated
    export.shape_poly export.shape_poly_decision extend extend.random ffi flatten_util frozen_dict hardware_utils
    hashable_array hijax image image.scale indexing internal_test_util internal_test_util.deprecation_module
    internal_test_util.lax_test_util internal_test_util.lazy_loader_module
    internal_test_util.lazy_loader_module.lazy_test_submodule internal_test_util.test_harnesses interpreters
    interpreters.ad interpreters.batching interpreters.mlir interpreters.partial_eval interpreters.pxla
    interpreters.remat jaxpr_util lax lax.ann lax.control_flow lax.control_flow.common lax.control_flow.conditionals
    lax.control_flow.loops lax.control_flow.solves lax.convolution lax.eval_jaxpr lax.fft lax.lax lax.linalg
    lax.other lax.parallel lax.scaled_dot lax.slicing lax.special lax.utils lax.windowed_reductions lax_reference
    layout lazy_loader lib lib.mlir lib.mlir.dialects lib.mosaic_gpu lib.triton linear_util literals logging_config
    lru_cache mesh mesh_utils monitoring named_sharding nn nn.functions nn.initializers numpy
    numpy.array_api_metadata numpy.array_constructors numpy.array_creation numpy.array_methods numpy.einsum
    numpy.error numpy.fft numpy.hijax numpy.index_tricks numpy.indexing numpy.lax_numpy numpy.linalg
    numpy.polynomial numpy.reductions numpy.scalar_types numpy.setops numpy.sorting numpy.tensor_contractions
    numpy.ufunc_api numpy.ufuncs numpy.util numpy.vectorize numpy.window_functions op_shardings ops ops.scatter
    ops.special pallas pallas.core pallas.cost_estimate pallas.einshape pallas.fuser pallas.fuser.block_spec
    pallas.fuser.custom_evaluate pallas.fuser.custom_fusion_lib pallas.fuser.fuser_utils pallas.fuser.fusible
    pallas.fuser.fusible_dtype pallas.fuser.fusion pallas.fuser.jaxpr_fusion pallas.helpers pallas.hlo_interpreter
    pallas.mosaic pallas.mosaic.core pallas.mosaic.error_handling pallas.mosaic.helpers pallas.mosaic.interpret
    pallas.mosaic.interpret.interpret_pallas_call pallas.mosaic.interpret.params
    pallas.mosaic.interpret.race_detection_state pallas.mosaic.interpret.shared_memory
    pallas.mosaic.interpret.thread_map pallas.mosaic.interpret.utils pallas.mosaic.interpret.vector_clock
    pallas.mosaic.lowering pallas.mosaic.pallas_call_registration pallas.mosaic.pipeline pallas.mosaic.primitives
    pallas.mosaic.random pallas.mosaic.sc_core pallas.mosaic.sc_lowering pallas.mosaic.sc_primitives
    pallas.mosaic.tpu_info pallas.mosaic_gpu pallas.mosaic_gpu.core pallas.mosaic_gpu.helpers
    pallas.mosaic_gpu.interpret pallas.mosaic_gpu.interpret.gpu_callbacks
    pallas.mosaic_gpu.interpret.interpret_pallas_call pallas.mosaic_gpu.interpret.jaxpr_interpret
    pallas.mosaic_gpu.interpret.params pallas.mosaic_gpu.interpret.shared_memory pallas.mosaic_gpu.lowering
    pallas.mosaic_gpu.pallas_call_registration pallas.mosaic_gpu.pipeline pallas.mosaic_gpu.primitives
    pallas.mosaic_gpu.torch pallas.mpmd pallas.pallas_call pallas.primitives pallas.triton pallas.triton.core
    pallas.triton.lowering pallas.triton.pallas_call_registration pallas.triton.primitives pallas.utils
    partition_spec path pickle_util pjit pmap pretty_printer profiler public_test_util random random.core
    random.philox2x32 random.philox4x32 random.prng random.rbg random.stateful_rng random.threefry2x32
    random.threefry4x32 ref scipy scipy.cluster scipy.cluster.vq scipy.fft scipy.integrate scipy.linalg
    scipy.ndimage scipy.optimize scipy.optimize._lbfgs scipy.optimize.bfgs scipy.optimize.line_search
    scipy.optimize.minimize scipy.signal scipy.sparse scipy.sparse.linalg scipy.spatial scipy.spatial.transform
    scipy.special scipy.stats scipy.stats._core scipy.stats.bernoulli scipy.stats.beta scipy.stats.betabinom
    scipy.stats.binom scipy.stats.cauchy scipy.stats.chi2 scipy.stats.dirichlet scipy.stats.expon scipy.stats.gamma
    scipy.stats.gennorm scipy.stats.geom scipy.stats.gumbel_l scipy.stats.gumbel_r scipy.stats.kde
    scipy.stats.laplace scipy.stats.logistic scipy.stats.multinomial scipy.stats.multivariate_normal
    scipy.stats.nbinom scipy.stats.norm scipy.stats.pareto scipy.stats.poisson scipy.stats.t scipy.stats.truncnorm
    scipy.stats.uniform scipy.stats.vonmises scipy.stats.wrapcauchy shard_alike shard_map sharding sharding_impls
    source_info_util sourcemap stages state state.discharge state.indexing state.primitives state.types state.utils
    test_loader test_multiprocess test_util test_warning_util third_party tpu tpu.linalg tpu.linalg.eigh
    tpu.linalg.qdwh tpu.linalg.stack tpu.linalg.svd tpu_custom_call traceback_util tree tree_util typing util
    xla_bridge xla_metadata xla_metadata_lib xla_transform
"""
_MODULES = frozenset(f"_src.{name}" for name in _NAMES.split())


def is_internal(name: str) -> bool:
    """Whether `jax.<name>` is an internal module of JAX's."""
    return name == "_src" or name in _MODULES


@functools.cache
def homes(name: str) -> dict[str, str]:
    """By name, where what `jax.<name>` has under it stands: `"meshrt.primitives.call:jit_p"`."""
    found: dict[str, str] = {}
    for line in TABLES.get(name, "").split("\n"):
        home, _, names = line.strip().partition(":")
        for word in names.split():
            theirs, is_renamed, ours = word.partition("=")
            found[theirs] = f"{home}:{ours if is_renamed else theirs}"
    return found
