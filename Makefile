# make run        install what a run needs, train nine mechanisms on the three starter tasks (smoke), show the board
# make test       lint, then all tests but the long ones          make test-full   the long ones too
# make test-gpu   the tests of kernels and recorded steps on one GPU, with GPU_PYTHON as the interpreter that has CUDA
# make test-cluster   cells on a Ray cluster, a Slurm and an S3 that are started here; installs the extras for them
# make lint       ruff and pyright                                make docs        the documentation as a site in site/
# make notebooks  run both notebooks                              make docker      an image that runs longspan
# make generated  the files that are made from the code: gallery, taxonomy, catalogue, drawing of the packages, pictures
#                 and examples of the site; and the tables, the picture and the shipped packs that are made from results

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
MECHANISMS := softmax 'local(window=8)' linear 'performer(features=32)' 's4d(state=16)' logsparse global_attention synthesizer none
# Two test processes with one thread each are faster on two cores than two that fight over them. Each begins with its own
# half of the files, for which fixtures are built once. Tests start many processes, which find the package compiled.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Compiling takes far longer than computing, so several processes share the GPU. Annotations are executed by the tests
# on a CPU; what executes them cannot be compiled, hence no conftest.
GPU_PYTHON ?= $(BIN)/python
GPU_TESTS = $(wildcard tests/kernels/*_kernel*.py tests/*/*_gpu.py)

.PHONY: run test test-full test-gpu test-cluster lint docs notebooks docker generated clean

run: $(VENV)/.installed-run
	$(BIN)/longspan run starter -a $(MECHANISMS) --tier smoke
	$(BIN)/longspan board starter --tier smoke
	$(BIN)/longspan report

test: lint
	$(PYTEST) -m "not full"

test-full: lint
	$(PYTEST) --hypothesis-profile fresh

test-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(VENV)/.installed-dev)
	$(GPU_PYTHON) -c "import torch, sys; sys.exit(not torch.cuda.is_available() and 'test-gpu needs a GPU.')"
	$(GPU_PYTHON) -m pytest -n 14 --dist worksteal --noconftest -p no:cacheprovider $(GPU_TESTS)

# A Ray cluster, a Slurm and an S3 server are started here; what is not installed is skipped with a sentence.
test-cluster: $(VENV)/.installed-cluster
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(addprefix tests/launchers/test_,ray.py slurm.py s3.py faults.py)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

generated: $(VENV)/.installed-dev
	$(BIN)/python docs/make_gallery.py
	$(BIN)/python docs/make_architecture.py
	$(BIN)/python docs/make_taxonomy.py
	$(BIN)/python docs/make_attention_maps.py
	$(BIN)/python docs/make_task_samples.py
	$(BIN)/python docs/make_overview.py
	$(BIN)/python -c "from longspan.api import ship_catalogue; ship_catalogue()"
	$(BIN)/python -c "from pathlib import Path; from longspan.results.shipped import pack; pack(Path('results'))"
	$(BIN)/longspan tables results/h200/README.md --cards results/h200
	$(BIN)/longspan tables docs/lra-findings.md docs/papers.md docs/findings.md --cards results

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

notebooks: $(VENV)/.installed-dev
	OMP_NUM_THREADS=2 $(BIN)/python notebooks/run_notebooks.py

# Built where docker can be asked, else only looked at by the tests.
docker:
	docker build --tag longspan .

clean:
	rm -rf $(VENV) build dist site *.egg-info

# A stamp says which set of dependencies is installed, so that a second call installs nothing.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) --editable '.[dev]'
	touch $@ $(VENV)/.installed-run

$(VENV)/.installed-cluster: pyproject.toml constraints.txt | $(VENV)/.installed-dev
	$(PIP_INSTALL) --editable '.[dev,test-cluster]'
	touch $@

$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) --editable '.[docs]'
	touch $@ $(VENV)/.installed-run
