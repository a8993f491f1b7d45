"""The serial replays of the pipeline methods against properties that are known without a replay."""

from itertools import combinations

import numpy as np
import pytest

from reference import network as net
from reference import serial
from reference.cases import assert_arrays_close, assert_arrays_same
from reference.network import Array, Network, Weights
from reference.pipelines import DELAYED, Pipeline, train
from reference.serial import Outcome, Plan

NETWORK = Network((4, 6, 5, 5, 7, 3), "tanh", True, "cross_entropy")
SGD = serial.SGD(lr=0.1)
RULES: dict[str, serial.Rule] = {
    "sgd": SGD,
    "nesterov": serial.SGD(lr=0.05, momentum=0.7, nesterov=True, weight_decay=0.02),
    "adam": serial.Adam(lr=0.02, betas=(0.8, 0.95), weight_decay=0.1),
    "adamw": serial.Adam(lr=0.02, eps=1e-6, weight_decay=0.2, decoupled=True),
}
BATCH = 4
FALL = 0.8


class Falling(serial.Schedule):
    """Every update has `FALL` times the rate of the one before, however many there will be."""

    def at(self, u: int, per_epoch: int, updates: int) -> float:
        return FALL**u


def samples(number: int) -> tuple[Array, Array]:
    random = np.random.default_rng(7)
    return random.standard_normal((40, 4))[:number], random.integers(0, 3, 40)[:number]


def after(
    minibatches: int, pipeline: Pipeline, rule: serial.Rule = SGD, schedule: serial.Schedule | None = None
) -> Outcome:
    """The first so many minibatches of an epoch; at 0, the weights before the first."""
    x, y = samples(BATCH * max(1, minibatches))
    schedule = schedule or serial.Schedule()
    plan = Plan(rule, epochs=1 if minibatches else 0, batch_size=BATCH, seed=5, shuffle=False, schedule=schedule)
    return train(NETWORK, plan, pipeline, x, y)


def gradients_at(weights: Weights, minibatch: int) -> Weights:
    x, y = samples(BATCH * (minibatch + 1))
    return net.gradients(NETWORK, weights, x[-BATCH:], y[-BATCH:])[1]


def of_stages(pipeline: Pipeline, versions: list[Weights]) -> Weights:
    """Weights whose part of stage k is taken from ``versions[k]``."""
    names = [
        (k, f"layers.{layer}.{part}")
        for k in range(pipeline.stages)
        for layer in pipeline.layers_of(k)
        for part in ("weight", "bias")
    ]
    return {name: versions[k][name] for k, name in names}


@pytest.mark.sweep
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", [method for method in DELAYED if method != "pipedream-2bw"])  # stale on one stage
def test_one_stage_is_serial_training_to_the_last_bit(method: str, rule: str) -> None:
    x, y = samples(22)
    plan = Plan(RULES[rule], epochs=3, batch_size=BATCH, schedule=serial.Schedule("cosine", warmup_epochs=1))
    found, expected = train(NETWORK, plan, Pipeline(method, (5,)), x, y), serial.train(NETWORK, plan, x, y)
    assert_arrays_same(found.weights, expected.weights)
    assert found.step_losses == expected.step_losses
    assert found.epoch_losses == expected.epoch_losses
    assert found.rates == expected.rates
    for slot, arrays in expected.slots.items():
        assert_arrays_same(found.slots[slot], arrays)


@pytest.mark.parametrize("layers", [(2, 3), (2, 1, 2), (1, 2, 1, 1)], ids=str)
def test_stashed_gradients_are_those_of_the_network_made_of_each_stages_version(layers: tuple[int, ...]) -> None:
    # Kang 2019, section 2.2.2: stage k is K-1-k updates behind, and both passes read the same weights.
    pipeline = Pipeline("pipedream", layers)
    weights = [after(version, pipeline).weights for version in range(7)]
    for t in range(6):
        behind = range(len(layers) - 1, -1, -1)
        mixed = of_stages(pipeline, [weights[max(0, t - delay)] for delay in behind])
        expected = gradients_at(mixed, t)
        assert_arrays_close(after(t + 1, pipeline).gradients, expected, f"minibatch {t}", 1e-13)
        moved = {name: weights[t][name] - SGD.lr * expected[name] for name in expected}
        assert_arrays_close(weights[t + 1], moved, f"version {t + 1}", 1e-13)
        assert_arrays_same(after(t, Pipeline("ddg", layers)).weights, weights[t])


@pytest.mark.parametrize("layers", [(2, 3), (2, 1, 2), (1, 2, 1, 1)], ids=str)
def test_vertical_sync_is_gradient_descent_with_delayed_gradients(layers: tuple[int, ...]) -> None:
    # w(t+1) = w(t) - lr * gradient at w(t-K+1), for the network as a whole.
    pipeline = Pipeline("pipedream-vsync", layers)
    weights = [net.initial_weights(NETWORK, 5)]
    for t in range(6):
        gradient = gradients_at(weights[max(0, t - len(layers) + 1)], t)
        weights.append({name: w - SGD.lr * gradient[name] for name, w in weights[t].items()})
        assert_arrays_close(after(t + 1, pipeline).weights, weights[t + 1], f"minibatch {t}", 1e-13)


@pytest.mark.parametrize("rule", ["momentum", "adam", "adamw"])
def test_a_prediction_by_one_update_repeats_the_last_one_at_the_next_rate(rule: str) -> None:
    # The first of the two stages has one layer, whose backward reads no weights: the gradient is its forward's.
    it: serial.Rule = serial.SGD(lr=0.05, momentum=0.7) if rule == "momentum" else RULES[rule]
    pipeline = Pipeline("spectrain", (1, 4))
    weights = [after(version, pipeline, it, Falling()).weights for version in range(6)]
    for t in range(2, 6):
        newer, older = weights[t - 1], weights[t - 2]
        decay = it.lr * FALL ** (t - 2) * it.weight_decay if rule == "adamw" else 0.0  # not part of the direction
        ahead = {name: w + FALL * (w - older[name] + decay * older[name]) for name, w in newer.items()}
        expected = gradients_at(of_stages(pipeline, [ahead, weights[t]]), t)
        found = after(t + 1, pipeline, it, Falling()).gradients
        assert_arrays_close(found, expected, f"minibatch {t}", 1e-12)


def test_a_prediction_takes_the_velocity_of_the_epoch_before_and_the_rate_of_the_next_update() -> None:
    # Two minibatches per epoch: on the first of two stages, the second one reads the version before the first.
    x, y = samples(2 * BATCH)
    rule, factor = serial.SGD(lr=0.05, momentum=0.7), 0.3
    schedule = serial.Schedule("step", milestones=(1,), factor=factor)
    pipeline = Pipeline("spectrain", (1, 4))
    before = after(1, pipeline, rule).weights
    first, second = (
        train(NETWORK, Plan(rule, epochs, BATCH, 5, shuffle=False, schedule=schedule), pipeline, x, y)
        for epochs in (1, 2)
    )
    ahead = {name: w + factor * (w - before[name]) for name, w in first.weights.items()}
    moved = {}  # the first minibatch of an epoch reads no old weights
    for name, gradient in gradients_at(first.weights, 0).items():
        velocity = rule.momentum * (before[name] - first.weights[name]) / rule.lr + gradient
        moved[name] = first.weights[name] - factor * rule.lr * velocity
    expected = gradients_at(of_stages(pipeline, [ahead, moved]), 1)
    assert_arrays_close(second.gradients, expected, "second epoch", 1e-12)


LINE = Network((1, 1, 1, 1), "identity")
"""w3 (w2 (w1 x + b1) + b2) + b3; all start at w = 1, b = 0."""


def hand_worked(pipeline: Pipeline, rule: serial.Rule, targets: tuple[int, ...]) -> Outcome:
    """Three minibatches of one sample each, x = 1, 2, 1."""
    start = {f"layers.{i}.weight": np.ones((1, 1)) for i in range(3)} | {
        f"layers.{i}.bias": np.zeros(1) for i in range(3)
    }
    x, y = np.array([[1.0], [2.0], [1.0]]), np.array(targets, float)[:, None]
    return train(LINE, Plan(rule, epochs=1, batch_size=1, shuffle=False), pipeline, x, y, start)


def numbers(weights: Weights) -> list[float]:
    """w1, b1, w2, b2, w3, b3."""
    return [float(weights[f"layers.{i}.{part}"].item()) for i in range(3) for part in ("weight", "bias")]


@pytest.mark.parametrize(
    ("pipeline", "losses", "expected"),
    [
        # Layers 1 and 2 are stage 0, layer 3 is stage 1; rate 1/8. The first minibatch makes every w 1/2 and b -1/2.
        # Minibatch 1, forward of stage 0 with version 0: h1 = h2 = 2; of stage 1 with version 1: out = 1/2, slope 3.
        # Gradient that reaches stage 0: 3/2. There ddg's backward reads version 0 (w2 = 1), fr and vanilla read
        # version 1 (w2 = 1/2), and fr's recomputed h1 is 1/2 * 2 - 1/2 = 1/2.
        # Minibatch 2, forward with version 1: h1 = 0, h2 = -1/2; with version 2 of stage 1: out = -3/4, slope -11/2.
        (Pipeline("ddg", (2, 1)), (4, 9 / 4, 121 / 16), (5 / 128, -99 / 128, 1 / 8, -55 / 64, -19 / 32, -3 / 16)),
        (Pipeline("pipedream", (2, 1)), (4, 9 / 4, 121 / 16), (5 / 128, -99 / 128, 1 / 8, -55 / 64, -19 / 32, -3 / 16)),
        (
            Pipeline("vanilla", (2, 1)),
            (4, 9 / 4, 121 / 16),
            (149 / 512, -315 / 512, 1 / 8, -55 / 64, -19 / 32, -3 / 16),
        ),
        (
            Pipeline("fr", (2, 1)),
            (4, 9 / 4, 121 / 16),
            (497 / 2048, -1359 / 2048, 931 / 2048, -55 / 64, -19 / 32, -3 / 16),
        ),
        # Everything of minibatch 1 with version 0: out = 2, slope 6; of minibatch 2 with version 1.
        (Pipeline("pipedream-vsync", (2, 1)), (4, 9, 121 / 16), (-53 / 64, -69 / 64, -1, -29 / 32, -43 / 32, -9 / 16)),
    ],
    ids=["ddg", "pipedream", "vanilla", "fr", "pipedream-vsync"],
)
def test_two_stages_and_three_minibatches_by_hand(pipeline, losses, expected) -> None:
    outcome = hand_worked(pipeline, serial.SGD(lr=1 / 8), (-1, -1, 2))
    assert outcome.step_losses == list(losses)
    assert numbers(outcome.weights) == list(expected)


def test_spectrain_with_three_stages_by_hand() -> None:
    # Rate 1/16, momentum 1/2, a layer each. Updates ahead in a full pipeline: forward 2, 1, 1 and backward 0, 0, 1.
    # Minibatch 0: nothing is predicted yet; velocities 4, version 1 is w = 3/4, b = -1/4.
    # Minibatch 1: stages 0 and 1 read version 0 (velocity 0), so h1 = h2 = 2; stage 2 reads 3/4 - 4/16 = 1/2 and -1/2:
    #   out = 1/2, slope -1; to stage 1: -1 * 1/2 (predicted), to stage 0: -1/2 * 3/4 (version 1 as it is) = -3/8.
    # Minibatch 2: stage 0 reads version 0: h1 = 1; stage 1 version 1 ahead by 1, 1/2 and -1/2: h2 = 0; stage 2 reads
    #   version 2 as it is, since no update of another minibatch follows, 3/4 and -5/16: out = -5/16, slope -37/8; to
    #   stage 1: * 3/4 = -111/32; to stage 0: * 11/16.
    outcome = hand_worked(Pipeline("spectrain", (1, 1, 1)), serial.SGD(lr=1 / 16, momentum=1 / 2), (-1, 1, 2))
    assert outcome.step_losses == [4, 1 / 4, 1369 / 256]
    assert numbers(outcome.slots["velocity"]) == [-901 / 512, -805 / 512, -95 / 32, -87 / 32, 0, -33 / 8]
    assert numbers(outcome.weights) == [6405 / 8192, -2075 / 8192, 447 / 512, -89 / 512, 3 / 4, -7 / 128]


def test_the_methods_are_different_trainings() -> None:
    # Else comparing a trainer with the wrong replay could pass.
    x, y = samples(30)
    plan = Plan(RULES["nesterov"], epochs=2, batch_size=BATCH)
    pipelines = [Pipeline(method, (2, 1, 2)) for method in DELAYED if method != "ddg"]
    runs = [train(NETWORK, plan, it, x, y) for it in pipelines]
    for first, second in combinations([*runs, serial.train(NETWORK, plan, x, y)], 2):
        for name in ("layers.0.weight", "layers.1.bias"):
            error = np.max(np.abs(first.weights[name] - second.weights[name]))
            assert error > 1e-5 * np.max(np.abs(first.weights[name]))
