# make run        install what a run needs, train nine mechanisms on the two starter tasks (smoke), show the board
# make test       lint, then all tests but the long ones          make test-full   the long ones too
# make lint       ruff and pyright                                make docs        the documentation as a site in site/
# make catalogue  describe the built-ins anew, after a change to attentions, tasks, backbones, datasets or suites

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
MECHANISMS := softmax local linear performer 'linformer(rank=16, sharing="key-value")' abc 's4d(state=16)' fnet nystromformer
# Two test processes with one thread each are faster on two cores than two that fight over them.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.PHONY: run test test-full lint docs catalogue clean

run: $(VENV)/.installed-run
	$(BIN)/longspan run starter -a $(MECHANISMS) --tier smoke
	$(BIN)/longspan board starter --tier smoke
	$(BIN)/longspan report

test: lint
	$(PYTEST) -m "not full"

test-full: lint
	$(PYTEST)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

docs: $(VENV)/.installed-docs
	$(BIN)/python docs/make_gallery.py
	$(BIN)/mkdocs build --strict

catalogue: $(VENV)/.installed-run
	$(BIN)/python -c "from longspan.api import ship_catalogue; ship_catalogue()"

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

$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) --editable '.[docs]'
	touch $@ $(VENV)/.installed-run
