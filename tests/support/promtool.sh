#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Prints the path of promtool 2.42, which is Debian 12's, and unpacks it beside the system if it is absent. The
# package has the server as well.
set -euo pipefail

command=promtool
version=2.42
suite=bookworm
# shellcheck source=tests/support/peer.sh
. "$(dirname "$0")/peer.sh"

version_of() { "$1" --version 2>&1 | sed -n 's/^promtool, version \([0-9]*\.[0-9]*\).*/\1/p'; }

unpack() { from_suite prometheus; }

wrapper() {
    cat <<WRAPPER
#!/bin/sh
exec $1/usr/bin/promtool "\$@"
WRAPPER
}

print_peer
