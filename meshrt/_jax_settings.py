"""Settings of JAX that change nothing in meshrt, each with the reason; programs may set them all the same.

`WITHOUT_EFFECT` takes every value of the type of its default; `FIXED` only the default, as other values ask for what is
not there. Settings that act stand in `meshrt.config`.
"""

from __future__ import annotations

from typing import Any

__all__ = ["FIXED", "WITHOUT_EFFECT"]

_TF = "there is no jax2tf"
_PGLE = "no profile is collected for the compiler by itself"
_GPU = "it concerns how jaxlib's GPU plugin is started, which reads its own environment variables"
_HOSTS = "what processes exchange goes through meshrt.launch and jaxlib's own settings"
_ONE_WAY = "there is only one implementation, to which it makes no difference"
_DUMP = "no files are written by themselves: use .as_text() of a station, or the flags of XLA"
_LINES = "operations always carry one line of the user's"
_EFFORT = "give it to jit(..., compiler_options=...)"
_MULTIHOST = "jaxlib's client takes its own default"

#: Name without "jax_" -> (default, why it changes nothing).
WITHOUT_EFFECT: dict[str, tuple[Any, str]] = {
    "softmax_custom_jvp": (False, "nn.softmax always has the derivative that it asks for"),
    "use_direct_linearize": (True, _ONE_WAY),
    "use_simplified_jaxpr_constants": (False, _ONE_WAY),
    "refs_to_pins": (False, "references are values in compiled programs"),
    "mutable_array_checks": (True, "references are always checked for aliases"),
    "custom_vjp3": (False, _ONE_WAY),
    "remat3": (False, _ONE_WAY),
    "scan3": (False, _ONE_WAY),
    "bcoo_cusparse_lowering": (False, "sparse products are made of gathers and scatters"),
    "threefry_gpu_kernel_lowering": (False, "the hash is compiled from its operations"),
    "ragged_dot_use_gpu_pallas_triton_lowering": (False, _ONE_WAY),
    "ragged_dot_use_ragged_dot_instruction": (True, _ONE_WAY),
    "use_magma": ("auto", "eigenvalues are computed by LAPACK"),
    "mosaic_allow_hlo": (False, "kernels for TPUs hold operations of Mosaic alone"),
    "pallas_poison_buffers": (False, "memory of kernels always begins as NaN where loops or the simulator run them"),
    "pallas_use_mosaic_gpu": (True, "kernels for GPUs go through Triton"),
    "pallas_verbose_errors": (False, "errors of kernels always name the line"),
    "use_emit_pipeline_primitive": (False, _ONE_WAY),
    "jax2tf_associative_scan_reductions": (False, _TF),
    "jax2tf_default_native_serialization": (True, _TF),
    "pgle_aggregation_percentile": (90, _PGLE),
    "pgle_profiling_runs": (3, _PGLE),
    "persistent_cache_enable_xla_caches": ("xla_gpu_per_fusion_autotune_cache_dir", "XLA's own caches are not used"),
    "compilation_cache_check_contents": (False, "entries carry a checksum, which is always looked at"),
    "remove_custom_partitioning_ptr_from_cache_key": (False, "no pointer stands in a key"),
    "share_binary_between_hosts": (False, "processes share programs through the directory of compiled programs"),
    "share_binary_between_hosts_timeout_ms": (1200000, "processes share programs through that directory"),
    "captured_constants_report_frames": (0, "captured arrays are arguments of the program"),
    "captured_constants_warn_bytes": (2000000000, "captured arrays are arguments of the program"),
    "embedded_constants_max_bytes": (32, "captured arrays are arguments of the program"),
    "check_proxy_envs": (True, _HOSTS),
    "enable_preemption_service": (True, _HOSTS),
    "debug_leaked_clients_on_clear_backends": (False, "clients live as long as their arrays"),
    "cpu_enable_async_dispatch": (True, "max_in_flight bounds how many programs are on their way"),
    "sort_devices_by_process_index": (True, "devices are sorted by their numbers, which follow the processes"),
    "compiler_detailed_logging_min_ops": (10, "log_compiles logs each compilation alike"),
    "compiler_enable_remat_pass": (True, "what is computed again is said by checkpoint"),
    "xla_profile_version": (0, _PGLE),
    "dump_ir_modes": ("stablehlo", _DUMP),
    "include_debug_info_in_dumps": (True, _DUMP),
    "include_full_tracebacks_in_locations": (True, _LINES),
    "traceback_in_locations_limit": (100, _LINES),
    "tracer_error_num_traceback_frames": (5, _LINES),
    "send_traceback_to_runtime": ("off", _LINES),
    "pprint_use_color": (True, "programs are printed without colours"),
    "experimental_unsafe_xla_runtime_errors": (False, "errors of XLA always reach the caller"),
    "serialization_version": (0, "there is one form of saved programs: docs/aot.md"),
}

#: Name without "jax_" -> (default, what other values ask for that is not there).
FIXED: dict[str, tuple[Any, str]] = {
    "allow_f16_reductions": (True, "sums of 16-bit floats are not refused"),
    "check_static_indices": (False, "indices are not checked when programs are traced"),
    "cpu_collectives_implementation": ("gloo", "processes on CPUs talk through gloo"),
    "use_shardy_partitioner": (True, "shardings are Shardy's; see the settings 'propagator' and 'partitioner'"),
    "disallow_mesh_context_manager": (False, "`with mesh:` is allowed"),
    "error_checking_behavior_divide": ("ignore", "use meshrt.experimental.checkify"),
    "error_checking_behavior_nan": ("ignore", "use meshrt.experimental.checkify, or debug_nans"),
    "error_checking_behavior_oob": ("ignore", "use meshrt.experimental.checkify"),
    "high_dynamic_range_gumbel": (False, "random.gumbel takes mode='highest' for it"),
    "dump_ir_to": ("", _DUMP),
    "mock_gpu_topology": ("", "programs for hardware that is not here: experimental.topologies"),
    "backend_target": ("", "there are no remote backends"),
    "xla_backend": ("", "platforms are chosen by the setting 'platforms'"),
    "exec_time_optimization_effort": (0.0, _EFFORT),
    "memory_fitting_effort": (0.0, _EFFORT),
    "memory_fitting_level": ("O2", _EFFORT),
    "optimization_level": ("UNKNOWN", _EFFORT),
    "disable_most_optimizations": (False, _EFFORT),
    "enable_pgle": (False, _PGLE),
    "compilation_cache_expect_pgle": (False, _PGLE),
    "force_dcn_cross_host_transfers": (False, _HOSTS),
    "cross_host_transfer_socket_address": ("", _HOSTS),
    "cross_host_transport_addresses": ("", _HOSTS),
    "debug_log_modules": ("", "loggers are those of Python's logging, named meshrt.*"),
    "logging_level": ("NOTSET", "loggers are those of Python's logging, named meshrt.*"),
    "log_checkpoint_residuals": (False, "ad_checkpoint.print_saved_residuals prints what is saved"),
    "disable_bwd_checks": (False, "cotangents are always checked"),
    "disable_vmap_shmap_error": (False, "vmap of shard_map over an axis of the mesh is refused"),
    "cuda_visible_devices": ("all", _GPU),
    "oneapi_visible_devices": ("all", _GPU),
    "rocm_visible_devices": ("all", _GPU),
    "cpu_get_global_topology_timeout_minutes": (5, _MULTIHOST),
    "cpu_get_local_topology_timeout_minutes": (2, _MULTIHOST),
    "distributed_debug": (False, _HOSTS),
    "cross_host_transfer_timeout_seconds": (None, _HOSTS),
    "cross_host_transfer_transfer_size": (None, _HOSTS),
    "explicit_x64_dtypes": ("warn", "types of 64 bits that are asked for are narrowed, with a warning"),
    "hlo_source_file_canonicalization_regex": (None, _LINES),
    "pjrt_client_create_options": (None, _GPU),
    "source_url_schema": (None, _LINES),
}
