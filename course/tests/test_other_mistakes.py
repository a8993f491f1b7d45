"""Mistakes that no catalogue has: none earns all points, and no hint says of one what it is not."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest

from hybridnn_course.checks import check_task
from hybridnn_course_staff.assignment import load_assignment
from hybridnn_course_staff.task_key import TaskKey
from hybridnn_course_staff.trusted import TrustedRunner
from hybridnn_course_staff.verify import RightSubmission, right_submissions

RESHAPED = "weight_gradient[...] = (x @ dz.T).reshape(weight_gradient.shape)"
NESTEROV = """            np.subtract(w, g, out=new)
            np.multiply(v, lr * settings.momentum"""
TAGS = "group.isend(outgoing, right, 0)\n    receive = group.ireceive(incoming, left, 0)"
GATHERED = "swap(group, rows(array, group, group.rank - step), rows(array, group, group.rank - step - 1))"

MISTAKES = [
    ("loss with +", "a1 one loss", "- of_labels).sum()", "+ of_labels).sum()", ""),
    ("labels one off", "a1 one loss", "gradient[labels, columns] -=", "gradient[labels - 1, columns] -=", ""),
    ("1 - tanh(y)^2", "a1 one activation", "np.square(y, out", "np.square(np.tanh(y), out", ""),
    ("dW reshaped", "a1 one backward", "np.matmul(dz, x.T, out=weight_gradient)", RESHAPED, ""),
    ("Nesterov alone", "a1 one update", NESTEROV, NESTEROV.replace("np.subtract(w, g, out=new)", "new[:] = w"), ""),
    ("no maximum", "a2 one gradient", "        z = z - z.max()\n", "", ""),
    ("loss with +", "a2 one gradient", "z[label] - np.log", "z[label] + np.log", ""),
    ("labels one off", "a2 one gradient", "p[label] -= 1", "p[label - 1] -= 1", ""),
    (
        "lists",
        "a2 one minibatches",
        "yield order[start : start + batch_size]",
        "yield [*order[start:][:batch_size]]",
        "",
    ),
    ("sorted", "a2 one buckets", "return buckets\n", "return dict(sorted(buckets.items()))\n", ""),
    ("more than", "a2 one buckets", ">= min_elements", "> min_elements", "off-by-one-bucket"),
    ("first element", "a2 one reducer", "self.buffer[-1]", "self.buffer[0]", "variant:loss_place=first"),
    ("other tags", "a3 one shift", TAGS, TAGS.replace("0)", "group.rank)"), ""),
    ("one rank", "a3 one reduce_scatter", "    work = array", "    if group.size == 1: return\n    work = array", ""),
    ("block returned", "a3 one reduce_scatter", "    out[...] = rows(", "    return rows(", "rebinds-out"),
    ("block added", "a3 one reduce_scatter", "    out[...] = rows(", "    out += rows(", ""),
    ("a block early", "a3 one allgather", GATHERED, GATHERED.replace("group.rank -", "group.rank - 1 -"), ""),
    ("a block early", "a3 one allreduce", GATHERED, GATHERED.replace("group.rank -", "group.rank - 1 -"), ""),
    ("r - f", "a3 three allreduce", "active.index(group.rank)", "group.rank - folded", ""),
    ("idle ranks leave", "a3 three allreduce", "group.ireceive(flat, group.rank + 1, 2).wait()", "pass", ""),
    ("never doubling", "a3 three allreduce", "if array.nbytes <= 256:", "if False:", ""),
    ("always doubling", "a3 three allreduce", "if array.nbytes <= 256:", "if True:", ""),
    ("uphill", "a6 one stage", "self.weights - self.rate", "self.weights + self.rate", ""),
    ("mean of samples", "a6 one stage", "(dz @ x.T)", "(dz @ x.T) / x.shape[1]", ""),
    ("times the momentum", "a6 one predict", "-lr * steps", "-lr * steps * self.momentum", "momentum-once-more"),
    ("float32", "a6 one predict", "-lr * steps", "np.float32(-lr * steps)", ""),
]
"""What is wrong; assignment, right submission and task; the text of it that is replaced, and by what; a true hint."""


@lru_cache
def _right(name: str, style: str) -> RightSubmission:
    return next(right for right in right_submissions(load_assignment(name)) if right.name == style)


@lru_cache
def _key(name: str, style: str, task: str, key: bytes) -> TaskKey:
    right = _right(name, style)
    return TaskKey(right.assignment, right.assignment.task(task), right.variant, key)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("key", [b"key of a term", *(pytest.param(bytes([n]), marks=pytest.mark.slow) for n in (1, 2))])
@pytest.mark.parametrize(
    ("where", "old", "new", "hint"), [pytest.param(*row, id=f"{row[0]} {name}") for name, *row in MISTAKES]
)
def test_it_loses_points_and_gets_no_false_hint(where: str, old: str, new: str, hint: str, key: bytes) -> None:
    name, style, task = where.split()
    right = _right(name, style)
    files = {file: text.replace(old, new) for file, text in right.files.items()}
    assert files != right.files
    runner = TrustedRunner(replace(right, files=files).functions())
    checks = check_task(runner, _key(name, style, task, key), whole=False).checks
    assert not all(check.passed for check in checks)
    assert {check.mistake for check in checks} - {""} == {hint} - {""}
