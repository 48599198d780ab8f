#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Fuzz every parser of the core: `fuzz.sh [BUILD_DIR]`. FUZZ_SECONDS (60) for each target, two at
# a time. Inputs that were found go to BUILD_DIR/corpus, those that fail to BUILD_DIR; the kept
# corpus beside this file is read only.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${1:-$here/../../build/fuzz}
mkdir -p "$build"
build=$(cd "$build" && pwd)
seconds=${FUZZ_SECONDS:-60}

cmake -S "$here" -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang -DCOLLECTORD_FUZZ=ON >/dev/null
cmake --build "$build"

run_target() {
    local name=$1
    mkdir -p "$build/corpus/$name"
    if ! "$build/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -max_len=16384 \
        -print_final_stats=1 -artifact_prefix="$build/$name-" \
        "$build/corpus/$name" "$here/corpus/$name" >"$build/$name.log" 2>&1; then
        tail -n 60 "$build/$name.log"
        return 1
    fi
    echo "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log") runs"
}
export -f run_target
export build here seconds
cd "$here"
ls fuzz_*.c | sed 's/\.c$//' |
    xargs -P 2 -I NAME bash -euo pipefail -c 'run_target NAME'
