"""The fault drill: trainings that are disturbed at random, resumed, and compared with undisturbed ones.

``make fault-drill ARGS="--trials 200 --seed 7"``, or ``python -m fault_drill`` in the folder of the tests.
"""
