"""Which cores ranks keep to."""

from __future__ import annotations

import os

import pytest

from meshrt.errors import ConfigError
from meshrt.launch.binding import numa_nodes, share
from meshrt.launch.settings import Settings

NODES = [frozenset({0, 1, 2, 3}), frozenset({4, 5, 6, 7})]


@pytest.mark.parametrize(
    ("how", "count", "allowed", "shares"),
    [
        ("cores", 2, range(8), [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("cores", 3, range(8), [[0, 1], [2, 3, 4], [5, 6, 7]]),
        ("cores", 3, [5, 6], [[5], [5], [6]]),
        ("numa", 2, range(8), [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("numa", 4, [0, 1, 4, 5], [[0, 1], [0, 1], [4, 5], [4, 5]]),
        ("numa", 2, [4, 5], [[4, 5], [4, 5]]),
        ("numa", 1, range(8), [[0, 1, 2, 3]]),
    ],
)
def test_shares(how, count, allowed, shares):
    assert [share(how, number, count, list(allowed), NODES) for number in range(count)] == shares
    assert share("numa", 0, 2, [0, 1], []) == [0, 1], "a system that lists no nodes has one"


def test_nodes_as_linux_lists_them(tmp_path):
    for name, text in (("node0", "0-3,8\n"), ("node10", "\n"), ("node2", "4-7\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(text)
    assert numa_nodes(tmp_path) == [frozenset({0, 1, 2, 3, 8}), frozenset({4, 5, 6, 7}), frozenset()]


def test_what_is_no_way_to_bind():
    with pytest.raises(ConfigError, match="expected one of: none, cores, numa"):
        Settings(bind="sockets")


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux binds")
def test_ranks_share_the_cores_and_their_children_too(launch):
    body = (
        "print(sorted(os.sched_getaffinity(0)), 'MESHRT_BIND' in os.environ, flush=True)\n"
        "subprocess.run([sys.executable, '-c', 'import os; print(sorted(os.sched_getaffinity(0)))'])"
    )
    found = launch("--nproc", 2, "--bind", "cores", body=body)
    cores = sorted(os.sched_getaffinity(0))
    expected = [share("cores", rank, 2, cores, []) for rank in range(2)]
    lines = sorted(found.out.splitlines())
    assert lines == sorted(f"[{r}] {e}{more}" for r, e in enumerate(expected) for more in ("", " False")), found.err
