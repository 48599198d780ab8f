#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Puts perf 6.12 of the backports beside the distribution's perf, and prints the program's path.
set -euo pipefail

command=perf
version=6.12
suite=@-backports
# shellcheck source=tests/support/peer.sh
. "$(dirname "$0")/peer.sh"

version_of() { "$1" --version | sed -n 's/^perf version \([0-9]*\.[0-9]*\).*/\1/p'; }

unpack() {
    local package depends
    from_suite linux-perf
    # the distribution's perf brings nearly every library; the few it lacks are unpacked beside
    mapfile -t depends < <(dpkg-deb -f linux-perf_*.deb Depends |
        tr ',' '\n' | sed -n 's/^ *\(lib[^ (|:]*\).*/\1/p')
    for package in "${depends[@]}"; do
        if ! dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$'; then
            from_here "$package"
        fi
    done
}

wrapper() {
    local libraries
    libraries=$1/usr/lib/$(uname -m)-linux-gnu
    cat <<WRAPPER
#!/bin/sh
LD_LIBRARY_PATH=$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH} \\
PERF_EXEC_PATH=$1/usr/libexec/perf-core \\
exec $1/usr/bin/perf "\$@"
WRAPPER
}

print_peer
