"""Traces that ranks record because `meshrt launch --profile` asks for them."""

from __future__ import annotations

import atexit
import json

import pytest

import meshrt
from meshrt.distributed import profiling
from meshrt.errors import ConfigError
from meshrt.launch import profiles
from meshrt.launch.environment import GENERATION, PROCESS_ID, PROFILE
from meshrt.launch.settings import Settings
from meshrt.xla.jaxlib_profiling import ProfileData

STEPS = """\
import meshrt, meshrt.numpy as jnp
f, x = meshrt.jit(lambda x: (x @ x).sum()), jnp.ones((8, 8))
for step in range(1, 12):
    float(f(x))
    meshrt.distributed.progress(step)
"""


def test_chosen_ranks_record_and_say_where(launch):
    result = launch("--nproc", 2, "--devices-per-process", 1, "--profile", 1, "--profile-steps", "4:6", body=STEPS)
    assert result.code == 0, result.err
    assert "[1] meshrt launch --profile: recording steps 4 to 6\n" in result.err and "[0]" not in result.err
    (folder,) = (launch.folder / "profiles").iterdir()
    assert folder.name == "g0000-r0001" and f"the trace is in {folder}" in result.err
    assert _steps(folder) == [4, 5, 6]


def _steps(folder):
    (file,) = folder.glob("plugins/profile/*/*.xplane.pb")
    events = [e for plane in ProfileData.from_file(str(file)).planes for line in plane.lines for e in line.events]
    return sorted(dict(e.stats)["step_num"] for e in events if e.name.startswith("step"))


@pytest.mark.parametrize(
    ("first", "count", "told", "recorded", "said"),
    [
        (None, 2, range(1, 9), [3, 4], "recording steps 3 to 4"),
        (2, 50, range(1, 4), [2, 3, 4], "the trace is in"),  # the script ends before the last one
        (9, 1, range(1, 4), None, "the script told no steps from step 9 on (3 in all)"),
        (None, 1, range(1, 2), None, "the script told no steps behind the first 2 (1 in all)"),
    ],
)
def test_which_steps_are_recorded(tmp_path, capsys, first, count, told, recorded, said):
    steps = profiling.Steps(tmp_path / "p", first, count)
    for step in told:
        steps.told(step)
    steps._end_of_script()
    assert said in capsys.readouterr().err
    assert (_steps(tmp_path / "p") if recorded is not None else None) == recorded
    steps._end_of_script()
    assert capsys.readouterr().err == ""


def test_a_script_that_records_by_itself_is_left_alone(tmp_path, capsys):
    with meshrt.profiler.trace(tmp_path / "own"):
        steps = profiling.Steps(tmp_path / "p", 1, 1)
        steps.told(0)
        steps.told(1)
    assert "Another profiling session active" in capsys.readouterr().err and (tmp_path / "own" / "plugins").exists()


@pytest.mark.parametrize("ranks", ["x", "", "1-0", "0,", "-1", True, 1.5])
def test_ranks_that_are_none(ranks):
    with pytest.raises(ConfigError, match="expected ranks, as in 0 or 0,4-7, or all"):
        Settings(nproc=8, profile=ranks)


@pytest.mark.parametrize("steps", ["0", "5:2", "x", "0:3", "", True])
def test_steps_that_are_none(steps):
    with pytest.raises(ConfigError, match="expected a number of steps, or the first and the last"):
        Settings(profile_steps=steps)


def test_requests():
    with pytest.raises(ConfigError, match="the job has ranks 0 to 7 at most"):
        Settings(nproc=4, nodes="1:2", profile="8-9")
    assert [r for r in range(9) if profiles.traced("0,4-5,8")(r)] == [0, 4, 5, 8]
    assert profiles.traced("all")(7) and not profiles.traced(None)(0)
    assert json.loads(profiles.request("/p", "3:4")) == {"folder": "/p", "first": 3, "count": 2}
    assert profiling.asked_for({}) is None


def test_a_request_is_for_this_process_and_not_for_those_that_it_starts():
    environ = {PROFILE: profiles.request("/p", "3:4"), GENERATION: "0", PROCESS_ID: "1", "A": "b"}
    steps = profiling.asked_for(environ)
    atexit.unregister(steps._end_of_script)
    assert str(steps._folder) == "/p/g0000-r0001" and PROFILE not in environ and "A" in environ
