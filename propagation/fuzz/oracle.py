"""The real Shardy passes inside jaxlib, as a judge, in a child process.

The C++ passes abort their process on some inputs, so they never run in this one. `Oracle` keeps one child; a module
that kills it (or takes longer than the limit) gets None as its answer, and the next one goes to a fresh child.

Run as a program, this file is the child: lines of JSON in, lines of JSON out.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import Any

from jaxlib import version
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, sdy, stablehlo
from jaxlib.mlir.passmanager import PassManager

__all__ = ["Oracle", "passes", "run_batch"]

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
PREPARE_OLD = [
    "sdy-flatten-call-graph",
    "symbol-dce",
    "sdy-import-func-calls{add-data-flow-edges-on-named-computations=true}",
    "symbol-dce",
    "sdy-apply-sharding-constraints",
    "sdy-sharding-group-import",
    "sdy-pre-order-funcs",
]
PREPARE_NEW = [
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
RETURN = [
    "sdy-export-named-computations",
    "sdy-propagate-to-func-results",
    "sdy-unflatten-call-graph",
    "symbol-dce",
    "sdy-insert-func-call-reshards",
    "func.func(sdy-constant-or-scalar-merger)",
    "func.func(sdy-sink-data-flow-edges)",
]
# With `dedup-functions-fully`: functions are not inlined, edges connect them.
PREPARE_SHARED = [
    "sdy-apply-sharding-constraints",
    "sdy-sharding-group-import",
    "sdy-add-func-data-flow-edges",
    "sdy-pre-order-funcs",
]
RETURN_SHARED = [
    "sdy-propagate-to-func-results",
    "func.func(sdy-sink-func-data-flow-edges)",
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
    """The passes of one of our stages; `is_new`: in the order of jaxlib 0.12. `dedup-` in front of a stage stands for
    the option `dedup_functions_fully`."""
    stage, is_shared = stage.removeprefix("dedup-"), stage.startswith("dedup-")
    prepare = IMPORT + (PREPARE_SHARED if is_shared else PREPARE_NEW if is_new else PREPARE_OLD)
    propagate = [*prepare, "sdy-user-priority-propagate{keep-sharding-rules=true}"]
    restore = RETURN_SHARED if is_shared else RETURN
    return {
        "rules": ["sdy-populate-op-sharding-rules"],
        "rules-conservative": ["sdy-populate-op-sharding-rules{conservative-propagation=true}"],
        "basic": ["sdy-basic-propagate"],
        "aggressive": ["sdy-aggressive-propagate"],
        "op_priority": ["sdy-op-priority-propagate"],
        "user_priority": ["sdy-user-priority-propagate"],
        "import": IMPORT + (PREPARE_SHARED[:2] if is_shared else []),
        "prepared": prepare,
        "raw_propagated": propagate,
        "propagated": propagate + restore,
        "closed": propagate + restore + CLOSE,
        "pipeline": ["sdy-propagation-pipeline" + "{dedup-functions-fully=true}" * is_shared],
    }[stage]


class Oracle:
    """One child process that runs the real passes. A context manager; not for use by several threads at once.

    timeout_s   seconds a module may take before its child is replaced
    """

    def __init__(self, timeout_s: float = 120.0):
        self.timeout_s = timeout_s
        self._child: subprocess.Popen[bytes] | None = None
        self._answers: queue.Queue[bytes] = queue.Queue()

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, stage: str, text: str) -> str | None:
        """The module after `stage` (a name of `passes`, or passes starting with `sdy-`, one a line), a text starting
        with `ERROR: ` if the passes refuse it, None if they killed their process."""
        child = self._child if self._child is not None and self._child.poll() is None else self._start()
        try:
            assert child.stdin is not None  # a pipe
            child.stdin.write(json.dumps([stage, text]).encode() + b"\n")
            child.stdin.flush()
            line = self._answers.get(timeout=self.timeout_s)
        except (BrokenPipeError, queue.Empty):
            line = b""
        if not line:
            self.close()
            return None
        answer: str = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends the child."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            assert child.stdin is not None and child.stdout is not None  # pipes
            with contextlib.suppress(BrokenPipeError):  # what it never read may still be buffered
                child.stdin.close()
            child.stdout.close()

    def _start(self) -> subprocess.Popen[bytes]:
        self.close()
        env = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
        child = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
        )
        answers: queue.Queue[bytes] = queue.Queue()
        lines = child.stdout
        assert lines is not None  # a pipe

        def collect() -> None:
            try:
                for line in lines:
                    answers.put(line)
            except ValueError:
                pass  # closed by `close`
            answers.put(b"")

        threading.Thread(target=collect, daemon=True).start()
        self._child, self._answers = child, answers
        return child


def run_batch(jobs: Iterable[tuple[str, str]], timeout: float = 120) -> list[str | None]:
    """The answers of one `Oracle` to (stage, module text) pairs."""
    with Oracle(timeout) as oracle:
        return [oracle(stage, text) for stage, text in jobs]


def pass_manager(names: Iterable[str]) -> Any:
    """The C++ passes of these names, in the current context: on modules, or on each function where a pass is one of
    functions."""

    def anchored(name: str) -> str:
        try:
            PassManager.parse(f"builtin.module({name})")
        except ValueError:
            return f"func.func({name})"
        return name

    return PassManager.parse(f"builtin.module({','.join(map(anchored, names))})")


def _serve() -> None:
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    context.allow_unregistered_dialects = True
    context.enable_multithreading(False)
    is_new = tuple(map(int, version.__version__.split(".")[:2])) >= (0, 12)

    managers: dict[str, Any] = {}
    for line in sys.stdin:
        stage, text = json.loads(line)
        try:
            with context:
                if stage not in managers:
                    names = stage.split("\n") if stage.startswith("sdy-") else passes(stage, is_new)
                    managers[stage] = pass_manager(names)
                module = ir.Module.parse(text)
                managers[stage].run(module.operation)
                answer = str(module)
        except (ir.MLIRError, ValueError) as e:
            answer = "ERROR: " + str(e)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
