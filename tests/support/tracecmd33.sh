#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Puts trace-cmd 3.3 of Debian 13 beside the distribution's, and prints the program's path. It is
# newer than Debian 12's C library, so it comes with its own, loader included.
set -euo pipefail

command=trace-cmd
version=3.3
suite=trixie
# shellcheck source=tests/support/peer.sh
. "$(dirname "$0")/peer.sh"

version_of() { "$1" version | sed -n 's/^trace-cmd version \([0-9]*\.[0-9]*\).*/\1/p'; }

unpack() {
    from_suite trace-cmd libtraceevent1 libtraceevent1-plugin libtracefs1 libzstd1 zlib1g libc6
}

wrapper() {
    local libraries loader
    libraries=usr/lib/$(uname -m)-linux-gnu
    loader=$(basename "$tree/$libraries"/ld-linux-*.so.*)
    cat <<WRAPPER
#!/bin/sh
TRACEEVENT_PLUGIN_DIR=$1/$libraries/traceevent/plugins \\
exec $1/$libraries/$loader --library-path $1/$libraries $1/usr/bin/trace-cmd "\$@"
WRAPPER
}

print_peer
