"""A8: a study of strong scaling and a report, which a person grades by a rubric."""

from __future__ import annotations

from hybridnn_course_staff.assignment import Assignment, RubricItem

ASSIGNMENT = Assignment(
    id="a8",
    package="hybridnn_course_staff.assignments.a8_scaling",
    title="A8: Strong scaling",
    goal="Measure how a training scales, on a cluster or on a simulated one, and say what the data show",
    hours=8,
    axes={
        "network": {
            "two wide layers": "The network has two hidden layers of 512 neurons: `hidden = [512, 512]`.",
            "six narrow layers": "The network has six hidden layers of 128 neurons: "
            "`hidden = [128, 128, 128, 128, 128, 128]`.",
        },
        "minibatch": {
            "256": "The minibatch has 256 samples over all ranks.",
            "600": "The minibatch has 600 samples over all ranks.",
        },
        "ranks": {
            "powers of two": "The numbers of ranks are 1, 2, 4, 8 and 16.",
            "multiples of three": "The numbers of ranks are 1, 3, 6, 12 and 24.",
        },
    },
    rubric=(
        RubricItem(
            "study",
            14,
            "Does the study run the network, the minibatch and the ranks of the variant, with nothing else changed, "
            "against one rank, and every cell at least 5 times?",
        ),
        RubricItem(
            "job",
            10,
            "Does the batch script fit the machine: a rank for each core or fewer, whole nodes, a time limit, and one "
            "start of the study?",
        ),
        RubricItem("question", 6, "Does the report say what is scaled, what stays the same, and what was expected?"),
        RubricItem(
            "method",
            10,
            "Could somebody else repeat it: machine, versions, placement, threads, repeats, what a time includes?",
        ),
        RubricItem(
            "numbers",
            12,
            "Do the numbers of the report follow from results.csv, with intervals, and is every efficiency above 1 "
            "explained?",
        ),
        RubricItem(
            "figures",
            12,
            "Is there a plot of speed-up and one of times with intervals, the ideal line, units and readable labels, "
            "and is each discussed in the text?",
        ),
        RubricItem(
            "explanation",
            18,
            "Is it shown why scaling stops, with shares of communication and waiting, the serial fraction over the "
            "ranks, and messages and bytes from a cost model?",
        ),
        RubricItem(
            "prediction",
            10,
            "Is a prediction made before the measurement, compared with it, and the difference explained?",
        ),
        RubricItem("limits", 4, "Does the report say what the data cannot show, and what would change the conclusion?"),
        RubricItem("writing", 4, "Is it short, clear and complete, without claims that no figure or table supports?"),
    ),
    texts=("study.toml", "job.sbatch", "results.csv", "report.md"),
)
