"""`jax._src.cloud_tpu_init`."""

from meshrt.compat.layer._src.test_util.devices import is_cloud_tpu as _is_cloud_tpu

__all__ = ["running_in_cloud_tpu_vm"]

running_in_cloud_tpu_vm = _is_cloud_tpu()
