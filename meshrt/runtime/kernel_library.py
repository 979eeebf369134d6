"""What XLA's compiler for CPUs hands to YNNPACK, a library of kernels, and what to Eigen."""

from __future__ import annotations

import math
import os
import re

from meshrt import config
from meshrt.heuristics import SMALL_KERNEL_BYTES
from propagation.heuristics import NARROW_TYPES

__all__ = ["asked_ynnpack", "left_to_ynnpack"]

# (Texts: `re` compiles them when they are first asked for, and keeps them.)
_NARROW = rf"[x<](?:{'|'.join(sorted(NARROW_TYPES))})>"
# Shape and width of the second operand of each convolution.
_KERNELS = r"stablehlo\.convolution\b[^\n]*: \(tensor<[^>]*>, tensor<((?:\d+x)*)f(\d+)>\) ->"
_NARROW_IN_BYTECODE = rb"bf16|i[48]|f[4-8]E"


def asked_ynnpack() -> str:
    """Whether XLA's CPU compiler shall hand matrix products and reductions to YNNPACK, as the setting `cpu_ynnpack` and
    XLA's flags say: "always", "never", or "narrow", for programs that have narrow types."""
    wanted = config.settings.cpu_ynnpack
    if wanted == "auto":
        return "always" if "xla_cpu_experimental_ynn_fusion_type" in os.environ.get("XLA_FLAGS", "") else "narrow"
    return wanted


def left_to_ynnpack(module: str | bytes, num_devices: int) -> str:
    """What XLA's CPU compiler shall hand to YNNPACK: "all", "products" (and convolutions), "convolutions" or "none".

    It prepares each product once more for every device, at the first execution on each set of devices: 2 to 5 ms
    apiece, half a second for six layers. Eigen needs no preparation, and is as fast except with narrow types, and for
    convolutions with small kernels where each core has a device to work for: it spreads one over several cores, but
    takes more of their time.

    Reductions are handed over on request only, by "all": with what is computed before them, YNNPACK gets them wrong
    where `maximum`, `minimum` or `clamp` meets NaN (it is lost), where floats become 8-bit integers (they wrap around),
    and where a product by a constant is rounded to bfloat16 before `exp`, `log`, `logistic` or `erf` (the constant
    counts twice, so that sums of `exp2` are infinite; jaxlib 0.10.2). Sums alone, of which it gets none wrong, take as
    much of the cores' time with it (0.75 to 1.1, bfloat16, half a million to 16 million elements). That has a price:
    code of XLA's own for reductions is a third of what a transformer's train step takes to compile.
    """
    asked = asked_ynnpack()
    if asked != "narrow":
        return "all" if asked == "always" else "none"
    if (re.search(_NARROW, module) if isinstance(module, str) else re.search(_NARROW_IN_BYTECODE, module)) is not None:
        return "products"
    if num_devices < len(os.sched_getaffinity(0)) or not isinstance(module, str):
        return "none"
    kernels = re.findall(_KERNELS, module)
    small = all(_bytes_of(shape, int(bits)) <= SMALL_KERNEL_BYTES for shape, bits in kernels)
    return "convolutions" if kernels and small else "none"


def _bytes_of(shape: str, bits: int) -> int:
    return math.prod(int(n) for n in shape.split("x") if n) * bits // 8
