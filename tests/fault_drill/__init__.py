"""Fault drill: faults are injected into runs at random, and the results are checked.

``make fault-drill ARGS="--trials 300 --seed 7"``, or ``python -m fault_drill`` in the folder of the tests. To
repeat a failed trial, use ``--seed`` and ``--number``, and the same ``--kinds``, ``--faults`` and ``--most-ranks``.

* ``trials``: trials of a training with a fault (``injections``) at a moment (``moments``, ``rank``), which is resumed
* ``network_trials``: trials on several nodes with a fault of a link or a node
* ``launches``: one job, until all its processes have ended
* ``finished``: the results of a run, compared with those of an undisturbed run
"""
