"""Orders of devices that suit their interconnect (`jax.experimental.mesh_utils`)."""

from meshrt.sharding.device_order import create_device_mesh, create_hybrid_device_mesh

__all__ = ["create_device_mesh", "create_hybrid_device_mesh"]
