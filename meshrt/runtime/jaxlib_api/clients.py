"""Clients of platforms, topologies of hardware that need not be here, and the distributed runtime."""

from __future__ import annotations

from typing import Any

import jaxlib._jax as _jax
import jaxlib.version
from jaxlib import xla_client as _xc

from meshrt import errors
from meshrt.runtime.jaxlib_api.names import Client

__all__ = [
    "compile_only_devices", "cpu_client", "distributed_client", "distributed_service", "gloo_collectives",
    "gpu_plugin_options", "load_plugin", "plugin_client", "preemption_manager", "topology",
]  # fmt: skip


def cpu_client(
    num_devices: int,
    *,
    distributed: Any = None,
    process_id: int = 0,
    num_processes: int = 1,
    collectives: Any = None,
) -> Client:
    """A CPU client with `num_devices` devices in this process.

    Args:
      distributed: a connected client of the distributed runtime, for several processes.
      collectives: what `gloo_collectives` gives; needed with several processes.
    """
    return _xc.make_cpu_client(
        distributed_client=distributed, node_id=process_id, num_nodes=num_processes, collectives=collectives,
        num_devices=num_devices,
    )  # fmt: skip


def gloo_collectives(distributed: Any, hostname: str | None = None, interface: str | None = None) -> Any:
    """Collectives over TCP between CPU clients; `hostname` is the address that peers reach this process at."""
    return _jax.make_gloo_tcp_collectives(distributed, hostname=hostname, interface=interface)


def plugin_client(name: str, library: str, options: dict[str, Any], distributed: Any = None) -> Client:
    """A client of the PJRT plugin in the shared object `library`; loads it unless it is loaded already."""
    load_plugin(name, library)
    return _xc.make_c_api_client(name, options, distributed)


def load_plugin(name: str, library: str) -> None:
    """Loads and initialises a PJRT plugin once per process."""
    if not _xc.pjrt_plugin_loaded(name):
        _xc.load_pjrt_plugin_dynamically(name, library)
    if not _xc.pjrt_plugin_initialized(name):
        _xc.initialize_pjrt_plugin(name)


def gpu_plugin_options() -> dict[str, Any]:
    """Allocator options for GPU clients, from the XLA_PYTHON_CLIENT_* environment variables."""
    return dict(_xc.generate_pjrt_gpu_plugin_options())


def topology(platform: str, name: str, options: dict[str, Any] | None = None) -> Any:
    """A description of hardware that need not be present; the platform's plugin must be loaded."""
    return _jax.get_default_c_api_topology(platform, name, options or {})


def compile_only_devices(topology_description: Any) -> list[Any]:
    """Devices of a topology, for compiling only, along its dimensions (the last varies fastest) where it has some."""
    devices = topology_description._make_compile_only_devices()
    return sorted(devices, key=lambda d: (*getattr(d, "coords", ()), d.id))


# ----------------------------------------------------------------------------------------------------------
# The distributed runtime.

_MTLS = (
    "mtls_cert_file",
    "mtls_key_file",
    "mtls_ca_file",
    "mtls_peer_uri_prefix",
    "verify_secure_credentials",
)


def _mtls(options: dict[str, Any]) -> dict[str, Any]:
    given = {k: v for k, v in options.items() if v is not None}
    unknown = set(given) - set(_MTLS)
    if unknown:
        raise errors.ArgumentTypeError(f"unknown options {sorted(unknown)}; the secure ones are {', '.join(_MTLS)}")
    if given and "mtls_cert_file" not in (_jax.get_distributed_runtime_client.__doc__ or ""):
        raise errors.UnsupportedError(
            f"jaxlib {jaxlib.version.__version__} has no mutual TLS for its distributed runtime; use jaxlib 0.12 or "
            "newer, or bind the service to a private address"
        )
    return given


def distributed_service(
    address: str,
    num_nodes: int,
    *,
    heartbeat_timeout_s: int | None = None,
    register_timeout_s: int | None = None,
    shutdown_timeout_s: int | None = None,
    recoverable: bool | None = None,
    **mtls: Any,
) -> Any:
    """Starts the coordination service on `address` ("host:port"); it runs until it is dropped or `.shutdown()`.

    Args:
      heartbeat_timeout_s: silence after which a process counts as lost.
      register_timeout_s: how long processes may take to connect.
      recoverable: let a lost process come back under the same id.
      mtls: certificate files (jaxlib 0.12): mtls_cert_file, mtls_key_file, mtls_ca_file, mtls_peer_uri_prefix,
        verify_secure_credentials.
    """
    return _jax.get_distributed_runtime_service(
        address, num_nodes, heartbeat_timeout=heartbeat_timeout_s, cluster_register_timeout=register_timeout_s,
        shutdown_timeout=shutdown_timeout_s, recoverable=recoverable, **_mtls(mtls),
    )  # fmt: skip


def distributed_client(
    address: str,
    node_id: int,
    *,
    rpc_timeout_s: int | None = None,
    init_timeout_s: int | None = None,
    shutdown_timeout_s: int | None = None,
    heartbeat_timeout_s: int | None = None,
    shutdown_on_destruction: bool = False,
    use_compression: bool = True,
    **mtls: Any,
) -> Any:
    """A client of the coordination service, not yet connected (`.connect()`).

    With `shutdown_on_destruction` a process that ends waits for all others in a barrier, so one that fails would
    freeze the job for `shutdown_timeout_s`; hence it is off.
    """
    return _jax.get_distributed_runtime_client(
        address, node_id, rpc_timeout=rpc_timeout_s, init_timeout=init_timeout_s,
        shutdown_timeout=shutdown_timeout_s, heartbeat_timeout=heartbeat_timeout_s,
        shutdown_on_destruction=shutdown_on_destruction, use_compression=use_compression, **_mtls(mtls),
    )  # fmt: skip


def preemption_manager(client: Any) -> Any:
    """Listens for notice (SIGTERM) that a process will be ended and spreads it; `reached_sync_point(step)` asks."""
    manager = _jax.create_preemption_sync_manager()
    manager.initialize(client)
    return manager
