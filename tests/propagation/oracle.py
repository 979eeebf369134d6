"""The real Shardy passes inside jaxlib, as a judge: `run_batch` pipes many modules through one subprocess.

The C++ passes abort the process on some inputs, so they never run in the test process. A module that kills the
worker gets None as its answer and the rest go to a fresh worker.

Run as a program, it is the worker: lines of JSON in, lines of JSON out.
"""

from __future__ import annotations

import json
import subprocess
import sys

IMPORT = [
    "symbol-dce",
    "sdy-lift-inlined-meshes",
    "sdy-remove-size-one-axes",
    "sdy-propagate-sharding-from-func-to-call",
    "sdy-constant-or-scalar-splitter",
    "symbol-dce",
    "sdy-manual-axes-cleanup",
    "sdy-add-data-flow-edges",
]
PRE_OLD = [
    "sdy-flatten-call-graph",
    "symbol-dce",
    "sdy-import-func-calls{add-data-flow-edges-on-named-computations=true}",
    "symbol-dce",
    "sdy-apply-sharding-constraints",
    "sdy-sharding-group-import",
    "sdy-pre-order-funcs",
]
PRE_NEW = [
    "sdy-flatten-call-graph",
    "symbol-dce",
    "sdy-add-func-data-flow-edges",
    "sdy-apply-sharding-constraints",
    "func.func(sdy-sink-func-data-flow-edges)",
    "sdy-sharding-group-import",
    "sdy-import-func-calls{add-data-flow-edges-on-named-computations=true}",
    "symbol-dce",
    "sdy-pre-order-funcs",
]
POST = [
    "sdy-export-named-computations",
    "sdy-propagate-to-func-results",
    "sdy-unflatten-call-graph",
    "symbol-dce",
    "sdy-insert-func-call-reshards",
    "func.func(sdy-constant-or-scalar-merger)",
    "func.func(sdy-sink-data-flow-edges)",
]
CLOSE = [
    "sdy-remove-sharding-groups",
    "func.func(sdy-sharding-constraint-to-reshard)",
    "sdy-update-non-divisible-input-output-shardings",
    "sdy-remove-sub-axes-in-input-output-shardings",
    "sdy-close-shardings",
]


def passes(stage: str, is_new: bool) -> list[str]:
    pre = PRE_NEW if is_new else PRE_OLD
    prepare = IMPORT + pre
    propagate = [*prepare, "sdy-user-priority-propagate{keep-sharding-rules=true}"]
    return {
        "rules": ["sdy-populate-op-sharding-rules"],
        "rules-conservative": ["sdy-populate-op-sharding-rules{conservative-propagation=true}"],
        "basic": ["sdy-basic-propagate"],
        "aggressive": ["sdy-aggressive-propagate"],
        "op_priority": ["sdy-op-priority-propagate"],
        "user_priority": ["sdy-user-priority-propagate"],
        "import": IMPORT,
        "prepared": prepare,
        "raw_propagated": propagate,
        "propagated": propagate + POST,
        "closed": propagate + POST + CLOSE,
    }[stage]


def run_batch(jobs: list[tuple[str, str]], timeout: float = 300) -> list[str | None]:
    """[(stage or comma-less pass list joined by newline, module text)] -> module text after, `ERROR: ...`, or None
    where the pass killed its process."""
    answers: list[str | None] = []
    while len(answers) < len(jobs):
        rest = jobs[len(answers) :]
        feed = "\n".join(json.dumps(j) for j in rest) + "\n"
        done = subprocess.run(
            [sys.executable, __file__],
            input=feed.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout,
            check=False,
        )
        lines = done.stdout.decode().splitlines()
        answers += [json.loads(line) for line in lines]
        if len(lines) < len(rest):
            answers.append(None)
    return answers


def _worker() -> None:
    from jaxlib import version
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, sdy, stablehlo
    from jaxlib.mlir.passmanager import PassManager

    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    is_new = tuple(map(int, version.__version__.split(".")[:2])) >= (0, 12)
    for line in sys.stdin:
        stage, text = json.loads(line)
        names = stage.split("\n") if stage.startswith("sdy-") else passes(stage, is_new)
        context = ir.Context()
        context.append_dialect_registry(registry)
        context.load_all_available_dialects()
        for dialect in (stablehlo, chlo, sdy):
            dialect.register_dialect(context)
        context.allow_unregistered_dialects = True
        context.enable_multithreading(False)
        try:
            with context:
                module = ir.Module.parse(text)
                for name in names:
                    try:
                        manager = PassManager.parse(f"builtin.module({name})")
                    except ValueError:
                        manager = PassManager.parse(f"builtin.module(func.func({name}))")
                    manager.run(module.operation)
                answer = str(module)
        except (ir.MLIRError, ValueError) as e:
            answer = "ERROR: " + str(e)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _worker()
