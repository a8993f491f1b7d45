"""Run tests marked ``mpi`` under mpirun from a plain ``python -m pytest``, and always come to an end.

A test asks for process counts with pytest-mpi's own marker and is collected once for each of them::

    @pytest.mark.mpi(ranks=[2, 4])          # ids [np2] and [np4]; without ranks: 2 and 3
    @pytest.mark.timeout(20)                # seconds for this test; otherwise the setting mpi_timeout
    def test_sum(comm, mpi_tmp_path): ...

For each number of ranks one ``mpirun`` runs all its selected tests in pytest-mpi's ``--with-mpi`` mode. What ends
a job that cannot end by itself, from the inside to the outside:

1. a rank whose test fails stops there (``-x``) and exits non-zero, which ``python -m mpi4py`` turns into an abort;
2. a test over its time limit dumps the stacks of its rank and exits at once, which makes mpirun end the others;
3. the outer process ends a job in which no test began or finished for the longest limit plus ``mpi_grace``;
4. whatever ended the job, every process that carries its mark in the environment is killed.

Every limit is stretched by how much slower the machine is, when the tests begin, than a quiet one; so are the deadlines
that tests set themselves through ``slowness.deadline``.

The test that was running is reported as failed and the tests after it run in a new job.

* ``launch``: jobs under mpirun that surely end, also for tests that start their own through the fixture ``run_mpi``
* ``slowness``: how much slower the machine is than a quiet one
* ``rank``: the plugin inside each rank, which writes down what happens as it happens
* ``verdicts``: from the records of the ranks to the outcome of each test
* ``outer``: the plugin of the process the user started
* ``plugin``: the marker, the settings, the fixtures, and the choice between the two
"""
