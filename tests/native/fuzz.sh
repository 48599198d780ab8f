#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Fuzz every parser of the core: `fuzz.sh [BUILD_DIR]`, two at a time. Each gets as many inputs as
# the file fuzz_counts has it make, and a minute at most, or FUZZ_SECONDS whatever their number. The
# first inputs are those of the corpus that is kept beside this file, which is read only, and those
# that earlier runs left in BUILD_DIR/corpus; inputs that fail go to BUILD_DIR. FUZZ_SEED says which
# inputs: without it the commit does, so that a commit's run can be had again.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${1:-$here/../../build/fuzz}
mkdir -p "$build"
build=$(cd "$build" && pwd)
seconds=${FUZZ_SECONDS:-60}
commit=$(git -C "$here" -c safe.directory='*' rev-parse --short=7 HEAD 2>/dev/null) || commit=1
seed=${FUZZ_SEED:-$((16#$commit))}

cmake -S "$here" -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang -DCOLLECTORD_FUZZ=ON >/dev/null
cmake --build "$build" --target fuzzers
echo "FUZZ_SEED=$seed"

run_target() {
    local name=$1 runs=-1
    if [ -z "${FUZZ_SECONDS:-}" ]; then
        runs=$(sed -n "s/^$name //p" fuzz_counts)
        runs=${runs:-100000}
    fi
    mkdir -p "$build/corpus/$name"
    if ! "$build/$name" -seed="$seed" -runs="$runs" -max_total_time="$seconds" -timeout=10 \
        -rss_limit_mb=1024 -max_len=16384 -print_final_stats=1 -artifact_prefix="$build/$name-" \
        "$build/corpus/$name" "$here/corpus/$name" >"$build/$name.log" 2>&1; then
        tail -n 60 "$build/$name.log"
        return 1
    fi
    echo "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log") runs"
}
export -f run_target
export build here seconds seed
cd "$here"
ls fuzz_*.c | sed 's/\.c$//' |
    xargs -P 2 -I NAME bash -euo pipefail -c 'run_target NAME'
