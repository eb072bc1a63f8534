# `make report` and `make test` do all their own set-up, in .venv. `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# One thing after the other, whatever -j says; only `make test` runs two checks side by side.
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif
MAKEFLAGS += --no-builtin-rules

VENV := .venv
BIN := $(VENV)/bin
# Interpreter for the environment; empty: the first suitable one on PATH.
PYTHON ?=
# File that `make report` writes, and further arguments for it.
OUT ?= table.csv
ARGS ?=
export PYTHON
export PATH := $(CURDIR)/$(BIN):$(PATH)
# The tests start hundreds of programs; each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# What the environment is made of. The Python sources are not: the install is editable.
ENVIRONMENT_INPUTS := pyproject.toml constraints.txt CMakeLists.txt tools/set_up_environment.sh \
	$(shell find csrc/include csrc/bindings -type f)
RUN_READY := $(VENV)/.ready-to-run
TEST_READY := $(VENV)/.ready-to-test
RUN_EXTRAS := ray,data
TEST_EXTRAS := $(RUN_EXTRAS),plot,parquet,dev,docs

# An environment that was made in another folder (a moved or copied checkout) is not this one's.
ifneq ($(file <$(VENV)/.made-for),$(CURDIR))
$(RUN_READY) $(TEST_READY): always-out-of-date
endif
.PHONY: always-out-of-date
always-out-of-date:

# The larger environment serves both uses.
$(RUN_READY): $(ENVIRONMENT_INPUTS)
	@if [[ -e $(TEST_READY) ]]; then extras=$(TEST_EXTRAS); else extras=$(RUN_EXTRAS); fi; \
	tools/set_up_environment.sh "$$extras"
	@touch $@; if [[ -e $(TEST_READY) ]]; then touch $(TEST_READY); fi

$(TEST_READY): $(ENVIRONMENT_INPUTS)
	@tools/set_up_environment.sh $(TEST_EXTRAS)
	@touch $(RUN_READY) $@

##@ The two commands

.PHONY: report
report: $(RUN_READY) ## run the benchmark on all backends; print the table, write table.csv (OUT=..., ARGS=...)
	@$(BIN)/fedbench report --out "$(OUT)" $(ARGS)

# Each of the checks is shown when it has ended. The Python tests, some of which have deadlines,
# get the processors to themselves.
.PHONY: test
test: lint ## everything that must pass before a change lands
	+@$(MAKE) --no-print-directory -j 2 --output-sync=target SIDE_BY_SIDE=1 checks
	+@$(MAKE) --no-print-directory pytest

##@ The parts of make test

.PHONY: checks
checks: kernels types bench-smoke docs ## what make test runs two at a time, before the Python tests

.PHONY: lint
lint: $(TEST_READY) ## ruff, import layers, spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/codespell

.PHONY: types
types: $(TEST_READY) ## mypy --strict, and the stub of the extension against the built module
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest fedbench._core

.PHONY: kernels
kernels: $(TEST_READY) ## C++ unit tests, compiled at -O1, warnings are errors
	$(call cpp_tests,kernels)

.PHONY: docs
docs: docs-translated docs-zh ## build the documentation in both languages, warnings are errors
	$(BIN)/sphinx-build -W -n --keep-going -q -b html docs docs/_build/html

.PHONY: bench-smoke
bench-smoke: $(TEST_READY) ## run every benchmark once, untimed
	$(BIN)/pytest benchmarks --benchmark-disable -q

.PHONY: pytest
pytest: $(TEST_READY) ## Python tests except the slow ones (ARGS=... for pytest)
	$(BIN)/pytest -m "not slow" -p no:benchmark -n 2 --dist loadscope --no-loadscope-reorder $(ARGS)

##@ More

.PHONY: test-full
test-full: test sanitizers ## make test, the slow tests, and the C++ tests optimised and under sanitizers
	$(call cpp_tests,release)
	$(call bench_plain)
	$(BIN)/pytest -m slow

.PHONY: sanitizers
sanitizers: $(TEST_READY) ## C++ tests under AddressSanitizer, UBSan and ThreadSanitizer
	$(call cpp_tests,asan)
	$(call cpp_tests,tsan)

.PHONY: bench
bench: $(TEST_READY) ## pytest-benchmark suites, timed (ARGS=... for pytest)
	$(BIN)/pytest benchmarks $(ARGS)

.PHONY: bench-plain
bench-plain: $(TEST_READY) ## the mean against the plain float64 kernel in C++, timed
	$(call bench_plain)
	build/bench_plain_mean

.PHONY: env
env: $(TEST_READY) ## only make or update the environment, with every extra

.PHONY: docs-en
docs-en: ## build the English documentation, for reading, into docs/_build/html
	$(call docs_environment)
	$(BIN)/sphinx-build -q -b html docs docs/_build/html

.PHONY: docs-figures
docs-figures: $(TEST_READY) ## measure anew; redraw the tables and pictures of the documentation
	$(BIN)/fedbench report --out docs/data/report.json $(ARGS)
	$(BIN)/fedbench report --workload digits-mlp --backend sequential processes --workers 2 \
		--rounds 3 --trace docs/data/trace.json
	$(BIN)/python docs/figures/draw.py

.PHONY: docs-gettext
docs-gettext: $(TEST_READY) ## update the translation catalogs in docs/locales from the English pages
	$(call message_templates)
	$(BIN)/sphinx-intl update -p docs/_build/gettext -d docs/locales -l zh_CN -w 0

.PHONY: docs-zh
docs-zh: ## build the Chinese documentation into docs/_build/zh_CN, warnings are errors
	$(call docs_environment)
	$(BIN)/sphinx-build -W -n --keep-going -q -b html -D language=zh_CN docs docs/_build/zh_CN

.PHONY: docs-translated
docs-translated: $(TEST_READY) ## fail on what is untranslated, fuzzy or out of step
	$(call message_templates)
	$(BIN)/python tools/check_translations.py docs/_build/gettext docs/locales zh_CN

.PHONY: format
format: $(TEST_READY) ## format Python and C++
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	git ls-files 'csrc/*.hpp' 'csrc/*.cpp' | xargs $(BIN)/clang-format -i

.PHONY: clean
clean: ## remove build products; the environment stays (remove .venv by hand)
	rm -rf build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

.PHONY: help
help: ## this text
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@ / {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

# Readers take an environment that can build the documentation as it is, without a rebuild.
define docs_environment
	@if [[ "$$(cat $(VENV)/.made-for 2>/dev/null)" != "$(CURDIR)" ]] || \
		! $(BIN)/python -P -c 'import fedbench._core, furo, latex2mathml, myst_parser' 2>/dev/null; \
	then tools/set_up_environment.sh $(RUN_EXTRAS),docs; fi
endef

# The API reference and the changelog stay English.
define message_templates
	rm -rf docs/_build/gettext
	$(BIN)/sphinx-build -q -b gettext docs docs/_build/gettext
	rm -rf docs/_build/gettext/api docs/_build/gettext/changelog.pot
endef

# Without make's flags: ninja would look for a job server that make keeps from it.
define cpp_tests
	$(BIN)/cmake --preset $(1)
	MAKEFLAGS= $(BIN)/cmake --build --preset $(1)
	$(BIN)/ctest --preset $(1)
endef

# The plain kernel gets every instruction of this machine; the mean chooses its own at run time.
define bench_plain
	mkdir -p build
	$(CXX) -O3 -march=native -ffp-contract=off -std=c++20 -pthread -Wno-maybe-uninitialized \
		-Icsrc/include benchmarks/bench_plain_mean.cpp -o build/bench_plain_mean
endef
