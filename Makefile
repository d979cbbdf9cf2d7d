# Two commands: `make run` measures this machine, `make test` runs every test that needs no cluster.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# a suite and its tests start hundreds of processes: each would compile all that it imports
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test bench otava lint lock chart tools clean

run: $(VENV)/run.stamp tools
	@$(BIN)/perfdag run suites/quick.yaml --store ./perfdag-results

# style, format, types, and the arrows between rooms (contracts in pyproject.toml)
LINT := $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports --no-logo

# the tests of clocks come first at the processors, the others take what these leave, the checks of the code what is left then
test: $(VENV)/dev.stamp tools
	@$(BIN)/python -m pytest -q -n 4 --dist load --maxschedchunk 1 -m "not cluster and not argo" -o cache_dir=.pytest_cache/clocks $(CLOCKS) \
	   >$(VENV)/clocks.log 2>&1 & clocks=$$!; \
	 nice -n 19 sh -c '$(LINT)' >$(VENV)/lint.log 2>&1 & lint=$$!; \
	 trap 'kill $$clocks $$lint; exit 130' INT TERM; \
	 nice -n 10 $(BIN)/python -m pytest -q -n 4 --dist worksteal -m "not cluster and not argo" $(CLOCKS:%=--ignore %); others=$$?; \
	 wait $$clocks; clocks=$$?; cat $(VENV)/clocks.log; wait $$lint; lint=$$?; cat $(VENV)/lint.log; \
	 echo "$$others $$clocks" >$(VENV)/tests.codes; [ "$$others$$clocks$$lint" = 000 ]

# these hold real clocks against real load and mostly wait: the longest first
LONGEST := tests/queue/test_validate.py
CLOCKS := $(LONGEST) tests/stats/test_real_step.py tests/stats/test_confirm.py tests/resnet50/test_loadgen.py \
          $(filter-out $(LONGEST),$(wildcard tests/queue/test_*.py))

# perfdag's own speed: those that take a few minutes and need no cluster, one after the other, each with its limits
bench: $(VENV)/dev.stamp
	@for each in $(SPEEDS); do echo "$$each"; set -- $$each; $(BIN)/python benchmarks/$$1.py $$2 || failed=1; done; exit $${failed:-0}

SPEEDS := plan 'argo render' collect history overhead_run

# the detector beside apache-otava's, in an environment of its own
otava:
	@./scripts/otava $(PYTHON) $(VENV)/otava

# the tests of the real model; PyTorch is installed there where 8 GB are free
torch:
	@./scripts/torch $(PYTHON) $(VENV)/torch

lint: $(VENV)/dev.stamp
	@$(LINT)

# the Helm chart's templates and the schema of its values, from the definitions of `perfdag install`
chart: $(VENV)/dev.stamp
	@$(BIN)/python -m perfdag.workflows.chart deploy/helm/perfdag

tools:
	@./scripts/tools

$(VENV)/run.stamp: requirements/run.txt pyproject.toml
	@./scripts/venv $(PYTHON) $(VENV) requirements/run.txt && touch $@

$(VENV)/dev.stamp: requirements/dev.txt pyproject.toml
	@./scripts/venv $(PYTHON) $(VENV) requirements/dev.txt && touch $@ $(VENV)/run.stamp

# the locks: exact versions with hashes, for every platform; needs uv
lock:
	uv pip compile -q --universal --generate-hashes --no-header --python-version 3.11 \
	  --extra s3 --extra mpi --extra argo --extra build -o requirements/run.txt pyproject.toml
	uv pip compile -q --universal --generate-hashes --no-header --python-version 3.11 \
	  --extra s3 --extra aws --extra mpi --extra build --extra argo --extra dev -c requirements/run.txt -o requirements/dev.txt pyproject.toml
	uv pip compile -q --universal --generate-hashes --no-header --python-version 3.11 \
	  -c requirements/run.txt -o requirements/step.txt requirements/step.in

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache dist
