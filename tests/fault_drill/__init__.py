"""The fault drill: runs, scripts and files are broken at random, and what becomes of them is judged.

``make fault-drill ARGS="--trials 300 --seed 7"``, or ``python -m fault_drill`` in the folder of the tests. A trial that
fails is repeated with ``--seed`` and ``--number``, and the same ``--kinds``, ``--faults`` and ``--most-ranks``.

* ``turns``: whose turn it is; draws a trial and carries it out
* ``trials``: of a training that is struck at a moment (``moments``, ``rank``) by a fault (``strikes``) and resumed
* ``script_trials``: of a user's script (``script``) of which one rank leaves, stands still or differs
* ``folder_trials``: of commands (``commands``) on folders (``sources``) with a damaged file (``forgeries``)
* ``launches``: one job, watched until every process is gone
* ``finished``: what a run left, compared with an undisturbed one
* ``outcomes``, ``tables``: what became of trials, and how many
"""
