# Each target does its own set-up in .venv, from the lock file.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Party processes start much faster with compiled modules.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test tests lint format types bench study refresh pages docs screenshots sbom lock proto clean

demo: $(STAMP)
	$(BIN)/colonnade demo --out demo-run

# Types are checked beside the tests, which leave a core idle now and then.
test: format
	$(MAKE) --no-print-directory -j 2 types tests

tests: $(STAMP)
	$(BIN)/pytest -q -n 3 --dist worksteal

lint: format types

format: $(STAMP)
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks

types: $(STAMP)
	$(BIN)/mypy

# make bench NAME=field       QUICK=1 for fewer repetitions
# make bench PEERS=1          beside other packages, which get an environment of their own (6 GB: GAIN needs torch)
bench: $(STAMP) $(if $(PEERS),.venv-peers/.installed)
	$(BIN)/python -m benchmarks $(if $(PEERS),peers,$(if $(NAME),$(NAME),--list))

.venv-peers/.installed: requirements-peers.lock
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --no-deps --require-hashes -r requirements-peers.lock
	touch .venv-peers/.installed

# make study NAME=fuzz-wire   the slower studies; they write docs/results/
study: $(STAMP)
	$(BIN)/python -m benchmarks $(if $(NAME),$(NAME),--list)

# Every page whose code has changed, anew, after saying how long that takes; goes on where it was stopped. PLAN=1 only says it.
refresh: $(STAMP) $(if $(PEERS),.venv-peers/.installed)
	$(BIN)/python -m benchmarks refresh

# Writes on every results page whether its code is the present one; a test fails when a page does not say so.
pages: $(STAMP)
	$(BIN)/python -m benchmarks.provenance_common

# The site, in site/: warnings are errors, links are checked, nothing is loaded from outside.
docs: $(STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs site
	$(BIN)/python docs/check_site.py site
	@echo "Open: $(CURDIR)/site/index.html"

# Needs Chromium; writes docs/images/*.png from the demo and from a party with simulated jobs, and every page into screenshots/.
screenshots: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m support.screenshots docs/images screenshots

# What .venv consists of (CycloneDX, sbom.json): every package with its version, licence and what needs it.
sbom: $(STAMP) .venv-sbom/.installed
	.venv-sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON -o sbom.json $(BIN)/python
	@echo "Written: $(CURDIR)/sbom.json"

.venv-sbom/.installed: requirements-sbom.lock
	test -x .venv-sbom/bin/python || $(PYTHON) -m venv .venv-sbom
	.venv-sbom/bin/pip install --quiet --require-hashes -r requirements-sbom.lock
	touch .venv-sbom/.installed

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Colonnade needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	touch $(STAMP)

# Needs uv; writes pinned versions with hashes and no host names.
lock:
	uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --no-annotate --python-version 3.11 \
		--extra completion --extra dask --extra docs --extra duckdb --extra network \
		--extra postgresql --extra test --extra build -o requirements.lock pyproject.toml

# The same for the peers, without what GAIN does not import of its package's requirements.
lock-peers:
	uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --no-annotate --python-version 3.11 \
		--override requirements-peers-left-out.in -o requirements-peers.lock requirements-peers.in

lock-sbom:
	uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --no-annotate --python-version 3.11 \
		-o requirements-sbom.lock requirements-sbom.in

# Writes the protobuf code of the network transport again; a test compares.
proto: $(STAMP)
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=src/colonnade/federation/transports/generated \
		--pyi_out=src/colonnade/federation/transports/generated colonnade.proto

clean:
	rm -rf .venv .venv-peers .venv-sbom sbom.json site demo-run .mypy_cache .ruff_cache .pytest_cache .hypothesis
