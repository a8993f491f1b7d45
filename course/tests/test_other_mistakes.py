"""Mistakes that no catalogue has: none earns all points, and no hint says of one what it is not."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest

from hybridnn_course.checks import check_task
from hybridnn_course.outcome import CheckOutcome
from hybridnn_course_staff.assignment import load_assignment
from hybridnn_course_staff.task_key import TaskKey
from hybridnn_course_staff.trusted import TrustedRunner
from hybridnn_course_staff.verify import RightSubmission, right_submissions

RESHAPED = "weight_gradient[...] = (x @ dz.T).reshape(weight_gradient.shape)"
NESTEROV = """            np.subtract(w, g, out=new)
            np.multiply(v, lr * settings.momentum"""
TAGS = "group.isend(outgoing, right, 0)\n    receive = group.ireceive(incoming, left, 0)"
GATHERED = "swap(group, rows(array, group, group.rank - step), rows(array, group, group.rank - step - 1))"
EXCHANGE = """    send = group.isend(outgoing, right, 0)
    receive = group.ireceive(incoming, left, 0)
    send.wait()
    receive.wait()
"""
FLOAT32 = """    received = np.empty(incoming.shape, np.float32)
    send = group.isend(outgoing.astype(np.float32), right, 0)
    group.ireceive(received, left, 0).wait()
    send.wait()
    incoming[...] = received
"""
TWO_BYTES = FLOAT32.replace("float32", "int16").replace("(received,", "(received.view(np.uint8),")
TWO_BYTES = TWO_BYTES.replace("(np.int16), right", "(np.int16).view(np.uint8), right")
BOTH = """    requests = [group.isend(outgoing, target, 1), group.ireceive(incoming, source, 1)]
    for request in requests[::-1]:
        request.wait()
"""
SEND, RECEIVE = "    group.isend(outgoing, target, 1).wait()\n", "    group.ireceive(incoming, source, 1).wait()\n"
THREE_BYTES = f"""    if incoming.dtype == np.float32:
        exponent = np.frexp(np.abs(outgoing).max(initial=0))[1]
        wholes = np.rint(np.ldexp(np.float64(outgoing), 22 - exponent)).astype("<i4")
        packed = np.append(wholes.reshape(-1, 1).view(np.uint8)[:, :3], np.uint8(exponent + 128))
        received = np.empty(3 * incoming.size + 1, np.uint8)
        incoming, unpacked, outgoing = received, incoming, packed
{EXCHANGE}
    if incoming.dtype == np.uint8:
        wholes = np.zeros((unpacked.size, 4), np.uint8)
        wholes[:, 1:] = received[:-1].reshape(-1, 3)
        unpacked[...] = np.ldexp(wholes.view("<i4") / 256, int(received[-1]) - 150).reshape(unpacked.shape)
"""
PREDICTED = """    np.multiply(state.slots["velocity"], -lr * steps, out=out)
    np.add(out, weights, out=out)
"""
MAPPED = """    v, n = state.slots["velocity"], -(-len(out) // 40)
    for a in range(0, len(out), n):
        out[a : a + n] = list(map(lambda w, u: w - lr * steps * u, weights[a : a + n], v[a : a + n]))
"""
MAPPED_IN_C = """    from itertools import repeat
    from operator import add, mul
    v, c, n = state.slots["velocity"], -lr * steps, -(-len(out) // 40)
    for a in range(0, len(out), n):
        out[a : a + n] = list(map(add, weights[a : a + n], map(mul, repeat(c), v[a : a + n])))
"""

RING = ("shift", "reduce_scatter", "allgather", "allreduce")
MISTAKES = [
    ("half of the steps", "a1 one differences", "/ (2 * step)", "/ 2 * step", ""),
    ("loss with +", "a1 one loss", "- of_labels).sum()", "+ of_labels).sum()", ""),
    ("labels one off", "a1 one loss", "gradient[labels, columns] -=", "gradient[labels - 1, columns] -=", ""),
    ("label not scaled", "a1 one loss", "columns] -= scale", "columns] -= 1", ""),
    ("1 - tanh(y)^2", "a1 one activation", "np.square(y, out", "np.square(np.tanh(y), out", ""),
    ("1 - sigmoid", "a1 one activation", "        scratch *= y\n", "", ""),
    ("dW reshaped", "a1 one backward", "np.matmul(dz, x.T, out=weight_gradient)", RESHAPED, ""),
    ("added to dx", "a1 one backward", "np.matmul(weight.T, dz, out=dx)", "dx += weight.T @ dz", ""),
    ("velocity not decayed", "a1 one update", "        v *= settings.momentum\n", "", ""),
    ("Nesterov alone", "a1 one update", NESTEROV, NESTEROV.replace("np.subtract(w, g, out=new)", "new[:] = w"), ""),
    ("no maximum", "a2 one gradient", "        z = z - z.max()\n", "", ""),
    ("loss with +", "a2 one gradient", "z[label] - np.log", "z[label] + np.log", ""),
    ("labels one off", "a2 one gradient", "p[label] -= 1", "p[label - 1] -= 1", ""),
    ("softmax alone", "a2 one gradient", "        p[label] -= 1\n", "", ""),
    (
        "lists",
        "a2 one minibatches",
        "yield order[start : start + batch_size]",
        "yield [*order[start:][:batch_size]]",
        "",
    ),
    ("a last sample alone", "a2 one minibatches", "range(0, len(order),", "range(0, len(order) - 1,", ""),
    ("sorted", "a2 one buckets", "return buckets\n", "return dict(sorted(buckets.items()))\n", ""),
    ("numbers of buckets", "a2 one buckets", "buckets[layer] =", "buckets[len(buckets)] =", ""),
    ("more than", "a2 one buckets", ">= min_elements", "> min_elements", "off-by-one-bucket"),
    ("first element", "a2 one reducer", "self.buffer[-1]", "self.buffer[0]", "variant:loss_place=first"),
    ("never begins", "a2 one reducer", "if layer in self.buckets:", "if False:", "sums-a-copy"),
    ("other tags", "a3 one shift", TAGS, TAGS.replace("0)", "group.rank)"), ""),
    ("sends first", "a3 three shift", BOTH, SEND + RECEIVE, "blocking-ring"),
    ("only sends", "a3 three shift", BOTH, SEND, "blocking-ring"),
    ("sends once more", "a3 three shift", BOTH, BOTH + SEND, ""),
    ("receives first", "a3 three shift", BOTH, RECEIVE + SEND, "blocking-receive"),
    ("only receives", "a3 three shift", BOTH, RECEIVE, "blocking-receive"),
    ("receives once more", "a3 three shift", BOTH, BOTH + RECEIVE, ""),
    ("nothing returned", "a3 one shift", "    return result\n", "", ""),
    ("one rank", "a3 one reduce_scatter", "    work = array", "    if group.size == 1: return\n    work = array", ""),
    ("block returned", "a3 one reduce_scatter", "    out[...] = rows(", "    return rows(", ""),
    ("block added", "a3 one reduce_scatter", "    out[...] = rows(", "    out += rows(", ""),
    ("sum bound to a name", "a3 one reduce_scatter", "mine += incoming", "mine = mine + incoming", "one-round-short"),
    ("two bytes", "a3 one reduce_scatter", EXCHANGE, TWO_BYTES, ""),
    ("two bytes", "a3 one allgather", EXCHANGE, TWO_BYTES, ""),
    *(("three bytes", f"a3 one {task}", EXCHANGE, THREE_BYTES, "") for task in RING),
    ("a round too many", "a3 one allgather", "range(group.size - 1)", "range(group.size)", ""),
    ("a block early", "a3 one allgather", GATHERED, GATHERED.replace("group.rank -", "group.rank - 1 -"), ""),
    ("a block early", "a3 one allreduce", GATHERED, GATHERED.replace("group.rank -", "group.rank - 1 -"), ""),
    ("float32", "a3 one allreduce", EXCHANGE, FLOAT32, ""),
    ("sum bound to a name", "a3 one allreduce", "mine += incoming", "mine = mine + incoming", ""),
    ("maximum dropped", "a3 one allreduce", "np.maximum(mine, incoming, out=mine)", "np.maximum(mine, incoming)", ""),
    ("r - f", "a3 three allreduce", "active.index(group.rank)", "group.rank - folded", ""),
    ("idle ranks leave", "a3 three allreduce", "group.ireceive(flat, group.rank + 1, 2).wait()", "pass", ""),
    ("never doubling", "a3 three allreduce", "if array.nbytes <= 256:", "if False:", ""),
    ("always doubling", "a3 three allreduce", "if array.nbytes <= 256:", "if True:", ""),
    ("last array alone", "a4 one norm", "split[0] += square", "split[0] = square", ""),
    ("uphill", "a6 one stage", "self.weights - self.rate", "self.weights + self.rate", ""),
    ("mean of samples", "a6 one stage", "(dz @ x.T)", "(dz @ x.T) / x.shape[1]", ""),
    ("dx from dy", "a6 one stage", "w.T @ dz", "w.T @ dy", ""),
    ("times the momentum", "a6 one predict", "-lr * steps", "-lr * steps * self.momentum", "momentum-once-more"),
    ("float32", "a6 one predict", "-lr * steps", "np.float32(-lr * steps)", ""),
    ("sum dropped", "a6 one predict", "np.add(out, weights, out=out)", "np.add(out, weights)", ""),
    ("loops of map", "a6 one predict", PREDICTED, MAPPED, "element-by-element"),
    ("loops of map in C", "a6 one predict", PREDICTED, MAPPED_IN_C, "element-by-element"),
]
"""What is wrong; assignment, right submission and task; the text of it that is replaced, and by what; a true hint."""

BOUND_TO_NAMES = [
    ("loss bound to a name", "a1 one loss", "loss[0] = float", "loss = float", ""),
    ("outputs bound to a name", "a1 one forward", "np.matmul(weight, x, out=y)", "y = weight @ x", ""),
    ("weights copied", "a1 one update", "out[begin:end], scratch", "out[begin:end].copy(), scratch", ""),
    ("block bound to a name", "a3 one reduce_scatter", "    out[...] = rows(", "    out = rows(", ""),
    ("gradient bound to a name", "a4 one columns", "gradient.weight[...] = ", "weight = ", ""),
    (
        "sum bound to a name",
        "a6 one predict",
        "    np.multiply(state",
        "    out = out.copy()\n    np.multiply(state",
        "",
    ),
]
"""As `MISTAKES`, of functions that do not write an array of the caller."""


@lru_cache
def _right(name: str, style: str) -> RightSubmission:
    return next(right for right in right_submissions(load_assignment(name)) if right.name == style)


@lru_cache
def _key(name: str, style: str, task: str, key: bytes) -> TaskKey:
    right = _right(name, style)
    return TaskKey(right.assignment, right.assignment.task(task), right.variant, key)


def _checks(where: str, old: str, new: str, key: bytes = b"key of a term") -> tuple[CheckOutcome, ...]:
    """The checks of a right submission in which a text is replaced."""
    name, style, task = where.split()
    right = _right(name, style)
    files = {file: text.replace(old, new) for file, text in right.files.items()}
    assert files != right.files
    runner = TrustedRunner(replace(right, files=files).functions())
    return check_task(runner, _key(name, style, task, key), whole=False).checks


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("key", [b"key of a term", *(pytest.param(bytes([n]), marks=pytest.mark.slow) for n in (1, 2))])
@pytest.mark.parametrize(
    ("where", "old", "new", "hint"),
    [pytest.param(*row, id=f"{row[0]} {name}") for name, *row in MISTAKES + BOUND_TO_NAMES],
)
def test_it_loses_points_and_gets_no_false_hint(where: str, old: str, new: str, hint: str, key: bytes) -> None:
    checks = _checks(where, old, new, key)
    assert not all(check.passed for check in checks)
    assert {check.mistake for check in checks} - {""} == {hint} - {""}


@pytest.mark.parametrize(
    ("where", "old", "new"), [pytest.param(*row, id=f"{row[0]} {name}") for name, *row, _ in BOUND_TO_NAMES]
)
def test_a_message_says_that_an_array_was_not_written(where: str, old: str, new: str) -> None:
    messages = [check.message for check in _checks(where, old, new) if check.kind == "public"]
    assert any("; this is the value from before the call" in message for message in messages)


def test_requests_that_a_reducer_keeps_do_no_harm() -> None:
    right = _right("a2", "one")
    kept = "        for request in self.requests:\n            request.wait()\n"
    dropped = "        while self.requests:\n            self.requests.pop(0).wait()\n"
    assert right.files["gradient.py"].count(dropped) == 1
    files = {file: text.replace(dropped, kept) for file, text in right.files.items()}
    runner = TrustedRunner(replace(right, files=files).functions())
    assert all(check.passed for check in check_task(runner, _key("a2", "one", "reducer", b"key of a term")).checks)
