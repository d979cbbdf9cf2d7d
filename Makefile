# Two commands: `make run` measures this machine, `make test` runs every test that needs no cluster.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# A suite and its tests start hundreds of processes, and each would compile its imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: docs run test charts bench torch faults lint lock generated tools clean

run: $(VENV)/run.stamp tools
	@$(BIN)/perfdag run suites/quick.yaml --store ./perfdag-results

# style, format, types, and the arrows between rooms (contracts in pyproject.toml)
LINT := $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports --no-logo

# Tests that measure time have the highest priority, then the other tests, then the lint.
test: $(VENV)/dev.stamp tools
	@nice -n 19 sh -c '$(LINT)' >$(VENV)/lint.log 2>&1 & lint=$$!; $(BYTECODE); \
	 $(BIN)/python -m pytest -q -n 4 --dist load --maxschedchunk 1 -m "not cluster and not argo" -o cache_dir=.pytest_cache/clocks $(CLOCKS) \
	   >$(VENV)/clocks.log 2>&1 & clocks=$$!; \
	 trap 'kill $$clocks $$lint; exit 130' INT TERM; \
	 nice -n 10 $(BIN)/python -m pytest -q -n 4 --dist worksteal -m "not cluster and not argo" $(CLOCKS:%=--ignore %) --ignore $(PICTURES) --ignore tests/e2e; others=$$?; \
	 wait $$clocks; clocks=$$?; cat $(VENV)/clocks.log; wait $$lint; lint=$$?; cat $(VENV)/lint.log; \
	 echo "$$others $$clocks" >$(VENV)/tests.codes; [ "$$others$$clocks$$lint" = 000 ]

# In a new environment each worker would compile all tests.
BYTECODE = [ $(VENV)/bytecode.stamp -nt $(VENV)/dev.stamp ] || { $(BIN)/python -m pytest -q --collect-only --ignore tests/e2e >/dev/null 2>&1; touch $(VENV)/bytecode.stamp; }

# Look at the charts of every benchmark in Chromium.
charts: $(VENV)/dev.stamp
	@$(BIN)/python -m pytest -q -n 2 $(PICTURES)

PICTURES := tests/charts/test_every_chart.py

# These compare real clocks under real load, and mostly wait. The longest comes first.
LONGEST := tests/queue/test_validate.py
CLOCKS := $(LONGEST) tests/resnet50/test_loadgen.py tests/scale/test_generate.py \
          $(filter-out $(LONGEST),$(wildcard tests/queue/test_*.py))

# perfdag's own speed, with the limits it must hold: the benchmarks that need no cluster, one after the other.
bench: $(VENV)/dev.stamp
	@for speed in $(SPEEDS); do echo "$$speed"; set -- $$speed; $(BIN)/python benchmarks/$$1.py $$2 || failed=1; done; exit $${failed:-0}

SPEEDS := plan 'argo render' collect history site overhead_run

# The documentation as a site, in dist/docs/site. Fails if a link is broken.
docs: $(VENV)/docs.stamp
	@$(VENV)/docs/bin/python scripts/docs.py dist/docs

# Test the real model. Installs PyTorch if 8 GB are free.
torch:
	@./scripts/torch $(PYTHON) $(VENV)/torch $(TORCH_OPTIONS)

# Random faults under one run, on a cluster of three nodes of the test harness.
FAULTS ?= 20
faults: $(VENV)/dev.stamp
	@bash -c '. .ci/faults; PERFDAG_TEST_FAULTS=$(FAULTS) exec $(BIN)/python -m pytest -m argo tests/e2e/test_faults.py -k random -o log_cli=true --log-cli-level=INFO'

lint: $(VENV)/dev.stamp
	@$(LINT)
	@-$(BIN)/python scripts/size --line

# Write what is derived from the definitions: the schema of suites and its page, and the manifests in deploy/argo, which the Helm chart reads.
generated: $(VENV)/dev.stamp
	@$(BIN)/perfdag plan --schema >suites/suite.schema.json
	@$(BIN)/python scripts/reference.py
	@$(BIN)/python scripts/deploy

tools:
	@./scripts/tools

$(VENV)/run.stamp: requirements/run.txt pyproject.toml
	@./scripts/venv $(PYTHON) $(VENV) requirements/run.txt && touch $@

$(VENV)/dev.stamp: requirements/dev.txt pyproject.toml
	@./scripts/venv $(PYTHON) $(VENV) requirements/dev.txt && touch $@ $(VENV)/run.stamp

$(VENV)/docs.stamp: requirements/docs.txt pyproject.toml
	@./scripts/venv $(PYTHON) $(VENV)/docs requirements/docs.txt && touch $@

# Write the locks: exact versions with hashes, for every platform. Needs uv.
lock:
	uv pip compile -q --universal --generate-hashes --no-header --python-version 3.11 \
	  --extra s3 --extra analysis --extra mpi --extra argo --extra build -o requirements/run.txt pyproject.toml
	uv pip compile -q --universal --generate-hashes --no-header --python-version 3.11 \
	  --extra s3 --extra aws --extra mpi --extra build --extra argo --extra dev -c requirements/run.txt -o requirements/dev.txt pyproject.toml
	uv pip compile -q --universal --generate-hashes --no-header --python-version 3.11 \
	  --extra docs --extra build --extra argo -c requirements/run.txt -o requirements/docs.txt pyproject.toml
	uv pip compile -q --universal --generate-hashes --no-header --python-version 3.11 \
	  -c requirements/run.txt -o requirements/step.txt requirements/step.in
	uv pip compile -q --universal --generate-hashes --no-header --python-version 3.11 \
	  --extra s3 -c requirements/run.txt -o requirements/finish.txt pyproject.toml
	for image in $(dir $(wildcard images/*/requirements.in)); do uv pip compile -q --universal --generate-hashes \
	  --no-header --no-annotate --python-version 3.11 -c requirements/run.txt -o $${image}requirements.txt $${image}requirements.in || exit 1; done

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache dist
