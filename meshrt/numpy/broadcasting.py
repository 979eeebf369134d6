"""The shape that operands have together, and what is said where they have none."""

from __future__ import annotations

import warnings
from functools import lru_cache

from meshrt import errors
from meshrt.config import settings
from meshrt.core.dimensions.arithmetic import broadcast_shapes as common_sizes
from meshrt.core.source import user_stacklevel
from meshrt.core.types import ShapedArray

__all__ = ["ShapeError", "broadcast_shapes", "common_shape", "ranked_shape", "refuse_broadcast"]


class ShapeError(errors.ArgumentShapeError):
    """Shapes that do not fit each other or the operation."""


@lru_cache(maxsize=4096)
def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all ``shapes`` broadcast to. Raises ShapeError if there is none."""
    try:
        return common_sizes(*shapes)
    except ValueError:
        listed = ", ".join(map(str, shapes))
        raise ShapeError(f"Incompatible shapes for broadcasting: shapes=[{listed}]. {_ALIGNED}") from None


_ALIGNED = "Dimensions, aligned from the right, must be equal or 1; add dimensions with x[:, None] or jnp.expand_dims"


def refuse_broadcast(aval: ShapedArray, shape: tuple[int, ...]) -> None:
    """Raises ShapeError unless an array of a type broadcasts to a shape."""
    own = aval.shape
    if len(shape) < len(own):
        raise ShapeError(f"Cannot broadcast to shape with fewer dimensions: arr_shape={own} shape={shape}")
    if any(m not in (1, n) for m, n in zip(own[::-1], shape[::-1])):
        wanted = ",".join(map(str, shape))
        raise ShapeError(
            f"Incompatible types for broadcasting: input type={aval.str_short()} and requested "
            f"type={aval.dtype}[{wanted}]"
        )


def ranked_shape(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """As :func:`common_shape`, if the setting `numpy_rank_promotion` allows to combine arrays of these ranks."""
    what = settings.numpy_rank_promotion
    if what != "allow" and len({len(s) for s in shapes if s}) > 1:
        listed = " ".join(map(str, shapes))
        if what == "raise":
            raise ShapeError(
                f"Operands could not be broadcast together for {name} on shapes {listed} and with the config option "
                "jax_numpy_rank_promotion='raise'; give them one rank with jnp.expand_dims or jnp.broadcast_to"
            )
        warnings.warn(
            f"Following NumPy automatic rank promotion for {name} on shapes {listed}. Set the "
            "jax_numpy_rank_promotion config option to 'allow' to have no warning",
            stacklevel=user_stacklevel(),
        )
    return common_shape(name, *shapes)


def common_shape(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """As :func:`broadcast_shapes`, for the function ``name``. Of shapes of one rank the primitive's name is given."""
    try:
        return broadcast_shapes(*shapes)
    except ShapeError as e:
        if name in _ALL_TOGETHER or len({len(s) for s in shapes if s}) > 1:
            raise ShapeError(f"{e} (in {name})") from None
        listed = ", ".join(map(str, shapes))
        named = _PRIMITIVES.get(name, name)
        raise ShapeError(f"{named} got incompatible shapes for broadcasting: {listed}. {_ALIGNED}") from None


# Functions that bring their operands to one shape before any operation meets them.
_ALL_TOGETHER = frozenset(["where", "broadcast_arrays", "polyval", "linspace", "solve", "ldexp", "choose", "select"])
# The operations that functions of other names are.
_PRIMITIVES = {
    "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub", "equal": "eq", "not_equal": "ne",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "maximum": "max", "minimum": "min",
    "arctan2": "atan2", "fmod": "rem", "remainder": "rem", "left_shift": "shift_left", "power": "pow",
    "right_shift": "shift_right_arithmetic", "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor",
    "float_power": "pow", "logical_and": "and", "logical_or": "or", "logical_xor": "xor",
}  # fmt: skip
