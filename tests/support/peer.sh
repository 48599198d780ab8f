# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts that put another version of a tool beside the distribution's. Its packages
# come from another suite of the archive that this machine's apt already uses; nothing is
# installed, and the machine's own package lists stay as they are.
#
# The script sets
#     command, version     the program, and the first two numbers of the version that is wanted
#     suite                where its packages are; @ stands for this machine's own suite
# and defines
#     version_of PROGRAM   prints the first two numbers of its version
#     unpack               in an empty folder, with from_suite and from_here, into $tree
#     wrapper ROOT         prints the script that runs the program from where the tree will be
# and calls print_peer.

cache=${XDG_CACHE_HOME:-$HOME/.cache}/collectord
name=$command-$version
root=$cache/$name
log=$cache/$name.log
self=$(basename "$0")

fail() {
    echo "$self: $*" >&2
    exit 1
}

is_wanted() { [ "$(version_of "$1" 2>/dev/null)" = "$version" ]; }

# from_suite PACKAGE...: unpacks them into the tree; the .deb files stay in the current folder.
from_suite() {
    apt-get "${private[@]}" download "$@"
    for package in "$@"; do dpkg-deb -x "$package"_*.deb "$tree"; done
}

# from_here PACKAGE...: the same from this machine's own suite.
from_here() {
    apt-get "${sandbox[@]}" download "$@"
    for package in "$@"; do dpkg-deb -x "$package"_*.deb "$tree"; done
}

use_suite() {
    local codename site keyring option=
    command -v apt-get >/dev/null || fail "needs apt-get"
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    suite=${suite/@/$codename}
    site=$(apt-get indextargets --format '$(SITE) $(CODENAME) $(ORIGIN)' 'Created-By: Packages' |
        awk -v codename="$codename" '$2 == codename && $3 == "Debian" { print $1; exit }')
    [ -n "$site" ] || fail "apt names no Debian archive for '$codename'; run apt-get update"
    for keyring in /usr/share/keyrings/debian-archive-keyring.{pgp,gpg}; do
        [ -e "$keyring" ] && option="[signed-by=$keyring]" && break
    done
    echo "deb $option $site $suite main" >"$work/sources.list"
    sandbox=()
    # the download user of apt cannot enter root's cache folder
    [ "$(id -u)" != 0 ] || sandbox=(-o "APT::Sandbox::User=root")
    private=(
        "${sandbox[@]}" -o "Dir::State=$work/state" -o "Dir::State::status=/var/lib/dpkg/status"
        -o "Dir::Cache=$work/cache" -o "Dir::Etc::sourcelist=$work/sources.list"
        -o "Dir::Etc::sourceparts=/dev/null"
    )
}

# Prints the path of the program, which is fetched if the machine and the cache lack it.
print_peer() {
    local installed
    installed=$(command -v "$command" || true)
    if [ -n "$installed" ] && is_wanted "$installed"; then
        echo "$installed"
        return
    fi
    mkdir -p "$cache"
    exec 9>"$cache/$name.lock"
    flock 9
    if [ ! -x "$root/bin/$command" ] || ! is_wanted "$root/bin/$command"; then
        fetch_peer
    fi
    echo "$root/bin/$command"
}

fetch_peer() {
    work=$(mktemp -d "$cache/$name.XXXXXX")
    tree=$work/tree
    trap 'status=$?
        rm -rf "$work"
        [ "$status" = 0 ] ||
            echo "$self: no $command from $suite: $(tail -n 1 "$log")" >&2' EXIT
    : >"$log"
    mkdir -p "$work"/state/lists/partial "$work"/cache/archives/partial "$work"/deb "$tree"/bin
    use_suite
    (
        cd "$work/deb"
        apt-get "${private[@]}" update
        unpack
    ) >"$log" 2>&1
    wrapper "$root" >"$tree/bin/$command"
    chmod +x "$tree/bin/$command"
    rm -rf "$root"
    mv "$tree" "$root"
    version_of "$root/bin/$command" >"$log" 2>&1 || true
    is_wanted "$root/bin/$command" || fail "$suite has another $command than $version"
}
