"""The list of a job's processes: who is lost and why, who agrees on what, with a clock of its own and no sockets."""

from __future__ import annotations

import os
import time

import pytest

from meshrt.launch.membership import differences, neighbours
from meshrt.launch.membership.roster import Patience, RefusedError, Roster

VERSIONS = {"meshrt": "1", "jaxlib": "0.10.2"}


class Job:
    """Processes 0 to count - 1 that have joined; `sent(p)` is what was sent to one since the last look."""

    def __init__(self, count=3, **patience):
        self.roster = Roster(count, Patience(**patience))
        self.now = 0.0
        for p in range(count):
            self.roster.join(p, count, {"host": f"h{p}", "pid": 100 + p, "versions": VERSIONS}, self.now)
        self.roster.outbox.clear()

    def beat(self, process, launched=0, waits=None, text="", **doing):
        circle = ",".join(map(str, range(self.roster.count)))
        pending = {circle: waits} if waits is not None else {}
        fields = {"launched": {circle: launched}, "pending": pending, "doing": {"text": text, **doing}}
        self.roster.beat(process, fields, self.now)

    def pass_time(self, seconds, silent=()):
        for _ in range(seconds):
            self.now += 1
            for p in range(self.roster.count):
                if p not in silent and p not in self.roster.lost:
                    self.roster.members[p].heard_at = self.now
            self.roster.tick(self.now)

    def sent(self, process):
        found = [s for s in self.roster.outbox if s.process == process]
        self.roster.outbox = [s for s in self.roster.outbox if s.process != process]
        return [(s.kind, dict(s.fields)) for s in found]


def test_all_hear_when_the_last_one_has_joined():
    roster = Roster(2)
    about = {"host": "a", "versions": VERSIONS}
    roster.join(1, 2, about, 0.0)
    assert roster.outbox == [] and roster.missing() == [0]
    roster.join(0, 2, about, 0.0)
    assert [(s.process, s.kind) for s in roster.outbox] == [(0, "formed"), (1, "formed")]


@pytest.mark.parametrize(
    ("process", "count", "versions", "fatal", "text"),
    [
        (1, 3, VERSIONS, True, "process 1 on host b was started as one of 3 processes, but this job has 2"),
        (2, 2, VERSIONS, False, "process_id is a whole number from 0 to num_processes - 1 = 1"),
        (0, 2, VERSIONS, False, r"process 0 \(host a, pid 7\) has joined as process 0 already"),
        (1, 2, {"jaxlib": "0.12.0"}, True, "runs jaxlib 0.12.0, but process 0 .* runs meshrt 1, jaxlib 0.10.2"),
    ],
)
def test_who_does_not_belong_here_is_refused(process, count, versions, fatal, text):
    roster = Roster(2)
    roster.join(0, 2, {"host": "a", "pid": 7, "versions": VERSIONS}, 0.0)
    with pytest.raises(RefusedError, match=text) as caught:
        roster.join(process, count, {"host": "b", "versions": versions}, 0.0)
    assert caught.value.fatal is fatal and list(roster.members) == [0]


def test_a_silent_process_is_lost_with_what_it_last_did_and_all_are_told():
    job = Job()
    job.beat(1, text="in step 7")
    job.pass_time(8, silent={1})
    assert not job.roster.lost
    job.pass_time(1, silent={1})
    assert set(job.roster.lost) == {1}
    (kind, fields), *_ = job.sent(0)
    assert kind == "lost" and fields["process"] == 1
    assert fields["why"].startswith("process 1 (host h1, pid 101) was lost: nothing was heard of it for 9 s")
    assert fields["why"].endswith("It was last in step 7")
    assert job.sent(1), "it hears so itself when it wakes up"
    assert job.roster.news == [(1, fields["why"], False)]


@pytest.mark.parametrize(("per_second", "lost"), [(0.0, True), (1.0, False), (None, True)])
def test_a_silent_process_that_computes_is_not_lost(per_second, lost):
    job = Job()
    job.roster._cpu_seconds = lambda about: None if per_second is None else job.now * per_second
    job.pass_time(20, silent={1})
    assert (1 in job.roster.lost) is lost


def test_what_a_process_computed_is_seen_on_its_own_system():
    about = {"pid": os.getpid(), "where": neighbours.where()}
    before = neighbours.cpu_seconds(about)
    while time.process_time() < before + 0.1:
        continue
    assert neighbours.cpu_seconds(about) > before
    assert neighbours.cpu_seconds(about | {"where": "elsewhere"}) is None
    assert neighbours.cpu_seconds(about | {"pid": 2**30}) is None


def test_of_a_closed_connection_it_is_told_only_that_the_process_vanished():
    job = Job()
    job.roster.fail(2, "it raised ValueError: x at a.py:1")
    job.roster.close(2)
    job.roster.close(0)
    assert "raised ValueError: x at a.py:1" in job.roster.lost[2] and "without a word" in job.roster.lost[0]
    assert job.roster.news == [(0, job.roster.lost[0], True)]  # whoever started them sees how they end


def test_who_finished_too_early_is_lost_when_others_need_it_in_more():
    job = Job(2)
    job.roster.finish(1, {"0,1": 4}, job.now)
    job.roster.close(1)
    job.beat(0, 4)
    assert not job.roster.lost  # it may have nothing more to do with process 1
    job.beat(0, 5, waits=0.2, text="in step 5, f")
    why = job.roster.lost[1]
    assert "its script ended after 4 programs together with others" in why and "in step 5, f" in why
    assert job.roster.news == [(1, why, False)]


def test_all_are_let_go_when_the_last_one_finishes_or_is_lost():
    job = Job(3)
    job.roster.finish(0, {}, job.now)
    job.roster.finish(1, {}, job.now)
    assert ("over", {}) not in job.sent(0)
    job.roster.close(2)
    assert ("over", {}) in job.sent(0)


def test_who_keeps_others_waiting_is_named_first_and_lost_later():
    job = Job(2, stall_s=20.0)
    for second in range(25):
        job.now += 1
        job.beat(1, 6, text="at load.py:3 (read)")
        job.beat(0, 7, waits=float(second), text="in step 7, f")
    told = [fields["text"] for kind, fields in job.sent(0) if kind == "stalled"]
    assert len(told) == 1 and "has waited 7 s for process 1 (host h1, pid 101), which is at load.py:3 (read)" in told[0]
    assert set(job.roster.lost) == {1} and "kept others waiting for 21 s" in job.roster.lost[1]


def test_a_long_step_in_which_somebody_computes_is_no_stall_and_compiling_neither():
    job = Job(2)
    job.beat(1, 3)
    for doing in ({"idle": False}, {"idle": True, "compiling": True}):
        job.beat(0, 3, waits=400.0, **doing)
        job.beat(1, 3, waits=400.0, **doing)
        assert not job.roster.lost and not job.sent(0)
    job.beat(0, 3, waits=400.0, idle=True)
    job.beat(1, 3, waits=400.0, idle=True)
    assert job.roster.lost and "no process of 0,1 computes" in job.roster.lost[min(job.roster.lost)]


def test_equal_programs_are_agreed_on():
    job = Job(2)
    job.roster.agree(0, "0,1", 0, {"digest": "a"}, job.now)
    assert job.sent(0) == []
    job.roster.agree(1, "0,1", 0, {"digest": "a"}, job.now)
    assert job.sent(0) == job.sent(1) == [("agreed", {"circle": "0,1", "number": 0})]


def test_different_programs_are_an_error_for_all_with_the_first_difference():
    job = Job(3)
    for p, name in enumerate(("f", "f", "g")):
        job.roster.agree(p, "0,1,2", 4, {"digest": name, "name": name, "arguments": f"{p // 2}xf32"}, job.now)
    assert [job.sent(p)[0][0] if p != 1 else job.sent(p) for p in range(3)] == ["explain", [], "explain"]
    text = '%0 = {} %a loc(#loc1)\n#loc1 = loc("/x/{}.py":{}:0)\n'
    job.roster.explained(0, "0,1,2", 4, text.format("add", "f", 3))
    job.roster.explained(2, "0,1,2", 4, text.format("mul", "g", 9))
    for p in range(3):
        ((kind, fields),) = job.sent(p)
        assert kind == "disagreed"
    why = fields["why"]
    assert "processes 0, 1 run f on 0xf32; process 2 runs g on 1xf32" in why
    assert "function: f in process 0, g in process 2" in why
    assert "%0 = add %a   at /x/f.py:3" in why and "%0 = mul %a   at /x/g.py:9" in why


def test_programs_that_were_agreed_on_are_launched_in_one_order():
    job = Job(2)
    for number, name in enumerate("fg"):
        for p in range(2):
            job.roster.agree(p, "0,1", number, {"digest": name, "name": name}, job.now)
    beat = lambda p, trail: job.roster.beat(p, {"launched": {"0,1": len(trail)}, "trails": {"0,1": trail}}, job.now)
    beat(0, [(1, 0, 11), (2, 1, 12), (3, 0, 13)])
    beat(1, [(1, 0, 11), (2, 1, 12)])
    assert not job.roster.lost
    beat(1, [(2, 1, 12), (3, 1, 99)])
    assert (
        "it launched other programs than process 0 (host h0, pid 100): launch 3 was f there and g here"
        in (job.roster.lost[1])
    )


KNOWN = {"digest": "k", "name": "step", "line": "a.py:1", "arguments": "4xf32", "devices": "0,1,2"}
NEW = {"digest": "n", "name": "step", "line": "a.py:1", "arguments": "8xf32", "devices": "0,1,2"}


def in_step(job, process, count, circle="0,1,2"):
    """`process` tells that it has launched the program that all know `count` times."""
    trails = {circle: [[i, 0, 100 + i] for i in range(1, count + 1)]}
    job.roster.beat(process, {"launched": {circle: count}, "pending": {}, "doing": {}, "trails": trails}, job.now)


@pytest.mark.parametrize("asked_first", [True, False])
def test_a_new_program_in_place_of_one_that_others_launched_is_an_error_at_once(asked_first):
    job = Job()
    for p in range(3):
        job.roster.agree(p, "0,1,2", 0, KNOWN, job.now)
    ask = lambda: job.roster.agree(1, "0,1,2", 1, {**NEW, "launch": 3}, job.now)
    told = [lambda: in_step(job, 0, 3), lambda: in_step(job, 2, 3)]
    for happen in [ask, *told] if asked_first else [*told, ask]:
        happen()
    why = next(fields["why"] for kind, fields in job.sent(1) if kind == "disagreed")
    assert "process 0 runs step (a.py:1) on 4xf32; process 1 runs step (a.py:1) on 8xf32" in why
    (kind, fields) = job.sent(0)[-1]
    assert kind == "lost" and fields["process"] == 1 and list(job.roster.lost) == [1]
    assert "it is about to launch step (a.py:1) on 8xf32 where process 0 (host h0, pid 100) launched" in fields["why"]
    assert "(arguments of one device: 4xf32 in process 0, 8xf32 in process 1)" in fields["why"]
    assert job.roster.news == [(1, fields["why"], False)]


def test_of_those_that_are_at_odds_the_fewer_are_lost():
    job = Job()
    for p in range(3):
        job.roster.agree(p, "0,1,2", 0, KNOWN, job.now)
    for p in range(2):
        job.roster.agree(p, "0,1,2", 1, {**NEW, "launch": 3}, job.now)
    in_step(job, 2, 2)
    assert not job.roster.lost  # it may come to the same
    in_step(job, 2, 3)
    assert list(job.roster.lost) == [2] and "it launched step (a.py:1) on 4xf32 where" in job.roster.lost[2]
    assert all("disagreed" in [kind for kind, _ in job.sent(p)] for p in range(2))


@pytest.mark.parametrize("record", [{}, {"digest": []}, {"digest": {}, "name": 3, "arguments": None, "line": []}])
def test_a_description_that_is_none_harms_nobody_but_who_gave_it(record):
    job = Job()
    for p in range(3):
        job.roster.agree(p, "0,1,2", 0, KNOWN, job.now)
    job.roster.agree(1, "0,1,2", 1, {**record, "launch": 1}, job.now)
    in_step(job, 0, 1)
    job.pass_time(1)
    assert list(job.roster.lost) == [1]


def test_who_launches_by_another_thread_before_is_not_at_odds_with_itself():
    job = Job()
    for p in range(3):
        job.roster.agree(p, "0,1,2", 0, KNOWN, job.now)
    job.roster.agree(1, "0,1,2", 1, {**NEW, "launch": 3}, job.now)
    in_step(job, 1, 3)
    job.pass_time(1)
    assert not job.roster.lost


def test_where_other_threads_may_launch_first_nothing_is_said_before_it_lasts():
    job = Job()
    for p in range(3):
        job.roster.agree(p, "0,1,2", 0, KNOWN, job.now)
    job.roster.agree(1, "0,1,2", 1, {**NEW, "launch": None}, job.now)
    in_step(job, 0, 3)
    assert not job.roster.lost


def test_the_last_launches_of_a_script_are_compared_at_its_end():
    job = Job(2)
    for p, order in enumerate((12, 99)):
        job.roster.agree(p, "0,1", 0, {"digest": "f", "name": "f"}, job.now)
        job.roster.finish(p, {"0,1": 2}, job.now, {"0,1": [(1, 0, 11), (2, p, order)]})
    assert [rank for rank, why, _ in job.roster.news if "it launched other programs than process 0" in why] == [1]


def test_whoever_needs_a_lost_process_to_agree_is_told_at_once():
    job = Job(2)
    job.roster.close(1)
    job.sent(0)
    job.roster.agree(0, "0,1", 0, {"digest": "a"}, job.now)
    assert [kind for kind, _ in job.sent(0)] == ["lost"]


def test_those_that_are_left_all_learn_the_same_of_who_is_alive():
    job = Job(3)
    job.roster.ask_alive(0, "0,1,2", "a", 7)
    job.roster.ask_alive(1, "0,1,2", "a", 8)
    job.roster.ask_alive(0, "0,1,2", "b", 9)
    assert job.sent(0) == []
    job.roster.close(2)
    answer = {"circle": "0,1,2", "name": "a", "processes": [0, 1]}
    assert ("alive", {**answer, "turn": 7}) in job.sent(0) and ("alive", {**answer, "turn": 8}) in job.sent(1)


def test_who_has_given_up_waiting_has_not_asked():
    job = Job(2)
    job.roster.ask_alive(0, "0,1", "a", 0)
    job.roster.withdraw(0, "0,1", "a")
    job.roster.withdraw(0, "0,1", "never asked")
    job.roster.ask_alive(1, "0,1", "a", 0)
    assert "alive" not in [kind for kind, _ in job.sent(1)], "the other one waits, as nobody has come to meet it"
    job.roster.ask_alive(0, "0,1", "a", 1)
    assert [f["turn"] for kind, f in job.sent(0) if kind == "alive"] == [1]
    assert [f["turn"] for kind, f in job.sent(1) if kind == "alive"] == [0]


def test_those_that_are_left_go_on_under_new_numbers():
    job = Job(3)
    job.roster.close(0)
    job.roster.regroup(2, job.now)
    assert job.roster.to_regroup() == []
    job.roster.regroup(1, job.now)
    assert job.roster.to_regroup() == [1, 2]
    job.roster.outbox.clear()
    job.roster.regrouped("unix:/x")
    since = {"whole": False, "generation": 1}
    assert job.sent(0) == [
        ("regrouped", {"process": 0, "processes": 2, "former": [1, 2], "service": "unix:/x", **since})
    ]
    job.roster.agree(0, "0,1", 0, {"digest": "a"}, job.now)
    job.roster.agree(1, "0,1", 0, {"digest": "a"}, job.now)
    assert ("agreed", {"circle": "0,1", "number": 0}) in job.sent(1)


def test_texts_that_cannot_be_had_leave_the_fields():
    records = {0: {"digest": "a", "name": "f", "devices": "0,1"}, 1: {"digest": "b", "name": "f", "devices": "1,0"}}
    why = differences.describe(records, {0: None, 1: None})
    assert "order of devices: 0,1 in process 0, 1,0 in process 1" in why and "first difference" not in why
