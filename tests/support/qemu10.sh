#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Puts QEMU 10 or later of the backports beside the distribution's, and prints the program's path.
# 7.2 crashes a Linux 6.12 guest that has several processors.
set -euo pipefail

command=qemu-system-$(uname -m)
version=10
suite=@-backports
# shellcheck source=tests/support/peer.sh
. "$(dirname "$0")/peer.sh"

version_of() {
    local major
    major=$("$1" --version | sed -n 's/^QEMU emulator version \([0-9]*\).*/\1/p')
    [ -z "$major" ] || [ "$major" -lt "$version" ] || major=$version
    echo "$major"
}

# All that it depends on and this machine lacks, as apt works it out.
unpack() {
    local own package
    own=$(sed "s/ $suite main\$/ ${suite%-backports} main/" "$work/sources.list")
    echo "$own" >>"$work/sources.list"
    apt-get "${private[@]}" update
    apt-get "${private[@]}" -o Debug::NoLocking=1 -y --no-install-recommends --download-only \
        -t "$suite" install qemu-system-x86
    for package in "$work"/cache/archives/*.deb; do dpkg-deb -x "$package" "$tree"; done
}

wrapper() {
    local libraries
    libraries=$(uname -m)-linux-gnu
    libraries=$1/usr/lib/$libraries:$1/lib/$libraries
    cat <<WRAPPER
#!/bin/sh
LD_LIBRARY_PATH=$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH} \\
exec $1/usr/bin/$command -L $1/usr/share/qemu -L $1/usr/share/seabios "\$@"
WRAPPER
}

print_peer
