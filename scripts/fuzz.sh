#!/usr/bin/env bash
# fuzz.sh [SECONDS] — build every *_fuzz.cc with clang and run each for SECONDS (default 60), as many at once as there are cores.
# With FUZZ_ONLY=build it ends once they are built.
#
# Inputs that reach new code are kept in build/fuzz/corpus/<target> between runs; seeds that are checked in lie in
# tests/corpus/<target>. A crash leaves its input in build/fuzz/found/<target> and fails the run.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
seconds=${1:-60}

clang=$(scripts/setup.sh find-clang)
cmake --preset fuzz -DCMAKE_CXX_COMPILER="$clang" >/dev/null
cmake --build --preset fuzz --target halfstep_fuzzers -j "$(nproc)"
mapfile -t targets < <(find build/fuzz/fuzz -maxdepth 1 -name '*_fuzz' -type f | sort)
if [[ ${FUZZ_ONLY:-} == build ]]; then exit; fi
if ! ((${#targets[@]})); then
  echo "fuzz.sh: no native/*/*_fuzz.cc was built" >&2
  exit 1
fi
echo "fuzz.sh: ${#targets[@]} targets, $seconds s each, $(nproc) at once"

run_one() {
  local target=$1 name corpus found seeds=()
  name=$(basename "$target")
  corpus=build/fuzz/corpus/$name
  found=build/fuzz/found/$name
  mkdir -p "$corpus" "$found"
  if [[ -d tests/corpus/$name ]]; then seeds=("tests/corpus/$name"); fi
  if "$target" -max_total_time="$2" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=256 -print_final_stats=1 \
    -artifact_prefix="$found/" "$corpus" "${seeds[@]}" >"build/fuzz/$name.log" 2>&1; then
    echo "ok     $name: $(sed -n 's/^stat::number_of_executed_units: *//p' "build/fuzz/$name.log") inputs"
  else
    echo "FAILED $name: see build/fuzz/$name.log"
    tail -n 40 "build/fuzz/$name.log"
    return 1
  fi
}
export -f run_one

results=build/fuzz/results
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'run_one {} '"$seconds"' || true' | tee "$results"
passed=$(grep -c '^ok ' "$results" || true)
failed=$((${#targets[@]} - passed))
echo "$passed passed, $failed failed"
((failed == 0))
