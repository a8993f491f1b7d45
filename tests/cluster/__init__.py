"""Several nodes on this machine, and the tests on them."""
