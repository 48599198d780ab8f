# SPDX-License-Identifier: Apache-2.0
# `make help` lists the targets. As root, system packages that are missing are installed with
# apt-get; otherwise the command that would install them is printed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory
.NOTPARALLEL:
.DEFAULT_GOAL := help

VENV := .venv
STAMPS := $(VENV)/.stamps
BIN := $(VENV)/bin
CONFIG ?= config/collectord.toml
FUZZ_SECONDS ?= 600
LANES ?= unit,property,golden,kernel

# What `make install` puts where.
prefix ?= /opt/collectord
bindir ?= /usr/local/bin
libdir ?= /usr/local/lib
sysconfdir ?= /etc
INSTALL_PYTHON ?= /usr/bin/python3

PACKAGES_RUN := python3 python3-dev python3-venv gcc libc6-dev cmake ninja-build libxxhash-dev
PACKAGES_TEST := linux-perf trace-cmd clang
# What compiles BPF programs. The headers of the running kernel if the archive has them.
PACKAGES_BPF := python3-bpfcc
PACKAGES_VM := debootstrap e2fsprogs mount util-linux
NATIVE := $(shell find collectord/_native -type f ! -name '*.pyi' ! -name '*.pyc' ! -name '*.so')
# Changes as soon as there is a module more, or one less, or one elsewhere.
MODULES := $(shell find collectord -name '*.py' | LC_ALL=C sort | cksum | cut -d ' ' -f 1)

# The first Python that has the version, venv and the headers. python3 may be a version manager's.
define find_python
for candidate in "$${PYTHON:-}" python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
    [ -n "$$candidate" ] || continue
    if "$$candidate" -c 'import ensurepip, os, sys, sysconfig, venv; sys.exit(not (
            sys.version_info >= (3, 11)
            and os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))))' \
            2>/dev/null; then
        python=$$candidate
        break
    fi
done
[ -n "$${python:-}" ] || { echo "no Python >= 3.11 with venv and headers; set PYTHON" >&2; exit 1; }
endef

# $(call install_packages,NAMES): installs those of NAMES that dpkg does not have.
define install_packages
command -v dpkg-query >/dev/null || exit 0
missing=()
for package in $(1); do
    status=$$(dpkg-query -W -f '$${Status}' "$$package" 2>/dev/null || true)
    [ "$$status" = "install ok installed" ] || missing+=("$$package")
done
[ $${#missing[@]} -gt 0 ] || exit 0
if [ "$$(id -u)" != 0 ]; then
    echo "missing packages; as root: apt-get install $${missing[*]}" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get -q update
apt-get -q -y -o DPkg::Lock::Timeout=300 --no-install-recommends install "$${missing[@]}"
endef

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

.PHONY: setup
setup: $(STAMPS)/dev $(STAMPS)/run | packages-test packages-bpf ## system packages, .venv, the native core; fast when nothing changed

.PHONY: packages-run
packages-run:
	@$(call install_packages,$(PACKAGES_RUN))

.PHONY: packages-bpf
packages-bpf:
	@command -v dpkg-query >/dev/null || exit 0
	release=$$(uname -r)
	headers=
	if [ ! -d "/lib/modules/$$release/build/include" ]; then
	    headers=linux-headers-$$(dpkg --print-architecture)
	    ! apt-cache show "linux-headers-$$release" &>/dev/null || headers=linux-headers-$$release
	fi
	$(call install_packages,$(PACKAGES_BPF) $$headers)

# libFuzzer and the sanitizers' run-time are in a package that is named by clang's version.
.PHONY: packages-test
packages-test: packages-run
	@$(call install_packages,$(PACKAGES_TEST))

.PHONY: packages-clang
packages-clang: packages-test
	@command -v dpkg-query >/dev/null || exit 0
	clang=$$(dpkg-query -W -f '$${Depends}' clang | sed -n 's/.*clang-\([0-9]*\).*/\1/p')
	$(call install_packages,libclang-rt-$$clang-dev)

# What builds the guest: `python -m tests.vm` asks for it. tests/support/qemu10.sh gets a newer QEMU where the archive's is too old.
.PHONY: packages-vm
packages-vm:
	@command -v dpkg-query >/dev/null || exit 0
	qemu=qemu-system-x86
	version=$$(apt-cache policy $$qemu | sed -n 's/.*Candidate: //p')
	dpkg --compare-versions "$$version" ge 1:10 || qemu=
	$(call install_packages,$(PACKAGES_VM) $$qemu)

$(STAMPS)/venv: | packages-run
	@if ! $(BIN)/python -c '' 2>/dev/null; then
	    $(find_python)
	    rm -rf $(VENV)
	    "$$python" -m venv $(VENV)
	fi
	$(BIN)/python -m pip install -q --upgrade 'pip>=25.1'
	mkdir -p $(STAMPS)
	touch $@

# What the core is built with, and what the program imports.
$(STAMPS)/requirements: pyproject.toml $(STAMPS)/venv
	@$(BIN)/python - >$(STAMPS)/requirements.txt <<-END
	import tomllib
	project = tomllib.load(open("pyproject.toml", "rb"))
	print(*project["build-system"]["requires"], *project["project"]["dependencies"], sep="\n")
	END
	$(BIN)/pip install -q -r $(STAMPS)/requirements.txt
	touch $@

$(STAMPS)/modules-$(MODULES): | $(STAMPS)/venv
	@rm -f $(STAMPS)/modules-*
	touch $@

# Editable: Python modules are read from this tree, by a list of them that the installation makes;
# the core is built again when its sources change.
$(STAMPS)/run: $(STAMPS)/requirements collectord/__init__.py $(NATIVE) $(STAMPS)/modules-$(MODULES)
	@$(BIN)/pip install -q --no-build-isolation --no-deps -e .
	touch $@

$(STAMPS)/dev: $(STAMPS)/venv pyproject.toml
	@$(BIN)/pip install -q --group dev
	touch $@

.PHONY: run
run: $(STAMPS)/run ## the daemon in the foreground with config/collectord.toml; Ctrl-C stops it
	@exec $(BIN)/collectord run --config $(CONFIG)

.PHONY: test
test: setup packages-clang ## every lane but vm; the kernel lane needs root
	@if [ -n '$(PYTEST)' ]; then exec $(BIN)/pytest --lanes=$(LANES) $(PYTEST); fi
	# The native lane wants nothing but time, and the others mostly wait: it runs behind them.
	mkdir -p build
	nice -n 19 $(BIN)/pytest --lanes=native tests/native >build/native.log 2>&1 </dev/null &
	behind=$$!
	trap 'kill $$behind 2>/dev/null || true' EXIT
	status=0 native=0
	rm -rf build/cache
	$(BIN)/pytest --lanes=$(LANES) --ignore=tests/native -o cache_dir=build/cache || status=$$?
	wait $$behind || native=$$?
	cat build/native.log
	if [ $$status = 1 ]; then status=0; $(BIN)/python -m tests.again build/cache || status=$$?; fi
	exit $$((status ? status : native))

.PHONY: test-vm
test-vm: setup ## tests in a virtual machine with Linux 6.12, as root; VM_TESTS= chooses
	@exec $(BIN)/python -m tests.vm -- $(VM_TESTS)

.PHONY: lint
lint: $(STAMPS)/dev $(STAMPS)/run ## ruff, mypy, the order of the packages, dead code and dependencies
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/vulture
	$(BIN)/deptry .
	$(BIN)/mypy

.PHONY: bench
bench: setup ## side by side with perf record; as root, on an idle machine
	@exec $(BIN)/python -m tests.bench $(BENCH)

.PHONY: fuzz
fuzz: setup packages-clang ## libFuzzer on every parser of the core, FUZZ_SECONDS in all (600)
	@cmake -S tests/native -B build/fuzz -G Ninja -DCMAKE_C_COMPILER=clang -DCOLLECTORD_FUZZ=ON
	cmake --build build/fuzz
	mapfile -t targets < <(find build/fuzz -type f -name 'fuzz_*' -perm -u+x)
	[ $${#targets[@]} -gt 0 ] || { echo "no fuzz target was built" >&2; exit 1; }
	for target in "$${targets[@]}"; do
	    corpus=build/fuzz/corpus/$${target##*/}
	    kept=tests/native/corpus/$${target##*/}
	    mkdir -p "$$corpus"
	    "$$target" -max_total_time=$$(($(FUZZ_SECONDS) / $${#targets[@]})) -timeout=10 \
	        -print_final_stats=1 "$$corpus" $$([ ! -d "$$kept" ] || echo "$$kept")
	done

# A service must not depend on an interpreter in somebody's home, so it gets the system's.
.PHONY: install
install: $(STAMPS)/venv ## venv in /opt/collectord, configuration and units; honours DESTDIR
	@root=$(DESTDIR)$(prefix)
	if [ -e "$$root" ] && [ ! -e "$$root/pyvenv.cfg" ]; then
	    echo "$$root exists and is no virtual environment" >&2
	    exit 1
	fi
	rm -rf "$$root"
	$(INSTALL_PYTHON) -m venv --without-pip "$$root"
	env -u DESTDIR $(BIN)/pip --python "$$root/bin/python" install -q --no-compile .  # CMake reads it
	if [ -n "$(DESTDIR)" ]; then
	    grep -rlI --exclude-dir=lib "$(DESTDIR)" "$$root" | xargs -r sed -i "s|$(DESTDIR)||g"
	fi
	"$$root/bin/python" -m compileall -q -s "$(DESTDIR)" "$$root/lib"
	install -d "$(DESTDIR)$(bindir)" "$(DESTDIR)$(sysconfdir)/collectord/collectord.d"
	ln -sfn $(prefix)/bin/collectord "$(DESTDIR)$(bindir)/collectord"
	if [ ! -e "$(DESTDIR)$(sysconfdir)/collectord/collectord.toml" ]; then
	    install -m 644 config/collectord.toml "$(DESTDIR)$(sysconfdir)/collectord/collectord.toml"
	fi
	install -d "$(DESTDIR)$(libdir)"/{systemd/system,sysusers.d,tmpfiles.d}
	sed 's|/opt/collectord|$(prefix)|g' systemd/collectord.service \
	    >"$(DESTDIR)$(libdir)/systemd/system/collectord.service"
	install -m 644 systemd/collectord.sysusers "$(DESTDIR)$(libdir)/sysusers.d/collectord.conf"
	install -m 644 systemd/collectord.tmpfiles "$(DESTDIR)$(libdir)/tmpfiles.d/collectord.conf"
	if [ -z "$(DESTDIR)" ] && [ -d /run/systemd/system ]; then
	    systemd-sysusers collectord.conf
	    systemd-tmpfiles --create collectord.conf
	    systemctl daemon-reload
	    echo "start it: systemctl enable --now collectord"
	fi

.PHONY: clean
clean: ## what was built here
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis tests/bench/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
