#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Puts perf 6.12 beside the distribution's perf, and prints the path of the program.
# It comes from the backports suite of the archive that this machine's apt already uses;
# nothing is installed, and the machine's own package lists stay as they are.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/collectord
root=$cache/perf-6.12
program=$root/bin/perf
log=$cache/perf-6.12.log

version_of() { "$1" --version 2>/dev/null | sed -n 's/^perf version \([0-9]*\.[0-9]*\).*/\1/p'; }

fail() {
    echo "perf612.sh: $*" >&2
    exit 1
}

system_perf=$(command -v perf || true)
if [ -n "$system_perf" ] && [ "$(version_of "$system_perf")" = 6.12 ]; then
    echo "$system_perf"
    exit 0
fi
mkdir -p "$cache"
exec 9>"$cache/perf-6.12.lock"
flock 9
if [ -x "$program" ] && [ "$(version_of "$program")" = 6.12 ]; then
    echo "$program"
    exit 0
fi

command -v apt-get >/dev/null || fail "needs apt-get"
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
site=$(apt-get indextargets --format '$(SITE) $(CODENAME) $(ORIGIN)' 'Created-By: Packages' |
    awk -v codename="$codename" '$2 == codename && $3 == "Debian" { print $1; exit }')
[ -n "$site" ] || fail "apt names no Debian archive for '$codename'; run apt-get update"

work=$(mktemp -d "$cache/perf-6.12.XXXXXX")
trap 'status=$?
    rm -rf "$work"
    [ "$status" = 0 ] || echo "perf612.sh: no perf from $codename-backports: $(tail -n 1 "$log")" >&2' EXIT
mkdir -p "$work"/state/lists/partial "$work"/cache/archives/partial "$work"/deb "$work"/tree/bin
option=
for keyring in /usr/share/keyrings/debian-archive-keyring.{pgp,gpg}; do
    [ -e "$keyring" ] && option="[signed-by=$keyring]" && break
done
echo "deb $option $site $codename-backports main" >"$work/sources.list"
sandbox=()
# the download user of apt cannot enter root's cache folder
[ "$(id -u)" != 0 ] || sandbox=(-o "APT::Sandbox::User=root")
private=(
    "${sandbox[@]}" -o "Dir::State=$work/state" -o "Dir::State::status=/var/lib/dpkg/status"
    -o "Dir::Cache=$work/cache" -o "Dir::Etc::sourcelist=$work/sources.list"
    -o "Dir::Etc::sourceparts=/dev/null"
)

{
    cd "$work/deb"
    apt-get "${private[@]}" update
    apt-get "${private[@]}" download linux-perf
    dpkg-deb -x linux-perf_*.deb "$work/tree"
    # the distribution's perf brings nearly every library; the few it lacks are unpacked beside
    mapfile -t depends < <(dpkg-deb -f linux-perf_*.deb Depends |
        tr ',' '\n' | sed -n 's/^ *\(lib[^ (|:]*\).*/\1/p')
    for package in "${depends[@]}"; do
        if ! dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$'; then
            apt-get "${sandbox[@]}" download "$package"
            dpkg-deb -x "$package"_*.deb "$work/tree"
        fi
    done
} >"$log" 2>&1

libraries=$root/usr/lib/$(uname -m)-linux-gnu
cat >"$work/tree/bin/perf" <<WRAPPER
#!/bin/sh
LD_LIBRARY_PATH=$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH} \\
PERF_EXEC_PATH=$root/usr/libexec/perf-core \\
exec $root/usr/bin/perf "\$@"
WRAPPER
chmod +x "$work/tree/bin/perf"
rm -rf "$root"
mv "$work/tree" "$root"
"$program" --version >"$log" 2>&1
echo "$program"
