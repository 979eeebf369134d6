"""meshrt runs a NumPy-style Python function on a mesh of devices.

The public names are JAX's, so a training script changes its import line:

    import meshrt as jax
    import meshrt.numpy as jnp
"""

from meshrt import dispatch as _dispatch  # noqa: F401  (eager evaluation registers itself)
from meshrt import (
    ad_checkpoint as ad_checkpoint,
    config as config,
    custom_derivatives as custom_derivatives,
    distributed as distributed,
    dtypes as dtypes,
    errors as errors,
    lax as lax,
    nn as nn,
    numpy as numpy,
    random as random,
    sharding as sharding,
    stages as stages,
    tree as tree,
    tree_util as tree_util,
)
from meshrt.api import (
    eval_shape as eval_shape,
    grad as grad,
    hessian as hessian,
    jacfwd as jacfwd,
    jacobian as jacobian,
    jacrev as jacrev,
    jvp as jvp,
    linear_transpose as linear_transpose,
    linearize as linearize,
    make_jaxpr as make_jaxpr,
    value_and_grad as value_and_grad,
    vjp as vjp,
    vmap as vmap,
)
from meshrt.core.source import named_scope as named_scope
from meshrt.core.types import aval_of as typeof
from meshrt.jit import jit as jit
from meshrt.runtime.array import Array as Array
from meshrt.runtime.backend import (
    clear_backends as clear_backends,
    default_backend as default_backend,
    device_count as device_count,
    devices as devices,
    local_device_count as local_device_count,
    local_devices as local_devices,
    process_count as process_count,
    process_index as process_index,
)
from meshrt.runtime.transfer import (
    block_until_ready as block_until_ready,
    device_get as device_get,
    device_put as device_put,
    make_array_from_callback as make_array_from_callback,
    make_array_from_process_local_data as make_array_from_process_local_data,
    make_array_from_single_device_arrays as make_array_from_single_device_arrays,
)
from meshrt.shape_dtype import ShapeDtypeStruct as ShapeDtypeStruct
from meshrt.sharding import NamedSharding as NamedSharding
from meshrt.sharding import P as P
from meshrt.sharding.context import set_mesh as set_mesh
from meshrt.sharding.make import make_mesh as make_mesh
from meshrt.transforms.checkpoint import checkpoint as checkpoint
from meshrt.transforms.checkpoint import remat as remat
from meshrt.transforms.checkpoint_policies import checkpoint_policies as checkpoint_policies
from meshrt.transforms.custom_derivatives import (
    closure_convert as closure_convert,
    custom_gradient as custom_gradient,
    custom_jvp as custom_jvp,
    custom_vjp as custom_vjp,
)

__version__ = "0.1.0"

