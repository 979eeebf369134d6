"""The reference: a page of Markdown for each public module, made of signatures and docstrings.

>>> "## sum" in page("meshrt.numpy")
True
"""

from __future__ import annotations

import importlib
import inspect
import re
import types
from typing import Any

__all__ = ["GROUPS", "MODULES", "markdown", "page", "public_names"]

# What the pages of the reference are, in the order of the table of contents.
GROUPS = {
    "Programs": ["meshrt", "meshrt.stages", "meshrt.config", "meshrt.errors"],
    "Arrays": ["meshrt.numpy", "meshrt.numpy.linalg", "meshrt.numpy.fft", "meshrt.lax", "meshrt.lax.linalg",
               "meshrt.random", "meshrt.dtypes", "meshrt.ref", "meshrt.dlpack", "meshrt.memory"],
    "Networks": ["meshrt.nn", "meshrt.nn.initializers", "meshrt.image", "meshrt.ops",
                 "meshrt.example_libraries.optimizers", "meshrt.example_libraries.stax",
                 "meshrt.experimental.rnn"],
    "SciPy": ["meshrt.scipy.special", "meshrt.scipy.stats", "meshrt.scipy.linalg", "meshrt.scipy.signal",
              "meshrt.scipy.fft", "meshrt.scipy.ndimage", "meshrt.scipy.interpolate", "meshrt.scipy.optimize",
              "meshrt.scipy.cluster.vq", "meshrt.scipy.spatial.transform", "meshrt.scipy.sparse.linalg"],
    "Trees": ["meshrt.tree", "meshrt.tree_util", "meshrt.flatten_util"],
    "Meshes and shardings": ["meshrt.sharding", "meshrt.experimental.custom_partitioning",
                             "meshrt.experimental.topologies"],
    "Transformations": ["meshrt.ad", "meshrt.ad_checkpoint", "meshrt.custom_batching", "meshrt.custom_derivatives",
                        "meshrt.experimental.checkify", "meshrt.experimental.compute_on", "meshrt.experimental.jet",
                        "meshrt.experimental.ode", "meshrt.experimental.sparse"],
    "Files and processes": ["meshrt.checkpoint", "meshrt.export", "meshrt.distributed",
                            "meshrt.experimental.multihost_utils", "meshrt.ffi"],
    "Looking at programs": ["meshrt.inspect", "meshrt.debug", "meshrt.profiler", "meshrt.monitoring", "meshrt.caches",
                            "meshrt.test_util", "meshrt.compat", "meshrt.examples"],
    "Engines": ["propagation", "propagation.errors", "collectives", "collectives.errors"],
}  # fmt: skip
MODULES = [name for names in GROUPS.values() for name in names]

# `meshrt.lax` collects what the files of operations list; these serve other rooms and are not meant for users.
_FOR_ROOMS = frozenset({
    "Bitcast", "Custom", "Indexer", "Level", "Partitioning", "Reshape", "TensorInfo", "Transpose", "View",
    "check_unused", "constrained", "entered", "in_auto_mode", "is_explicit", "jaxpr_signature", "mapped_call", "move",
    "opened_type", "read", "signature_of", "split_by", "unsplit", "view_of", "write", "written_in_place",
})  # fmt: skip
_GIVEN = (
    "Examples run with `import meshrt`, `import meshrt.numpy as jnp`, `import numpy as np`, `from meshrt import lax` "
    "and `from meshrt.experimental import sparse` in front."
)
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Example|Examples|Attributes):\s*$")
_ITEM = re.compile(r"^(\s*)([*\w., ]+):\s+(.*)$")


def public_names(module: types.ModuleType) -> list[str]:
    """The names that a module lists in `__all__`, else those it defines itself, without a leading underscore."""
    listed = getattr(module, "__all__", None)
    if listed is None:
        package = module.__name__.partition(".")[0]
        listed = [n for n, v in vars(module).items() if (getattr(v, "__module__", None) or "").startswith(package)]
    hidden = _FOR_ROOMS if module.__name__ == "meshrt.lax" else frozenset()
    return sorted((n for n in set(listed) if not n.startswith("_") and n not in hidden), key=lambda n: (n.lower(), n))


def page(name: str) -> str:
    """The page of the module `name`."""
    module = importlib.import_module(name)
    parts = [f"# `{name}`", markdown(inspect.getdoc(module) or ""), _GIVEN]
    values, others = [], []
    for public in public_names(module):
        value = getattr(module, public)
        if isinstance(value, types.ModuleType):
            continue
        if callable(value) and (inspect.getdoc(value) or "") != (inspect.getdoc(type(value)) or ""):
            values.append(_entry(public, value))
        else:
            others.append(f"`{public}`")
    parts += values
    if others:
        parts += ["## Values", ", ".join(others)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _entry(name: str, value: Any, level: int = 2) -> str:
    said = markdown(inspect.getdoc(value) or "")
    parts = [f"{'#' * level} {name}", f"```python\n{name}{_signature(value)}\n```", said]
    if inspect.isclass(value) and level == 2 and not issubclass(value, BaseException):
        for inner, method in vars(value).items():
            method = getattr(method, "__func__", method)
            if not inner.startswith("_") and inspect.isfunction(method) and method.__doc__:
                parts.append(_entry(f"{name}.{inner}", method, 3))
    return "\n\n".join(part for part in parts if part)


def _signature(value: Any) -> str:
    """The signature without annotations, which for most functions would say Any; empty where there is none."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values() if p.name != "self"]
    text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    text = re.sub(r"<class '([\w.]+)'>", r"\1", text)
    return re.sub(r"<(?:function )?(?:[\w.]*(?:<\w+>)?\.)*(\w+)[^<>]* at 0x[0-9a-f]+>", r"\1", text)


def markdown(docstring: str) -> str:
    """A docstring as Markdown: sections become lists, examples become blocks.

    >>> markdown("Adds.\\n\\nArgs:\\n  x: one,\\n    array.").splitlines()
    ['Adds.', '', '**Args**', '', '* `x`: one, array.']
    >>> [line.strip("`") for line in markdown(">>> 1 + 1\\n2").splitlines()]
    ['pycon', '>>> 1 + 1', '2', '']
    """
    lines = re.sub(r"``([^`]+)``", r"`\1`", docstring).splitlines()
    out: list[str] = []
    i = 0
    while i < len(lines):
        line = lines[i]
        if line.lstrip().startswith(">>>"):
            i = _example(lines, i, out)
        elif match := _SECTION.match(line):
            i = _section(match[1], lines, i + 1, out)
        else:
            out.append(_escaped(line))
            i += 1
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip()


def _example(lines: list[str], i: int, out: list[str]) -> int:
    indent = len(lines[i]) - len(lines[i].lstrip())
    out += ["", "```pycon"]
    while i < len(lines) and lines[i].strip():
        out.append(lines[i][indent:].partition("  # doctest:")[0])
        i += 1
    out += ["```", ""]
    return i


def _section(title: str, lines: list[str], i: int, out: list[str]) -> int:
    """The indented lines behind a head such as ``Args:``: an item for each name, or plain text."""
    body = []
    while i < len(lines) and (lines[i].startswith(" ") or not lines[i].strip()):
        if not lines[i].strip() and not (i + 1 < len(lines) and lines[i + 1].startswith(" ")):
            break
        body.append(lines[i])
        i += 1
    out += ["", f"**{title}**", ""]
    first = min((len(line) - len(line.lstrip()) for line in body if line.strip()), default=0)
    for line in body:
        item = _ITEM.match(line)
        if item and len(item[1]) == first and title != "Returns":
            out.append(f"* `{item[2]}`: {_escaped(item[3])}")
        elif line.strip() and out[-1].startswith("*") and len(line) - len(line.lstrip()) > first:
            out[-1] += " " + _escaped(line.strip())
        else:
            out.append(_escaped(line.strip()))
    out.append("")
    return i


def _escaped(line: str) -> str:
    """Text in which brackets mean themselves: what stands between backticks is left alone."""
    pieces = line.split("`")
    pieces[::2] = [re.sub(r"(?<!\])\[", r"\\[", p.replace("<", "&lt;")) for p in pieces[::2]]
    return "`".join(pieces)
