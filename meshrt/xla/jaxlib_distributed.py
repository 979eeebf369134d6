"""jaxlib's distributed runtime: its service, clients of it, and collectives between processes on CPUs.

One of the doors to jaxlib's private modules.
"""

from __future__ import annotations

from typing import Any

import jaxlib._jax as _jax
import jaxlib.version

from meshrt import errors

__all__ = ["distributed_client", "distributed_service", "gloo_collectives", "preemption_manager"]

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


def gloo_collectives(distributed: Any, hostname: str | None = None, interface: str | None = None) -> Any:
    """Collectives over TCP between CPU clients; `hostname` is the address that peers reach this process at."""
    return _jax.make_gloo_tcp_collectives(distributed, hostname=hostname, interface=interface)
