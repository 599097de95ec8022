# make run and make test need nothing but Python 3.8 to 3.14 with venv, and a package registry; they set up VENV themselves.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

# Somebody names a Python, and the environment is of another: make would go on with the old one and not say so.
ifneq ($(origin PYTHON),file)
ifneq ($(and $(if $(filter clean test-pythons test-cu112 test-gpus check-launch,$(MAKECMDGOALS)),,goes on),$(wildcard $(VENV)/bin/python)),)
VERSION_OF = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
THERE := $(call VERSION_OF,$(VENV)/bin/python)
ASKED := $(call VERSION_OF,$(PYTHON))
ifneq ($(and $(THERE),$(ASKED),$(filter-out $(THERE),$(ASKED))),)
$(error $(VENV) is of Python $(THERE), and $(PYTHON) is $(ASKED): keep both with VENV=.venv-$(ASKED), or make clean first)
endif
endif
endif

.PHONY: run install jupyter labs handouts slides site-lab docs test test-all fuzz test-cu112 test-gpus test-pythons check-arm check-launch check-labs check-isolated check-sagemaker \
  check-sagemaker-mpi lint dist bench bench-processes clean

run: $(VENV)/.ready-cpu
	$(VENV)/bin/python -m gluonlab.run --gpus 2 $(ARGS)

# What is optional, added to VENV: make install EXTRAS='onnx tensorboard'.
EXTRAS ?=

install: $(VENV)/.ready-cpu
	@$(PYTHON) tools/make_venv.py $(VENV) cpu $(EXTRAS)

# Copies of the labs to work in, which are never overwritten, and JupyterLab on them. Whatever kernels the user has, theirs is VENV's.
WORK ?= my-labs

jupyter: $(VENV)/.ready-jupyter
	@$(VENV)/bin/python -m gluonlab.labs $(WORK)
	JUPYTER_PREFER_ENV_PATH=1 $(VENV)/bin/python -m jupyterlab $(ARGS) $(WORK)

labs: $(VENV)/.ready-labs-build
	$(VENV)/bin/python labs/build.py $(ARGS)

handouts: $(VENV)/.ready-labs-build
	$(VENV)/bin/python labs/build.py handouts $(ARGS)

slides: $(VENV)/.ready-labs-build
	$(VENV)/bin/python labs/build.py slides $(ARGS)

# All tests by two processes: who has finished takes half of what the other has left. What ARGS chooses, by one.
# The package is compiled once, not by each of some hundred processes that the tests start, and so are the tests, for the next time.
# The checkers of exercises run programs that are wrong on purpose: in processes of their own. After thousands of other tests they have, rarely, ended
# by a segmentation fault that is not explained; by themselves they never have, nor has any other test.
test: $(VENV)/.ready-test
	@$(VENV)/bin/python -m compileall -q gluonlab
	PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest $(or $(ARGS),-n 2 --dist worksteal --ignore=tests/exercises)
	$(if $(ARGS),,PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest -n 2 tests/exercises)

test-all: $(VENV)/.ready-test $(VENV)/.ready-bench test-cu112
	$(VENV)/bin/python -m pytest -m 'not gpu and not cu112 and not horovod and not hosts and not container and not mpi' --hypothesis-profile=random $(ARGS)
	$(ON_GPUS) --gpus 8 --promise-peers $(CU112)/bin/python -m pytest tests/gpus -m long $(ARGS)
	$(MAKE) test-gpus ROAD=tests/study/speedup/test_causes.py ARGS='-m long -k nearly_all'
	$(MAKE) check-arm
	$(MAKE) check-launch ARGS="-m 'horovod or hosts'"
	$(MAKE) check-sagemaker ARGS='-m long'
	$(MAKE) check-labs ARGS='-m long'

# Linux on ARM, in an emulated Debian system in build/arm: needs root, Debian and qemu-user-static. ARGS='bash' opens a shell there.
check-arm: $(VENV)/.ready-test
	$(VENV)/bin/python tools/check_arm.py $(ARGS)

# Thousands of damaged and hostile inputs of every kind; Python 3.10 or newer, for the notebooks among them.
fuzz: $(VENV)/.ready-labs-check
	$(VENV)/bin/python -m pytest tests/fuzz --hypothesis-profile=fuzz $(ARGS)
	$(VENV)/bin/python -m pytest tests/labs/test_fuzz_notebooks.py --hypothesis-profile=fuzz $(ARGS)

# The CUDA build (4 GB) without a GPU. Its own tests, with a driver that has no device; then simulated GPUs (tests/gpus/README.md):
# their own tests, and all of make test that can on gpu(i) instead of cpu(i).
CU112 ?= .venv-cu112
ON_GPUS = $(CU112)/bin/python tests/gpus/start.py

test-cu112: $(CU112)/.ready $(CU112)/gpus/.ready
	LD_LIBRARY_PATH=$(abspath $(CU112))/driver $(CU112)/bin/python -m pytest -m cu112 tests/engine/test_cu112.py
	$(ON_GPUS) --gpus 8 --promise-peers $(CU112)/bin/python -m pytest tests/gpus $(ARGS)
	$(MAKE) test-gpus ROAD=--ignore=tests/doctor/test_environments.py

# make test on simulated GPUs (tests/support/devices.py), but the doctor's in environments of the CPU build; here what the road of a batch
# and its gradients touches, some minutes; make test-cu112 takes all.
ROAD = $(foreach name,$(ROAD_OF),tests/$(dir $(name))test_$(notdir $(name)).py)
ROAD_OF = kvstores/kvstores kvstores/schedule_stores kvstores/sharded_optimizer kvstores/process_group_store \
  collectives/schedule_executor collectives/executor_engine collectives/reduce_apart parallel/data/step \
  parallel/data/microbatches parallel/data/sync_bn parallel/data/sync_bn_replicas bucketed_trainer/trainer \
  bucketed_trainer/stale_gradients bucketed_trainer/clipping training/mixup training/optimize training/evaluate export/export_network \
  bucketed_trainer/loss_scale training/loss_meter training/loop parallel/data/running_statistics bucketed_trainer/mxnet_trainer \
  data/images/crop data/loading/augmentation data/loading/split_batch bench/allreduce/measure_allreduce \
  parallel/data/between_passes bench/measure_splits benchmarks/commands \
  parallel/left_out parallel/two_halves parallel/data/strategy parallel/pipeline/strategy parallel/tensor/strategy \
  training/resume_splits training/split_files run/evaluate_run bench/links/command device_use

test-gpus: $(CU112)/.ready $(CU112)/gpus/.ready
	GLUONLAB_TEST_DEVICES=gpu $(ON_GPUS) --gpus 8 $(CU112)/bin/python -m pytest $(ROAD) $(ARGS)

$(CU112)/.ready: setup.py tools/make_venv.py tests/support/stub_driver.py
	@PYTHONPATH=tests $(PYTHON) tests/support/stub_driver.py $(CU112)/driver
	@LD_LIBRARY_PATH=$(abspath $(CU112))/driver $(PYTHON) tools/make_venv.py $(CU112) cu112 simulated-gpus labs test
	@touch $@

# Made again when a source changes; build.py knows which.
$(CU112)/gpus/.ready: $(CU112)/.ready $(shell find tests/gpus -name '*.cpp' -o -name '*.h') tests/gpus/Makefile tests/gpus/missing.py
	@$(CU112)/bin/python tests/gpus/build.py $(CU112)/gpus
	@touch $@

# Training by processes over Horovod, which is compiled here, in an environment of its own: a minute or two, g++. And over several hosts:
# network namespaces, where there are root, iproute2 and OpenSSH (GLUONLAB_HOSTS=required: fail without).
HOROVOD ?= .venv-horovod

check-launch: $(HOROVOD)/.ready
	$(HOROVOD)/bin/python -m pytest -m '(horovod or hosts) and not long' tests/launch tests/bench/test_scaling.py tests/bench/allreduce/test_processes.py $(ARGS)

$(HOROVOD)/.ready: setup.py tools/make_venv.py
	@$(PYTHON) tools/make_venv.py $(HOROVOD) cpu horovod test
	@touch $@

test-pythons:
	$(PYTHON) tools/test_pythons.py

check-labs: $(VENV)/.ready-labs-check
	$(VENV)/bin/python labs/build.py --check
	$(VENV)/bin/python -m pytest tests/labs $(ARGS)

# What exercises grade --container promises, by Docker or Podman itself, and the image of the Dockerfile's target grading.
ENGINE ?= docker
BUILD ?=
GRADING = gluonlab-grading:$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' gluonlab/__init__.py)

check-isolated: $(VENV)/.ready-labs-check
	$(ENGINE) build --target grading -t $(GRADING) $(BUILD) .
	ENGINE=$(ENGINE) $(VENV)/bin/python -m pytest -m container tests/labs/test_containers.py $(ARGS)

check-sagemaker: $(VENV)/.ready-sagemaker-check
	$(VENV)/bin/python tools/check_sagemaker.py
	$(VENV)/bin/python -m pytest tests/sagemaker $(ARGS)

# training/horovod.json under AWS's toolkit, over Open MPI: needs g++, and root's openmpi-bin, libopenmpi-dev and openssh-server.
MPI ?= .venv-mpi

check-sagemaker-mpi: $(MPI)/.ready
	$(MPI)/bin/python -m pytest -m mpi tests/sagemaker $(ARGS)

$(MPI)/.ready: setup.py tools/make_venv.py
	@HOROVOD_WITH_MPI=1 $(PYTHON) tools/make_venv.py $(MPI) cpu horovod mpi sagemaker-check
	@touch $@

lint: $(VENV)/.ready-lint $(VENV)/.ready-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	find tests/gpus/src -name '*.cpp' -o -name '*.h' | xargs $(VENV)/bin/clang-format --dry-run --Werror
	$(VENV)/bin/mypy
	$(VENV)/bin/codespell
	$(VENV)/bin/python -m pytest tests/test_names.py tests/test_prose.py

# A source archive and a wheel in dist/, judged and opened; GLUONLAB_URL=https://... gives their page its links.
dist: $(VENV)/.ready-dist
	rm -rf dist build/lib build/bdist.*
	@mkdir -p build && $(VENV)/bin/python -m build --outdir dist >build/dist.log 2>&1 || { cat build/dist.log; exit 1; }
	$(VENV)/bin/python -m twine check --strict dist/*
	$(VENV)/bin/python -m pytest tests/dist $(ARGS)

# docs/ as a site in build/site, which needs no network to be read; links are checked, pages opened. GLUONLAB_URL=https://... makes links of
# what leads to the repository.
docs: $(VENV)/.ready-docs $(VENV)/.ready-labs-build
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet
	$(VENV)/bin/python labs/build.py browser
	$(VENV)/bin/python -m pytest tests/site $(ARGS)
	@echo "build/site/index.html"

# The exercises about schedules as a page in build/site/lab, which runs Python in the browser: npm fetches Pyodide once. To try it:
# python -m http.server -d build/site/lab
site-lab: $(VENV)/.ready-labs-build
	$(VENV)/bin/python labs/build.py browser $(ARGS)

# Tables, and the same numbers as records for python tools/benchmarks compare; BASELINE=DIR also measures another checkout.
RECORDS ?= bench-records
BASELINE ?= $(BESIDE)
IN_TURNS = $(if $(BASELINE),--baseline $(BASELINE))
FEW_STORES = $(if $(BASELINE),--kvstores device$(comma)ring$(comma)sharded-optimizer)  # both checkouts' are in memory at once
comma := ,

bench: $(VENV)/.ready-bench
	@mkdir -p $(RECORDS)
	$(VENV)/bin/python tools/benchmarks frameworks --out-file $(RECORDS)/peers-lenet.json $(IN_TURNS) $(ARGS)
	$(VENV)/bin/python tools/benchmarks frameworks --model resnet18 --out-file $(RECORDS)/peers-resnet18.json $(IN_TURNS) $(ARGS)
	$(VENV)/bin/python tools/benchmarks optimize --out-file $(RECORDS)/optimize.json $(IN_TURNS) $(ARGS)
	$(VENV)/bin/python tools/benchmarks overhead --out-file $(RECORDS)/host.json $(IN_TURNS) $(ARGS)
	$(VENV)/bin/python tools/benchmarks gradients --out-file $(RECORDS)/gradients.json $(FEW_STORES) $(IN_TURNS) $(ARGS)
	$(VENV)/bin/python tools/benchmarks threads --out-file $(RECORDS)/threads.json $(IN_TURNS) $(ARGS)
	$(if $(BASELINE),,$(VENV)/bin/python tools/benchmarks overlap --out-file $(RECORDS)/overlap.json $(ARGS))
	$(if $(BASELINE),,$(VENV)/bin/python tools/benchmarks images --out-file $(RECORDS)/images.json $(ARGS))
	$(if $(BASELINE),,$(VENV)/bin/python -m gluonlab.bench strategies --out-file $(RECORDS)/splits.json $(ARGS))
	$(if $(BASELINE),,$(VENV)/bin/python tools/benchmarks checkpoints --out-file $(RECORDS)/checkpoints.json $(ARGS))
	$(if $(BASELINE),,$(VENV)/bin/python tools/benchmarks advice --out-file $(RECORDS)/verdict.json $(ARGS))
	$(if $(BASELINE),,$(MAKE) bench-processes)

# Those that compare processes run where Horovod is.
bench-processes: $(HOROVOD)/.ready
	@mkdir -p $(RECORDS)
	$(HOROVOD)/bin/python -m gluonlab.bench processes --out-file $(RECORDS)/scaling-lenet.json $(ARGS)
	$(HOROVOD)/bin/python -m gluonlab.bench processes --model resnet18 --out-file $(RECORDS)/scaling-resnet18.json $(ARGS)
	$(HOROVOD)/bin/python -m gluonlab.bench processes --scaling strong --out-file $(RECORDS)/scaling-strong.json $(ARGS)

clean:
	rm -rf $(VENV) $(CU112) $(HOROVOD) .venvs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# What .ci/run needs in VENV, by one installation instead of six.
IN_CI = lint test docs dist labs-build labs-check sagemaker-check

$(VENV)/.ready-ci: setup.py tools/make_venv.py
	@$(PYTHON) tools/make_venv.py $(VENV) cpu $(IN_CI)
	@touch $(IN_CI:%=$(VENV)/.ready-%) $@

# A stamp for each set of extras: the second time there is nothing to install.
$(VENV)/.ready-%: setup.py tools/make_venv.py
	@command -v $(PYTHON) >/dev/null || { echo "error: no $(PYTHON) here: install Python 3.8 to 3.14, or name one: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) tools/make_venv.py $(VENV) cpu $(filter-out cpu,$*)
	@touch $@
