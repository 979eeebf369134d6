"""The scripts of examples/ run unchanged under JAX, by their import lines, and print the same figures."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# Arguments for a short run, and one line of what it prints.
RUNS = {
    "digits": (["--epochs", "2"], r"epoch  2  loss [\d.]+  accuracy on held-out digits 0\.[\d]+"),
    "mixture_of_experts": (["--steps", "20"], r"experts lie P\('device',\)"),
    "llama_decode": (["--tokens", "12"], r"the cache lies P\(None, 'data', None, 'model'\)"),
    "lora": (["--steps", "20"], r"8488 of 300032 parameters moved"),
    "ensemble": (["--steps", "60"], r"x    mean   noise   apart"),
    "diffusion": (["--steps", "50"], r"data +mean -0\.389"),
    "reaction_diffusion": (["--steps", "400"], r"still split as P\('rows', 'columns'\)"),
    "ppo": (["--rounds", "3"], r"round  3  turns to the end of an episode +\d+"),
}
NUMBER = re.compile(r"-?\d+\.\d+")


def printed(script: Path, arguments: list[str]) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MESHRT_", "JAX_"))}
    env |= {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(EXAMPLES.parent), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", RUNS)
def test_an_example_prints_under_jax_what_it_prints_here(name, tmp_path):
    arguments, line = RUNS[name]
    source = (EXAMPLES / f"{name}.py").read_text()
    under_jax = re.sub(r"^(import|from) meshrt", r"\1 jax", source, flags=re.M)
    assert "meshrt." not in under_jax.partition('"""\n')[2]
    (tmp_path / f"{name}.py").write_text(under_jax)
    ours, theirs = printed(EXAMPLES / f"{name}.py", arguments), printed(tmp_path / f"{name}.py", arguments)
    assert re.search(line, ours), ours
    assert NUMBER.sub("#", ours).split() == NUMBER.sub("#", theirs).split()
    np.testing.assert_allclose(numbers(ours), numbers(theirs), rtol=0.01, atol=0.02)


def numbers(text: str) -> list[float]:
    return [float(n) for n in NUMBER.findall(text)]


def test_every_example_is_short():
    for script in EXAMPLES.glob("*.py"):
        assert len(script.read_text().splitlines()) <= 150, script
