"""Diagnosis of constructed states, and of a small model of blocking collectives with one known fault."""

import gc
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridnn
import hybridnn.diagnostics.rank_state as state_of_ranks
from hybridnn.comm.recorder import Recorder
from hybridnn.diagnostics.diagnosis import StallFinding, diagnose
from hybridnn.diagnostics.failsafe import code_location
from hybridnn.diagnostics.rank_state import RankState
from reference.stalls import Job, Step, collective, message, progress, rank_state

ALL = (0, 1, 2, 3)
SUM = "allreduce (sum) of 800 bytes float64"


def only(states: dict[int, RankState], size: int = 4, processes: tuple[str, ...] = ()) -> StallFinding:
    (finding,) = diagnose(states, size, processes)
    return finding


def in_world(rank: int, number: int, *calls: str) -> RankState:
    return rank_state(
        rank, 4, collective("allreduce", "world", ALL, number), progress("world", ALL, *calls, entered=number)
    )


def test_the_rank_outside_of_communication_did_not_arrive() -> None:
    states = {rank: in_world(rank, 57, SUM) for rank in (0, 1, 3)}
    states[2] = rank_state(2, 4, None, progress("world", ALL, SUM, entered=56))
    finding = only(states)
    assert (finding.kind, finding.ranks) == ("outside", (2,))
    assert finding.text == (
        "rank 2 (host n1, process 4002) did not arrive: outside of communication, at slow.py:12 in on_step; "
        "ranks 0, 1, 3 wait in allreduce 57 of group world (ranks 0-3)"
    )


def test_unresponsive_ranks_are_named_with_their_processes() -> None:
    states = {rank: in_world(rank, 57, SUM) for rank in (0, 3)}
    finding = only(states, processes=("a", "host n7, process 71", "host n8, process 82", "d"))
    assert (finding.kind, finding.ranks) == ("unresponsive", (1, 2))
    assert finding.text.startswith("ranks 1, 2 (host n7, process 71; host n8, process 82) gave no sign: ")
    assert finding.text.endswith("; ranks 0, 3 wait in allreduce 57 of group world (ranks 0-3)")


def test_a_rank_that_left_is_named_where_others_wait_for_it() -> None:
    """Rank 3 left too, but after the call that the others are in."""
    states = {rank: in_world(rank, 57, SUM) for rank in (0, 1)}
    for rank, entered in ((2, 56), (3, 57)):
        states[rank] = rank_state(rank, 4, None, progress("world", ALL, entered=entered), departure="its script ended")
    finding = only(states, processes=("a", "b", "host n7, process 71", "d"))
    assert (finding.kind, finding.ranks) == ("left", (2,))
    assert finding.text == (
        "rank 2 (host n7, process 71) left the job: its script ended; "
        "ranks 0, 1 wait in allreduce 57 of group world (ranks 0-3)"
    )


def test_a_rank_in_an_unrecorded_call_waits_for_one_that_left() -> None:
    states = {0: rank_state(0, 2, None, unrecorded_call="grid.py:9 in split", departed="1")}
    states[1] = rank_state(1, 2, None, departure="its script ended", exited=True)
    finding = only(states, 2)
    assert (finding.kind, finding.ranks) == ("left", (1,))
    assert finding.text.endswith("; rank 0 waits in MPI, at grid.py:9 in split at slow.py:12 in on_step")


def test_dead_and_unreachable_ranks_are_not_unresponsive() -> None:
    states = {rank: in_world(rank, 57, SUM) for rank in (0,)}
    findings = diagnose(states, 4, ("a", "host n7, process 71", "c", "d"), dead=(1,), unreachable=(2,))
    found = [(finding.kind, finding.ranks) for finding in findings]
    assert found == [("dead", (1,)), ("unresponsive", (3,)), ("unreachable", (2,))]
    assert findings[0].text.startswith("rank 1 (host n7, process 71) is gone: killed, or ended without a word; ")


def test_a_chain_of_waiting_ranks_is_followed_to_its_end() -> None:
    """0 and 1 wait for 2, which waits for a message of 3, which sleeps: only 3 holds up the job."""
    states = {rank: in_world(rank, 5, SUM) for rank in (0, 1)}
    states[2] = rank_state(2, 4, message("receive", 3, "receive activations 8"), progress("world", ALL, entered=4))
    states[3] = rank_state(3, 4, None, progress("world", ALL, entered=4))
    finding = only(states)
    assert (finding.kind, finding.ranks) == ("outside", (3,))
    assert "ranks 0, 1 wait in allreduce 5 of group world (ranks 0-3)" in finding.text
    assert "rank 2 waits in receive from rank 3" in finding.text


def test_the_first_mismatch_of_earlier_collectives_is_found() -> None:
    states = {rank: in_world(rank, 9, SUM, SUM, SUM) for rank in (0, 2, 3)}
    for other in (in_world(1, 8, SUM, "barrier"), in_world(1, 9, SUM, "barrier", "broadcast of 8 bytes int64")):
        finding = diagnose(states | {1: other}, 4)[0]
        assert (finding.kind, finding.ranks) == ("mismatch", (1,))
        assert "collective 8 of group world" in finding.text


def test_a_deadlock_names_the_rank_that_most_wait_for() -> None:
    """Rank 2 left out a collective of the world and is in the next one of its model group."""
    pair = (2, 3)
    states = {rank: in_world(rank, 7, SUM) for rank in (0, 1, 3)}
    groups = progress("world", ALL, entered=6), progress("model", pair, entered=7)
    states[2] = rank_state(2, 4, collective("allreduce", "model", pair, 7), *groups)
    finding = only(states)
    assert (finding.kind, finding.ranks) == ("deadlock", (2, 3))
    assert finding.text.startswith("ranks 2, 3 wait for one another: rank 2 in allreduce 7 of group model (ranks 2, 3)")
    assert finding.text.endswith("; most wait for rank 2")


def test_a_collective_that_all_ranks_entered_is_a_hang() -> None:
    finding = only({rank: in_world(rank, 57, SUM) for rank in ALL})
    assert (finding.kind, finding.ranks) == ("hang", ALL)
    assert finding.text.startswith("all ranks entered allreduce 57 of group world (ranks 0-3), which does not end: ")


ADDRESSES = {rank: (f"10.0.0.{rank + 1}",) for rank in ALL}


def on_hosts(silent: dict[int, tuple[str, ...]], known: Sequence[int] = ALL) -> list[str]:
    """Texts about the network where ranks on hosts of their own get no acknowledgements from addresses."""
    states = {
        rank: replace(
            in_world(rank, 57, SUM),
            host=f"h{rank}",
            addresses=ADDRESSES[rank] if rank in known else (),
            silent_addresses=silent.get(rank, ()),
        )
        for rank in ALL
    }
    return [finding.text for finding in diagnose(states, 4) if finding.kind == "network"]


def test_hosts_that_do_not_reach_each_other_are_named() -> None:
    expected = "hosts h0, h2 do not reach each other: nothing is acknowledged; rank 2 sent data again and again"
    assert on_hosts({2: ADDRESSES[0]}) == [expected]
    assert on_hosts({0: ADDRESSES[2], 2: ADDRESSES[0]}) == [expected.replace("rank 2", "ranks 0, 2")]
    assert on_hosts({0: ("10.0.0.9",)})[0].startswith("hosts 10.0.0.9, h0 do not reach each other")
    assert on_hosts({}) == on_hosts({0: ADDRESSES[0]}) == []


def test_the_host_that_several_others_do_not_reach_is_named() -> None:
    pairs = "nothing is acknowledged between it and h0, h3; ranks 0, 2 sent data again and again"
    assert on_hosts({0: ADDRESSES[2], 2: ADDRESSES[3]}) == [f"host h2 cannot be reached: {pairs}"]
    lost = "host 10.0.0.3 cannot be reached: nothing is acknowledged between it and h0, h1; "
    assert on_hosts({0: ADDRESSES[2], 1: ADDRESSES[2]}, known=(0, 1, 3))[0].startswith(lost)
    circle = on_hosts({0: ADDRESSES[1], 1: ADDRESSES[2], 2: ADDRESSES[0]})
    assert circle[0].startswith("hosts h0, h1, h2 do not reach each other")
    assert len(on_hosts({0: ADDRESSES[1], 2: ADDRESSES[3]})) == 2


def test_a_slow_network_is_named_where_nothing_else_holds_up_the_job() -> None:
    states = {
        rank: replace(in_world(rank, 57, SUM), host=f"h{rank}", addresses=ADDRESSES[rank], waiting_addresses=waiting)
        for rank, waiting in enumerate([ADDRESSES[3], ADDRESSES[3], (), ()])
    }
    slow, hang = (finding.text for finding in diagnose(states, 4))
    pairs = "data is on its way between it and h0, h1; ranks 0, 1 sent more than was acknowledged"
    assert slow == f"host h3 is reached slowly: {pairs}"
    assert hang.startswith("all ranks entered allreduce 57 ")
    states[3] = rank_state(3, 4, None, progress("world", ALL, SUM, entered=56))  # data waits for this rank
    assert only(states).kind == "outside"


def test_groups_with_the_same_axis_and_members_are_distinct() -> None:
    """All have entered nine collectives of the first group; in the second rank 1 is one behind."""
    first, second = progress("world", ALL, "barrier", entered=9), progress("world", ALL, SUM, entered=5)
    second, behind = replace(second, ordinal=1), replace(second, ordinal=1, entered=4, recent=())
    call = replace(collective("allreduce", "world", ALL, 5), ordinal=1)
    states = {rank: rank_state(rank, 4, call, first, second) for rank in (0, 2, 3)}
    states[1] = rank_state(1, 4, None, first, behind)
    finding = only(states)
    assert (finding.kind, finding.ranks) == ("outside", (1,))
    assert "rank 1 (host n1, process 4001) did not arrive: " in finding.text


GROUPS = {
    "world": [range(6)],
    "batch": [(0, 2, 4), (1, 3, 5)],
    "model": [(0, 1), (2, 3), (4, 5)],
    "pipeline": [(0, 1, 2), (3, 4, 5)],
}
OPERATIONS = ["allreduce", "allgather", "barrier"]
END: Step = ("world", "end")
faults = st.tuples(
    st.lists(st.tuples(st.sampled_from(list(GROUPS)), st.sampled_from(OPERATIONS)), min_size=1, max_size=12),
    st.integers(0, 5),
    st.integers(0, 11),
)
"""A program of six ranks, a rank, and a position in the program."""


def faulty(program: list[Step], rank: int, own: list[Step]) -> dict[int, RankState]:
    """States where `rank` has a program of its own."""
    return Job(GROUPS, [own if other == rank else [*program, END] for other in range(6)]).run()


@given(faults)
def test_a_sleeping_or_unresponsive_rank_is_named_in_any_program(fault: tuple[list[Step], int, int]) -> None:
    program, rank, position = fault
    states = faulty(program, rank, [*program[:position], ("", "sleep")])
    finding = only(states, 6)
    assert (finding.kind, finding.ranks) == ("outside", (rank,))
    del states[rank]
    finding = only(states, 6)
    assert (finding.kind, finding.ranks) == ("unresponsive", (rank,))


@given(faults)
def test_a_rank_with_another_collective_is_named_in_any_program(fault: tuple[list[Step], int, int]) -> None:
    program, rank, position = fault
    position %= len(program)
    axis = program[position][0]
    states = faulty(program, rank, [*program[:position], (axis, "broadcast"), *program[position + 1 :], END])
    finding = diagnose(states, 6)[0]
    members = Job(GROUPS, []).members(axis, rank)
    assert finding.kind == "mismatch"
    assert finding.ranks == ((rank,) if len(members) > 2 else members)
    assert f"of group {axis} " in finding.text


@given(faults)
def test_a_rank_that_omits_a_collective_is_named_in_any_program(fault: tuple[list[Step], int, int]) -> None:
    program, rank, position = fault
    position %= len(program)
    states = faulty(program, rank, [*program[:position], *program[position + 1 :], END])
    assert rank in {named for finding in diagnose(states, 6) for named in finding.ranks}


def test_a_users_folder_may_have_the_name_of_the_package() -> None:
    assert code_location("/home/me/hybridnn/job.py", 3, "f") == "job.py:3 in f"
    assert code_location(hybridnn.__file__, 3, "f") == "hybridnn/__init__.py:3 in f"


def test_frames_of_other_threads_are_read_without_a_collection_of_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finalizers of garbage would let the other thread run on while its frames are read."""
    collects: list[bool] = []
    monkeypatch.setattr(state_of_ranks, "_communicates", lambda frame: collects.append(gc.isenabled()))
    state_of_ranks.current_activity(Recorder(), threading.get_ident(), 1.0)
    assert collects
    assert not any(collects)
    assert gc.isenabled()
