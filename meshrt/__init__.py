"""meshrt runs a NumPy-style Python function on a mesh of devices.

The public names are JAX's, so a training script changes its import line:

    import meshrt as jax
    import meshrt.numpy as jnp
"""

import importlib
from typing import TYPE_CHECKING

from meshrt import _collection, _interrupts, _start

_start.launch_if_asked()

with _collection.paused(), _interrupts.deferred():
    from meshrt import (
        ad_checkpoint,
        config,
        custom_derivatives,
        debug,
        dlpack,
        dtypes,
        errors,
        lax,
        memory,
        numpy,
        ref,
        sharding,
        stages,
        tree,
        tree_util,
        version,
    )
    from meshrt import dispatch as _dispatch  # noqa: F401  (eager evaluation registers itself)
    from meshrt.api import fwd_and_bwd, grad, jvp, linear_transpose, linearize, value_and_grad, vjp
    from meshrt.caches import clear_caches
    from meshrt.contexts import (
        allow_f16_reductions,
        array_garbage_collection_guard,
        auto_pcast,
        check_tracer_leaks,
        checking_leaks,
        debug_infs,
        debug_key_reuse,
        debug_nans,
        default_device,
        default_matmul_precision,
        default_prng_impl,
        disable_jit,
        enable_checks,
        enable_custom_prng,
        enable_x64,
        explain_cache_misses,
        legacy_prng_key,
        log_compiles,
        make_user_context,
        no_execution,
        no_tracing,
        numpy_dtype_promotion,
        numpy_rank_promotion,
        remove_size_one_mesh_axis_from_type,
        softmax_custom_jvp,
        thread_guard,
        threefry_partitionable,
        transfer_guard,
        transfer_guard_device_to_device,
        transfer_guard_device_to_host,
        transfer_guard_host_to_device,
    )
    from meshrt.core.eager import ensure_compile_time_eval
    from meshrt.core.source import named_call, named_scope
    from meshrt.dtypes import float0
    from meshrt.jacobians import hessian, jacfwd, jacobian, jacrev
    from meshrt.jit import explain_cache_miss, jit
    from meshrt.pmap import pmap
    from meshrt.primitives.axis_types import auto_axes, explicit_axes
    from meshrt.primitives.callback import pure_callback
    from meshrt.primitives.device_put import device_put
    from meshrt.primitives.references import empty_ref, free_ref, freeze, new_ref
    from meshrt.primitives.reshard import reshard, typeof
    from meshrt.primitives.state_indices import ds
    from meshrt.runtime import pickling as _pickling  # noqa: F401  (arrays register themselves)
    from meshrt.runtime.array import Array, Shard
    from meshrt.runtime.assembly import (
        make_array_from_callback,
        make_array_from_process_local_data,
        make_array_from_single_device_arrays,
    )
    from meshrt.runtime.backend import (
        clear_backends,
        default_backend,
        device_count,
        devices,
        local_device_count,
        local_devices,
        process_count,
        process_index,
        process_indices,
    )
    from meshrt.runtime.host_calls import effects_barrier
    from meshrt.runtime.live_arrays import live_arrays
    from meshrt.runtime.reference import Ref
    from meshrt.runtime.transfer import block_until_ready, copy_to_host_async, device_get
    from meshrt.shape_dtype import ShapeDtypeStruct
    from meshrt.shard_map import shard_map, smap
    from meshrt.sharding import NamedSharding, P
    from meshrt.sharding.context import get_mesh, set_mesh
    from meshrt.sharding.make import make_mesh
    from meshrt.staging import eval_shape, make_jaxpr
    from meshrt.transforms.checkpoint import remat
    from meshrt.transforms.checkpoint_policies import checkpoint_policies
    from meshrt.transforms.custom_derivatives import closure_convert, custom_gradient, custom_jvp, custom_vjp
    from meshrt.transforms.vmap import vmap
    from meshrt.xla.jaxlib_api import Device

__all__ = [
    "Array", "Device", "NamedSharding", "P", "Ref", "ShapeDtypeStruct", "Shard", "ad_checkpoint",
    "allow_f16_reductions", "array_garbage_collection_guard", "auto_pcast", "block_until_ready", "check_tracer_leaks",
    "checking_leaks", "checkpoint", "checkpoint_policies", "clear_backends", "clear_caches", "closure_convert",
    "config", "copy_to_host_async", "custom_derivatives", "custom_gradient", "custom_jvp", "custom_vjp", "debug",
    "debug_infs", "debug_key_reuse", "debug_nans", "default_backend", "default_device", "default_matmul_precision",
    "default_prng_impl", "device_count", "device_get", "device_put", "devices", "disable_jit", "dlpack",
    "ds", "dtypes", "effects_barrier", "empty_ref", "enable_checks", "enable_custom_prng", "enable_x64",
    "ensure_compile_time_eval", "errors", "eval_shape", "explain_cache_miss", "explain_cache_misses", "float0",
    "free_ref", "freeze", "fwd_and_bwd", "get_mesh", "grad", "hessian", "jacfwd", "jacobian", "jacrev", "jit", "jvp",
    "lax", "legacy_prng_key", "linear_transpose", "linearize", "live_arrays", "local_device_count", "local_devices",
    "log_compiles", "make_array_from_callback", "make_array_from_process_local_data",
    "make_array_from_single_device_arrays", "make_jaxpr", "make_mesh", "make_user_context", "memory", "named_call",
    "named_scope", "new_ref", "nn", "no_execution", "no_tracing", "numpy", "numpy_dtype_promotion",
    "numpy_rank_promotion", "pmap", "process_count", "process_index", "process_indices", "pure_callback", "random",
    "ref", "remat", "remove_size_one_mesh_axis_from_type", "reshard", "set_mesh", "shard_map", "sharding", "smap",
    "softmax_custom_jvp", "stages", "thread_guard", "threefry_partitionable", "transfer_guard",
    "transfer_guard_device_to_device", "transfer_guard_device_to_host", "transfer_guard_host_to_device", "tree",
    "tree_util", "typeof", "value_and_grad", "version", "vjp", "vmap",
]  # fmt: skip

# They stand in rooms above the one where users find them.
sharding.auto_axes, sharding.explicit_axes, sharding.reshard = auto_axes, explicit_axes, reshard

__version__, __version_info__ = version.__version__, version.__version_info__

# Public modules that nothing above needs: imported when they are asked for, which keeps the start short.
_LATER = frozenset([
    "ad", "checkpoint", "custom_batching", "distributed", "example_libraries", "experimental", "export", "extend",
    "ffi", "flatten_util", "image", "interpreters", "monitoring", "nn", "ops", "profiler", "random", "scipy",
    "test_util", "typing",
])  # fmt: skip
_IN_ENVIRONMENT = frozenset(["host_count", "host_id", "host_ids", "print_environment_info"])


if TYPE_CHECKING:
    from meshrt import (  # noqa: F401  (names that a checker knows)
        ad,
        custom_batching,
        distributed,
        example_libraries,
        experimental,
        export,
        extend,
        ffi,
        flatten_util,
        image,
        interpreters,
        monitoring,
        nn,
        ops,
        profiler,
        random,
        scipy,
        test_util,
        typing,
    )

    # The module of that name is also this function.
    from meshrt.transforms.checkpoint import checkpoint

if not TYPE_CHECKING:  # a checker reports names that do not exist

    def __getattr__(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _LATER:
            return importlib.import_module(f"meshrt.{name}")  # (`from meshrt import` would ask here)
        if name in _IN_ENVIRONMENT:
            return getattr(importlib.import_module("meshrt.environment"), name)
        if name == "load_executable":  # start-up time: programs in files are for few
            return importlib.import_module("meshrt.pipeline.loading").load
        raise errors.missing_name("meshrt", name, (*__all__, *_LATER, *_IN_ENVIRONMENT))


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, *_IN_ENVIRONMENT})
