# Every target needs only Python 3.11+, make and a package index. uv is used if it is installed.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
EXTRAS := agents,auth,fastapi,gcs,grpc,mcp,models,otel,policy,postgres,redis,s3,sdk,signing
UV     := $(shell command -v uv 2>/dev/null)

# The tests start hundreds of interpreters: compiled modules are kept even where the environment asks not to.
export PYTHONDONTWRITEBYTECODE :=

ifdef UV
  MAKE_VENV = uv venv --quiet --python $(PYTHON) $(VENV)
  INSTALL   = VIRTUAL_ENV=$(VENV) uv pip install --quiet
else
  MAKE_VENV = $(PYTHON) -m venv $(VENV)
  INSTALL   = $(BIN)/python -m pip install --quiet --disable-pip-version-check
endif

.PHONY: help run agent test check docs audit lowest soak bench conformance dist release-check format clean

help:
	@echo "make run    serve the echo example at http://127.0.0.1:8000"
	@echo "make agent  serve the support agent there, from YAML and with a scripted model"
	@echo "make test   run every test"
	@echo "make check  lint, security rules, types, layers and the audit of dependencies"
	@echo "make docs   the documentation site, in site/; fails on a broken link or an unresolved reference"
	@echo "make audit  known vulnerabilities of the dependencies (asks osv.dev, if it can be reached)"
	@echo "make lowest  part of the tests with the lowest versions that pyproject.toml allows"
	@echo "make soak   the long crash and soak runs, and properties with all their examples"
	@echo "make bench  compare errands with its peers"
	@echo "make conformance  the public conformance kits (fetched from GitHub)"
	@echo "make dist   wheel and sdist, in dist/; the same bytes each time"

$(BIN)/python:
	@$(MAKE_VENV)

$(VENV)/.run: pyproject.toml | $(BIN)/python
	@echo "Installing errands into $(VENV) ..."
	@$(INSTALL) -e .
	@touch $@

# The dev tools are listed once, in pyproject.toml's dependency group; pip before 25.1 cannot read groups.
$(VENV)/.dev: pyproject.toml scripts/dev_requirements.py $(VENV)/.run
	@echo "Installing the development tools ..."
	@$(BIN)/python scripts/dev_requirements.py dev docs > $(VENV)/dev-requirements.txt
	@$(INSTALL) -e '.[$(EXTRAS)]' -r $(VENV)/dev-requirements.txt
	@touch $@

run: $(VENV)/.run
	@$(BIN)/errands serve examples/echo.py --host 127.0.0.1 --port 8000

$(VENV)/.agents: $(VENV)/.run
	@$(INSTALL) -e '.[agents]'
	@touch $@

agent: $(VENV)/.agents
	@$(BIN)/errands serve examples/support-agent --model scripted --host 127.0.0.1 --port 8000

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 4 --dist worksteal -q

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory audit

# The warning that is turned off is about a later version of MkDocs, not about these pages.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --clean
	@echo "Open site/index.html in a browser."

# Known vulnerabilities of what errands installs. Where the service cannot be reached it says so and succeeds.
audit: $(VENV)/.dev
	$(BIN)/python scripts/audit_dependencies.py

# `make lowest` is `make tests-of-lowest` in a separate environment. pip needs minutes to resolve these versions, uv seconds.
$(VENV)/.lowest: pyproject.toml scripts/dev_requirements.py scripts/lowest_requirements.py | $(BIN)/python
	@echo "Installing the lowest versions into $(VENV) ..."
	@$(BIN)/python scripts/lowest_requirements.py > $(VENV)/lowest.txt
	@$(BIN)/python scripts/dev_requirements.py > $(VENV)/dev-requirements.txt
	@$(INSTALL) uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -c $(VENV)/lowest.txt -e '.[$(EXTRAS)]' \
		-r $(VENV)/dev-requirements.txt
	@touch $@

# The import of every module, the CLI, every engine, gRPC, policies, agents and the other extras.
LOWEST_TESTS = tests/unit/test_packaging.py tests/unit/cli/test_help.py tests/unit/cli/test_reviews.py \
	tests/unit/cli/test_http_connections.py tests/contract/test_commit.py tests/unit/client/test_real_server.py \
	tests/grpc_binding/test_operations.py tests/grpc_binding/test_bounds.py tests/agents/test_policy.py \
	tests/agents/test_mcp.py tests/agents/test_any_llm_answers.py tests/unit/mounts tests/unit/interop tests/auth/test_tokens.py \
	tests/auth/test_schemes.py tests/auth/test_tls.py tests/unit/wire/test_card_signing.py

lowest:
	@$(MAKE) --no-print-directory VENV=.venv-lowest tests-of-lowest

tests-of-lowest: $(VENV)/.lowest
	$(BIN)/python -m pytest -n 2 -q -o filterwarnings=default $(LOWEST_TESTS)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

soak: $(VENV)/.dev
	ERRANDS_SOAK=1 $(BIN)/python -m pytest -q -m "crash or cluster or soak or hypothesis"

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py

conformance: $(VENV)/.dev
	$(BIN)/python conformance/run.py

# The times in the files are those of the last commit, so that building again gives the same bytes.
dist: $(VENV)/.dev
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m hatchling build -d dist

release-check:
	$(PYTHON) scripts/release_check.py $(TAG)

clean:
	rm -rf $(VENV) .venv-lowest site dist .bench .interop .mypy_cache .ruff_cache .pytest_cache .hypothesis
