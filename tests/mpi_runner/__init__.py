"""Runner that executes tests marked ``mpi`` under mpirun from a plain ``python -m pytest``, with time limits.

The marker of pytest-mpi gives the process counts of a test, which is collected once for each of them::

    @pytest.mark.mpi(ranks=[2, 4])          # ids [np2] and [np4]; without ranks: 2 and 3
    @pytest.mark.timeout(20)                # seconds for this test; otherwise the setting mpi_timeout
    def test_sum(comm, mpi_tmp_path): ...

For each number of ranks, one ``mpirun`` runs all selected tests in pytest-mpi's ``--with-mpi`` mode. A job that
hangs is ended by one of these mechanisms, from the inside to the outside:

1. a rank whose test fails stops there (``-x``) and exits non-zero, which ``python -m mpi4py`` turns into an abort;
2. a test over its time limit prints the stacks of its rank and exits at once, so that mpirun ends the other ranks;
3. the outer process ends a job in which no test began or finished for the longest limit plus ``mpi_grace``;
4. after the end of a job, every process with its mark in the environment is killed.

All limits are multiplied by the slowness of the machine, measured when the tests begin, and so are the deadlines of
tests, through ``slowness.deadline``.

The running test is reported as failed, with the output of the job, and the tests after it run in a new job.

* ``launch``: jobs under mpirun with time limits, also for the fixture ``run_mpi``
* ``slowness``: slowness of the machine relative to an idle one
* ``rank``: the plugin of each rank; rank 0 records the reports of the tests
* ``outer``: the plugin of the process that the user started
* ``plugin``: the marker, the settings and the fixtures
"""
