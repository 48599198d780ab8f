#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# layer.sh VERB UPPER LOWER... -- ARGUMENT...: builds one layer over the guest's tree. UPPER gets
# what the build writes; LOWER... are the layers below it, the topmost first.
#
#     dependencies CACHE SOURCES   the virtual environment: what pyproject.toml and Makefile ask for
#     product CACHE SOURCES        the checkout in /usr/src/collectord, `make setup`, `make install`
#     package CACHE                Debian packages of the checkout in its dist: of its version, and of a later one
#     modules SOURCES              the kernel modules of SOURCES, beside their sources
#     tests CACHE SOURCES          the tests of SOURCES, what they have compiled, and the guest's start script
#     image DISK                   no layer: DISK holds the layers
#
# PYTHON is one of this machine's that has pip. Runs in a mount and a PID namespace of its own
# (layers.py), so nothing stays mounted or running whatever ends it.
set -euo pipefail
shopt -s nullglob

verb=$1
upper=$2
shift 2
lowers=()
while [ "$1" != -- ]; do
    lowers+=("$1")
    shift
done
shift

checkout=/usr/src/collectord
here=$(dirname "$0")
# shellcheck source=tests/vm/pip.sh
. "$here/pip.sh"
work=$(mktemp -d "$upper.work.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir "$root" "$work/overlay"

joined() {
    local IFS=:
    echo "$*"
}

merge() {
    mkdir -p "$upper"
    mount -t overlay -o "lowerdir=$(joined "${lowers[@]}"),upperdir=$upper,workdir=$work/overlay" \
        overlay "$root"
    trap 'umount -R -l "$root"; rm -rf "$work"' EXIT
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount --rbind -o ro /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/dev/shm"
    mount -t tmpfs tmpfs "$root/tmp"
    mount -t tmpfs tmpfs "$root/run"
    mount -t tmpfs tmpfs "$root/root"
}

# Settings of this machine's network, pip and compiler. Their caches outlive the build.
with_pip() {
    local cache=$1 name value
    for name in pip ccache; do
        mkdir -p "$root/root/$name" "$cache/$name"
        mount --bind "$cache/$name" "$root/root/$name"
    done
    mount --bind "$(readlink -e /etc/resolv.conf)" "$root/etc/resolv.conf"
    mount --bind /etc/hosts "$root/etc/hosts"
    carry_pip "$root" "$work"
    while IFS= read -r value; do pip+=("$value"); done \
        < <(env | grep -iE '^(https?|no)_proxy=' || true)
}

inside() {
    env -i PATH=/usr/lib/ccache:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        HOME=/root LC_ALL=C.UTF-8 PIP_CACHE_DIR=/root/pip CCACHE_DIR=/root/ccache \
        "${pip[@]}" \
        chroot "$root" /bin/bash -euo pipefail -c "cd $checkout; $*"
}

# DuckDB 2 is compiled for AVX2, which the emulated processor lacks.
of_any_processor() {
    sed -i 's/^duckdb==.*/duckdb<2/' "$root$checkout/constraints.txt"
}

kernel=$(basename "$(echo "${lowers[-1]}"/lib/modules/*)")

case $verb in
dependencies)
    merge
    with_pip "$1"
    mkdir -p "$root$checkout"
    cp -p "$2"/{pyproject.toml,constraints.txt,Makefile} "$root$checkout"
    of_any_processor
    inside make .venv/.stamps/requirements .venv/.stamps/test
    rm "$root$checkout"/{pyproject.toml,constraints.txt,Makefile}
    ;;
product)
    merge
    with_pip "$1"
    cp -a "$2/." "$root$checkout"
    of_any_processor
    chmod 755 "$root$checkout" # the copy is of a temporary folder; tests run the program as others
    rm -r "$root$checkout/tests"
    # the layer below is of this pyproject.toml, however old the file looks
    touch "$root$checkout"/.venv/.stamps/*
    # make asks for headers of the running kernel, which here is another one's
    running=$root/lib/modules/$(uname -r)
    mkdir -p "$running"
    ln -s "/lib/modules/$kernel/build" "$running/build"
    inside make setup
    inside .venv/bin/python -m compileall -q collectord  # an emulated processor takes ten times as long
    inside make install
    rm -r "$running" "$root$checkout/build"
    ;;
package)
    merge
    with_pip "$1"
    inside make deb
    # Only its version differs.
    inside 'dpkg-deb --raw-extract dist/collectord_*.deb build/later
        sed -i "s/^Version: .*/&+later/" build/later/DEBIAN/control
        dpkg-deb -Zgzip --build build/later dist'
    rm -r "$root$checkout/build"
    ;;
modules)
    pip=()
    merge
    for folder in "$1"/*/; do
        name=$(basename "$folder")
        mkdir -p "$root$checkout/tests/vm/modules/$name"
        cp -a "$folder/." "$root$checkout/tests/vm/modules/$name"
        inside make -s -C "/lib/modules/$kernel/build" \
            M="$checkout/tests/vm/modules/$name" KCFLAGS=-Werror modules
    done
    ;;
tests)
    merge
    with_pip "$1"
    cp -a "$2/tests" "$root$checkout"
    rm -r "$root$checkout/tests/vm/modules"
    cp -a "$here/guest" "$root"
    inside .venv/bin/python -m tests.support.compiled_programs
    inside .venv/bin/pytest -q -p no:cacheprovider --collect-only -m vm tests/kernel tests/vm
    ;;
image)
    mount -t overlay -o "ro,lowerdir=$(joined "${lowers[@]}")" overlay "$root"
    trap 'umount -l "$root"; rm -rf "$work"' EXIT
    mke2fs -q -t ext4 -E lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0 -m 0 -L project \
        -d "$root" "$1.partial" 3G
    mv "$1.partial" "$1"
    ;;
esac
