# Every target installs what it needs; `make` alone prints the list.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=

INSTALLED := $(VENV)/.installed
INPUTS := pyproject.toml $(wildcard setup.py) $(wildcard requirements/*) $(shell find compression -name '*.[ch]')

.PHONY: help setup check fix test test-browser demo serve bench docs

help: ## Print this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-13s %s\n", $$1, $$2 }'

$(INSTALLED): $(INPUTS)
	@echo "Installing into $(VENV): a few minutes the first time"
	@bash requirements/install.sh $(PYTHON) $(VENV)
	@touch $@

setup: $(INSTALLED) ## Install everything into .venv, and system packages where apt and root are there.
	@bash requirements/system.sh demo test

check: $(INSTALLED) ## Lint, format, types, one-way imports, deployment files, documents.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy examples bench docs
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/house
	@if docker compose version >/dev/null 2>&1; then docker compose config --quiet; fi

fix: $(INSTALLED) ## Mend what ruff can mend.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: $(INSTALLED) ## Run all tests, browser and distributed ones included. ARGS goes to pytest.
	@bash requirements/system.sh demo test
	$(BIN)/pytest $(ARGS)

test-browser: $(INSTALLED) ## Run the tests that drive Chromium.
	@bash requirements/system.sh test
	$(BIN)/pytest -m browser $(ARGS)

demo: $(INSTALLED) ## Train two ranks over a 1 Gbit/s link, live in the browser. ARGS="--steps 120 --exit" ends by itself.
	@bash requirements/system.sh demo
	@$(BIN)/python -m examples.demo $(ARGS)

serve: $(INSTALLED) ## Start the server on this machine. ARGS goes to gradwire-server serve.
	@$(BIN)/gradwire-server serve $(ARGS)

bench: $(INSTALLED) ## Measure the figures of the README.
	@bash requirements/system.sh demo
	@$(BIN)/python -m bench.demo $(ARGS)

docs: $(INSTALLED) ## Write docs/compatibility.md and take the pictures again; check links, commands and code in the documents.
	@bash requirements/system.sh test
	$(BIN)/python -m docs.compatibility
	$(BIN)/python -m docs.screenshots $(ARGS)
	$(BIN)/pytest -q tests/house/test_documents.py
