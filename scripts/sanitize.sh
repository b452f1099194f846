#!/usr/bin/env bash
# sanitize.sh asan|tsan [pytest arguments] — build the preset, run the native tests and then the Python tests under it.
# With SANITIZE_ONLY=build it ends once everything is built.
#
# The modules are installed into build/venv-<preset>, which sees the packages of .venv behind its own, so the release build
# in .venv stays what it is. The interpreter is not instrumented: the sanitizer's runtime is preloaded, Python's own
# allocator is switched off, and every process, daemons included, writes what it finds to build/<preset>/reports, which
# has to be empty at the end. Leaks are judged in the native tests, which hold no interpreter.
#
#   SANITIZE_EXCEPT  native tests that are left out, besides those of the preset: HALFSTEP_TESTS_EXCEPT of CMakeLists.txt
#   SANITIZE_RUN     arguments of Python, in place of all tests: "-m tests.torture.client --minutes 10"
#   PYTEST_JOBS      files of Python tests that run at once (default: one a core)
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:?usage: sanitize.sh asan|tsan [pytest arguments]}
shift
venv=build/venv-$preset
reports=$PWD/build/$preset/reports
export PATH="$PWD/.venv/bin:$PATH"

if [[ ! -x $venv/bin/python ]]; then
  .venv/bin/python -m venv --without-pip "$venv"
  .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tools.pth"
fi
CI=1 "$venv/bin/python" -m pip --disable-pip-version-check -qq install --no-build-isolation --no-deps --force-reinstall -e . \
  --config-settings=build-dir="build/$preset" --config-settings=cmake.args=--preset="$preset" \
  --config-settings=cmake.build-type=Debug --config-settings=cmake.define.HALFSTEP_PYTHON=ON \
  ${SANITIZE_EXCEPT:+--config-settings=cmake.define.HALFSTEP_TESTS_EXCEPT="$SANITIZE_EXCEPT"}
[[ -n ${SANITIZE_RUN:-} ]] || cmake --build --preset "$preset"
if [[ ${SANITIZE_ONLY:-} == build ]]; then exit; fi

rm -rf "$reports"
mkdir -p "$reports"
wrapper=()
case $preset in
  asan)
    # This order, because both runtimes export the function that opens a report: with libubsan second, its reports would
    # go to the stderr of whichever process it is, which a test may have captured or thrown away.
    runtime="$(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libasan.so)"
    ;;
  tsan)
    runtime=$(g++ -print-file-name=libtsan.so)
    # Kernels that randomise 32 bits of mmap put memory where older runtimes do not expect it.
    if setarch -R true 2>/dev/null; then wrapper=(setarch -R); fi
    ;;
  *)
    echo "sanitize.sh: unknown preset '$preset': asan or tsan" >&2
    exit 2
    ;;
esac

status=0
if [[ -z ${SANITIZE_RUN:-} ]]; then
  "${wrapper[@]}" ctest --preset "$preset" -j "$(($(nproc) + 1))" --no-tests=error || status=$?
  run=(-m pytest -m "not slow" --timeout 600 -p no:cacheprovider -n "${PYTEST_JOBS:-$(nproc)}" --dist loadfile
    --max-worker-restart 0 "$@")
else
  read -ra run <<<"$SANITIZE_RUN"
fi

# libstdc++ is preloaded too: the interpreter does not link it, and the runtime looks for its throw functions at start.
# torch is left out: it is not instrumented, and its own threads would fill the reports.
env LD_PRELOAD="$runtime $(g++ -print-file-name=libstdc++.so)" PYTHONMALLOC=malloc HALFSTEP_TESTS_WITHOUT=torch \
  ASAN_OPTIONS="detect_leaks=0:verify_asan_link_order=0:log_path=$reports/asan" \
  UBSAN_OPTIONS="print_stacktrace=1:log_path=$reports/ubsan" \
  TSAN_OPTIONS="log_path=$reports/tsan:second_deadlock_stack=1:die_after_fork=0:exitcode=66" \
  "${wrapper[@]}" "$venv/bin/python" "${run[@]}" || status=$?

found=$(find "$reports" -type f -size +0 | wc -l)
if ((found)); then
  find "$reports" -type f -size +0 -exec tail -n +1 {} + | head -n 200
  echo "sanitize.sh: $found $preset reports in $reports" >&2
  status=1
fi
exit "$status"
