"""A6: tasks and axes of variation."""

from __future__ import annotations

from hybridnn_course.assignment import Points
from hybridnn_course.exercises.a6_stale import budgets, calls, runs
from hybridnn_course_staff.assignment import Assignment, Task, WholeRun
from hybridnn_course_staff.assignments.a6_stale import cases, expected
from hybridnn_course_staff.assignments.a6_stale.solution import (
    distance_solution,
    predict_solution,
    rules_solution,
    stage_solution,
    store_solution,
)

SOLUTION = "hybridnn_course_staff.assignments.a6_stale.solution"

ASSIGNMENT = Assignment(
    id="a6",
    package="hybridnn_course_staff.assignments.a6_stale",
    title="A6: Stale weights",
    goal="Know, keep and predict the weights that DDG, FR, PipeDream and SpecTrain use",
    hours=8,
    axes={
        "extra_method": {
            "two versions": "The method `extra` is PipeDream-2BW, which needs two versions: on every stage, all "
            "passes of a minibatch use the weights with all updates but one: that of the minibatch before is missing.",
            "pairs": "The method `extra` synchronizes pairs: the first and the second stage are a pair, the third "
            "and the fourth, and so on; with an odd number of stages, the last one is alone. All passes of a "
            "minibatch on both stages of a pair use the version that the forward pass on the pair's first stage "
            "reads.",
            "halves": "The method `extra` synchronizes halves: the first K // 2 stages are the front half, the "
            "others the back half. All passes of a minibatch on all stages of a half use the version that the "
            "forward pass on the half's first stage reads.",
        },
        "stale_rate": {
            "constant": "Every update has the learning rate `rate`.",
            "by staleness": "An update has the learning rate `rate` / (1 + s), where s is the number of updates that "
            "the stage made between the forward and the backward pass of the minibatch.",
        },
        "backward_length": {
            "1": "A backward pass takes as long as a forward pass.",
            "2": "A backward pass takes twice as long as a forward pass.",
        },
        "velocity": {
            "constant": "The velocity is expected to stay as it is: every predicted update moves the weights by the "
            "learning rate times the velocity.",
            "decays": "No further gradients are expected: every predicted update first multiplies the velocity by the "
            "momentum, `self.momentum`, and then moves the weights by the learning rate times the velocity. "
            "`state` is not changed.",
        },
    },
    tasks=(
        Task(
            name="rules",
            file="rules.py",
            target=f"{SOLUTION}:weights_read",
            call=calls.call_rules,
            solution=rules_solution,
            public=cases.public_rules,
            hidden=cases.hidden_rules,
            points=Points(public=8, hidden=13, whole=3),
            axes=("extra_method",),
            whole=WholeRun("digits on 4 stages, six methods", runs.run_rules, expected.replay_rules),
        ),
        Task(
            name="store",
            file="versions.py",
            target=f"{SOLUTION}:WeightVersions",
            call=calls.call_store,
            solution=store_solution,
            public=cases.public_store,
            hidden=cases.hidden_store,
            points=Points(public=5, hidden=9, budget=6, whole=2),
            budget=budgets.store_budget,
            whole=WholeRun("digits on 4 stages, PipeDream", runs.run_store, expected.replay_store),
        ),
        Task(
            name="stage",
            file="stage.py",
            target=f"{SOLUTION}:Stage",
            call=calls.call_stage,
            solution=stage_solution,
            public=cases.public_stage,
            hidden=cases.hidden_stage,
            points=Points(public=7, hidden=11, budget=7, whole=3),
            axes=("stale_rate",),
            budget=budgets.stage_budget,
            whole=WholeRun("digits on 4 stages, three methods", runs.run_stage, expected.replay_stage),
        ),
        Task(
            name="distance",
            file="spectrain.py",
            target=f"{SOLUTION}:predicted_reads",
            call=calls.call_distance,
            solution=distance_solution,
            public=cases.public_distance,
            hidden=cases.hidden_distance,
            points=Points(public=5, hidden=7, whole=1),
            axes=("backward_length",),
            whole=WholeRun("digits on 4 stages, SpecTrain", runs.run_distance, expected.replay_distance),
        ),
        Task(
            name="predict",
            file="spectrain.py",
            target=f"{SOLUTION}:predict",
            library="hybridnn.nn.optimizers:SGD.predict",
            call=calls.call_predict,
            solution=predict_solution,
            public=cases.public_predict,
            hidden=cases.hidden_predict,
            points=Points(public=4, hidden=6, budget=2, whole=1),
            axes=("velocity",),
            budget=budgets.predict_budget,
            whole=WholeRun("digits on 4 stages, SpecTrain", runs.run_predict, expected.replay_predict),
        ),
    ),
)
