# make demo   set up, train on embedded data, audit, write the report
# make test   set up, run all tests but the slow and GPU ones
# make pictures  set up, train, audit and report on Adult, and draw the pictures of the README (needs chromium)
# make verify-results  set up, run two random small reproductions again, compare with the committed results
# make kills  set up, kill runs with SIGKILL at 200 random moments, resume them, compare bit for bit
# make rank-kills  set up, kill ranks of shared runs at 20 random moments, resume them, compare bit for bit; then with FSDP2
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint format bench pictures mutants kills rank-kills verify-results wheel clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile "$$(grep -E '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[dev]'
	-$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib src  # on all cores, which pip does not
	touch $@

demo: $(STAMP)
	$(BIN)/noisewise demo --out runs/demo

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal -q

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python benchmarks/step.py --out benchmarks/results

pictures: $(STAMP)
	$(BIN)/python benchmarks/pictures.py

mutants: $(STAMP)
	$(BIN)/python tests/mutants.py

kills: $(STAMP)
	$(BIN)/python tests/kills.py --kills 200

rank-kills: $(STAMP)
	$(BIN)/python tests/rank_kills.py --kills 20
	$(BIN)/python tests/rank_kills.py --kills 20 --sharded

verify-results: $(STAMP)
	$(BIN)/python benchmarks/reproductions.py verify

wheel: $(STAMP)
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) dist build runs .pytest_cache .ruff_cache .hypothesis
