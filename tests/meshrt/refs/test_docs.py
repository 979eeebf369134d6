"""The examples of docs/refs.md and of the docstrings run as they stand."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp

PAGE = Path(__file__).resolve().parents[3] / "docs" / "refs.md"
MODULES = [
    "meshrt.ref", "meshrt.ad", "meshrt.primitives.references", "meshrt.primitives.state_indices",
    "meshrt.transforms.discharge", "meshrt.transforms.linear_maps", "meshrt.runtime.reference",
    "meshrt.core.references", "meshrt.experimental.kernels.scopes", "meshrt.experimental.kernels.core_map",
]  # fmt: skip


def test_the_page():
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    names = {
        "lax": meshrt.lax, "w": jnp.ones(3), "batches": jnp.arange(12.0).reshape(4, 3),
        "loss_of": lambda w, x: ((w * x) ** 2).sum(),
    }  # fmt: skip
    exec("\n".join(blocks), names)  # the page is ours
    np.testing.assert_array_equal(names["ref"][...], [0, 2, 4, 6])
    total = meshrt.new_ref(jnp.zeros(3))
    losses = names["accumulate"](total, names["w"], names["batches"])
    np.testing.assert_allclose(losses, (names["batches"] ** 2).sum(1), rtol=1e-6)
    np.testing.assert_allclose(total[...], 2 * (names["batches"] ** 2).sum(0), rtol=1e-6)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    module = importlib.import_module(name)
    found = doctest.testmod(module, extraglobs={"meshrt": meshrt, "jnp": jnp}, optionflags=doctest.ELLIPSIS)
    assert found.attempted and not found.failed
