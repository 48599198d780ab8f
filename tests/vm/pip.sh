# SPDX-License-Identifier: Apache-2.0
# Sourced by layer.sh: pip in a chroot as this machine is set up to use it.

# shared ROOT PATH: a file or folder of this machine at the same place below ROOT. What stands there
# is not hidden by a folder: of one with contents only the entries are shared that it lacks.
shared() {
    local root=$1 path=$2 target entry
    # the target that the chroot sees: an absolute link must not lead out
    target=$root$(chroot "$root" realpath -m -- "$path")
    if [ ! -d "$path" ]; then
        mkdir -p "$(dirname "$target")"
        [ -e "$target" ] || : >"$target"
        mount --bind -o ro "$path" "$target"
    elif [ -z "$(ls -A "$target" 2>/dev/null)" ]; then
        mkdir -p "$target"
        mount --bind -o ro "$path" "$target"
    else
        for entry in "$path"/*; do
            [ ! -e "$entry" ] || [ -e "$target/${entry##*/}" ] || shared "$root" "$entry"
        done
    fi
}

# carry_pip ROOT WORK: the files and folders that pip's settings name get below ROOT, and the settings
# into the array `pip`, as NAME=VALUE of the environment. A setting whose file this machine lacks is
# left out, and said. PYTHON is a Python of this machine that has pip.
carry_pip() {
    local root=$1 work=$2 verb word
    "$PYTHON" "$(dirname "${BASH_SOURCE[0]}")/pip_settings.py" >"$work/pip"
    pip=()
    while IFS= read -r -d '' verb && IFS= read -r -d '' word; do
        case $verb in
        set) pip+=("$word") ;;
        carry) shared "$root" "$word" ;;
        told) echo "vm: $word" ;;
        esac
    done <"$work/pip"
}
