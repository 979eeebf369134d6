"""Two processes of two devices each: the runtime without the launcher."""

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from meshrt import errors
from meshrt.xla import jaxlib_api, jaxlib_distributed

SERVICE = """
import signal, sys
from meshrt.xla import jaxlib_distributed
service = jaxlib_distributed.distributed_service(f"127.0.0.1:{sys.argv[1]}", int(sys.argv[2]), recoverable=True)
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.parametrize(("processes", "devices"), [(2, 2)])
def test_arrays_and_unawaited_steps(processes, devices):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    environment = {k: v for k, v in os.environ.items() if k != "MESHRT_NUM_CPU_DEVICES"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[3])
    service = subprocess.Popen(
        [sys.executable, "-c", SERVICE, port, str(processes)], stdout=subprocess.PIPE, env=environment
    )
    workers = []
    try:
        assert service.stdout.readline() == b"ready\n"
        worker = [sys.executable, str(Path(__file__).with_name("worker.py"))]
        workers = [
            subprocess.Popen(
                [*worker, str(i), str(processes), str(devices), port],
                stderr=subprocess.PIPE, text=True, env=environment,
            )
            for i in range(processes)
        ]  # fmt: skip
        problems = [w.communicate(timeout=150)[1][-3000:] for w in workers]
        assert [w.returncode for w in workers] == [0] * processes, "\n".join(problems)
    finally:
        for p in [*workers, service]:
            p.kill()
            p.wait()
        service.stdout.close()


def test_options_of_the_distributed_runtime():
    with pytest.raises(errors.ArgumentTypeError, match="unknown options"):
        jaxlib_distributed.distributed_service("127.0.0.1:1", 1, certificate="a.pem")
    if jaxlib_api.VERSION < (0, 11):
        with pytest.raises(errors.UnsupportedError, match=r"no mutual TLS.*private address"):
            jaxlib_distributed.distributed_client("127.0.0.1:1", 0, mtls_cert_file="a.pem")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_is_told_that_it_has_no_devices():
    script = """
        import os, numpy as np, meshrt, meshrt.numpy as jnp
        f, x = meshrt.jit(lambda x: x + 1), jnp.ones(3)
        compiled, at = f.lower(x).compile(), x.sharding
        def under_a_setting():
            with meshrt.default_matmul_precision("float32"):
                return f(x)
        for _ in range(5):
            f(x), x + x, compiled(x), under_a_setting()
        pid = os.fork()
        if pid == 0:
            put = lambda: meshrt.device_put(np.ones(3))
            put_there = lambda: meshrt.device_put(np.ones(3), at)
            calls = (
                lambda: f(x), under_a_setting, lambda: compiled(x), lambda: x + x, lambda: jnp.zeros(2), put, put_there,
                meshrt.devices,
            )
            for call in calls:
                try:
                    call()
                except meshrt.errors.ForkedProcessError:
                    continue
                os._exit(1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert float(f(x)[0]) == 2
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)
