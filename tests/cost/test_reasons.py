"""Sentences about synthetic predictions."""

from __future__ import annotations

from hybridnn import MLP
from hybridnn.cost.plan import best_by_ranks, best_exact, bottleneck_sentence, limit_of, reason_sentence
from hybridnn.cost.prediction.predict import Prediction, Traffic
from hybridnn.cost.prediction.times import TimeBreakdown
from hybridnn.cost.prediction.workload import Workload
from hybridnn.pipeline.layout import Layout
from reference.machines import make_machine


def prediction(
    batch: int, computing: float, communication: float = 0.0, bubble: float = 0.0, overhead: float = 0.0, model: int = 1
) -> Prediction:
    """A step of so many milliseconds of each part."""
    breakdown = TimeBreakdown(computing / 1e3, communication / 1e3, bubble / 1e3, overhead / 1e3)
    return Prediction(
        layout=Layout(((batch, model),), (3,)),
        seconds_per_step=(computing + communication + bubble + overhead) / 1e3,
        seconds_per_epoch=1.0,
        breakdown=breakdown,
        bytes_per_step=1,
        memory_bytes=1,
        instructions={},
        largest_traffic=Traffic("allreduce", "batch", 12_600_000, communication / 1e3, 1),
    )


def test_the_limit_is_the_largest_part_of_a_step() -> None:
    assert limit_of(prediction(1, 5.0, 4.9)) is None
    assert limit_of(prediction(1, 3.0, 4.0)) == "communication"
    assert limit_of(prediction(1, 3.0, 4.0, bubble=4.5)) == "bubble"
    assert limit_of(prediction(1, 3.0, 1.0, overhead=3.1)) == "overhead"


def test_the_bottleneck_begins_above_the_last_compute_bound_ranks() -> None:
    best = {8: prediction(8, 4.0, 1.0), 16: prediction(16, 2.0, 1.5), 32: prediction(32, 0.9, 3.1)}
    text = "all-reduce (batch) of 12.6 MB takes 3.1 ms of 4 ms"
    assert bottleneck_sentence(best) == f"Communication-bound above 16 ranks: {text} at 32."
    assert bottleneck_sentence({32: best[32]}) == f"Communication-bound from 32 ranks on: {text}."
    del best[32]
    assert bottleneck_sentence(best) == "Compute-bound up to 16 ranks: computing takes 2 ms of 3.5 ms."
    assert bottleneck_sentence({4: prediction(4, 0.01, overhead=0.02)}).startswith("Overhead-bound from 4 ranks on")


def test_reason_sentences() -> None:
    best, other = prediction(4, 2.0, 1.0), prediction(2, 1.8, 2.0, model=2)
    wins = "batch 4 wins over batch 2 x model 2 (columns) by 800 µs a step"
    assert reason_sentence(best, other) == f"{wins}: 1 ms less communication, 200 µs more computing."
    assert "only process grid" in reason_sentence(best, None)
    assert "equally fast" in reason_sentence(best, prediction(2, 2.0, 1.0, model=2))


WORKLOAD = Workload(MLP([64] * 3), 1000, 256, classification=False)


def test_ranks_are_doubled_until_communication_dominates() -> None:
    # A rank computes 2 + 3 parts of 64 x 64 x 256 / p multiply-adds, 5.2 / p ms; messages take 1 ms each.
    machine = make_machine(alpha=2.5e-4)
    one = best_exact(WORKLOAD, machine, 1)
    assert limit_of(one) is None
    found = best_by_ranks(WORKLOAD, machine, one)
    counts = sorted(found)
    assert counts == [1 << place for place in range(len(counts))]
    assert [limit_of(found[count]) for count in counts] == [None] * (len(counts) - 1) + ["communication"]
    # From above, the same place is found.
    most = best_exact(WORKLOAD, machine, 2 * counts[-1])
    down = best_by_ranks(WORKLOAD, machine, most)
    assert sorted(down) == [counts[-2], counts[-1], 2 * counts[-1]]
    assert bottleneck_sentence(down) == bottleneck_sentence(found)


def test_the_search_ends_with_the_ranks_of_the_model_and_of_the_machine() -> None:
    small = Workload(MLP([4, 2]), 100, 2, classification=False)  # at most 2 x 2 ranks
    machine = make_machine()
    assert sorted(best_by_ranks(small, machine, best_exact(small, machine, 1))) == [1, 2, 4]
    machine = make_machine(ranks_per_node=2)
    found = best_by_ranks(WORKLOAD, machine, best_exact(WORKLOAD, machine, 1))
    assert sorted(found) == [1, 2]
    assert bottleneck_sentence(found).startswith("Compute-bound up to 2 ranks")
    assert sorted(best_by_ranks(WORKLOAD, machine, best_exact(WORKLOAD, machine, 8))) == [8]
