#!/usr/bin/env bash
# Installs what is missing, builds and runs the tests.
#   scripts/test.sh [STAGE]...     release and install if none is given
# Stages, or `all`:
#   release   g++, optimised: every test but those of `install`
#   install   the install tree and the archive, used from outside
#   asan      the tests with AddressSanitizer and UndefinedBehaviorSanitizer
#   tsan      the tests of threaded code with ThreadSanitizer
#   fuzz      clang++: builds everything, runs each fuzz target for FUZZ_SECONDS (20) on its corpus
# The last line counts tests and fuzz targets: "N passed, N failed". The exit code is 1 if any failed.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh" || exit 1

passed=0
failed=0
summaries=()

# count STAGE PASSED FAILED
count() {
  passed=$((passed + $2))
  failed=$((failed + $3))
  summaries+=("$1: $2 passed, $3 failed")
}

# run_ctest STAGE PRESET CTEST_ARGUMENT...: counts what ctest's summary says.
run_ctest() {
  local stage=$1 preset=$2 log
  shift 2
  log=build/$preset/ctest_${stage// /_}.log
  ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$(nproc)" "$@" </dev/null 2>&1 | tee "$log"
  if [[ $(grep -E 'tests failed out of' "$log") =~ ([0-9]+)\ tests\ failed\ out\ of\ ([0-9]+) ]]; then
    count "$stage" $((BASH_REMATCH[2] - BASH_REMATCH[1])) "${BASH_REMATCH[1]}"
  else
    count "$stage" 0 1  # ctest itself failed
  fi
}

stage_release() { build_preset release && run_ctest release release -LE install || count "release build" 0 1; }
stage_install() { build_preset release && run_ctest install release -L install || count "install build" 0 1; }

# The conformance suite has thousands of cases: under a sanitizer every eighth suffices, the others differ in numbers. Of the
# GPU's kernels on the host, those in warps of 64 do: the same text.
run_sanitized() {
  local stage=$1
  shift
  run_ctest "$stage" "$stage" -E '^(attention_conformance|simt32_ops|simt32_attention)_test$' "$@"
  GTEST_TOTAL_SHARDS=8 GTEST_SHARD_INDEX=0 run_ctest "$stage conformance" "$stage" -R '^attention_conformance_test$'
}

stage_asan() {
  # What that one tests is numbers; the conformance suite runs the same code.
  local -x GTEST_FILTER='-*ErrorIsAtMostTwiceThatOfUnfused*'
  # libgomp keeps memory for its threads until the process ends.
  export LSAN_OPTIONS=suppressions=$ROOT/scripts/lsan.supp:print_suppressions=0
  build_preset asan && run_sanitized asan || count "asan build" 0 1
}

# Programs whose code runs on several threads.
threaded=(parallel_test cpu_attention_test attention_conformance_test ops_test engine_test)

stage_tsan() {
  # What these test is numbers, and their references take minutes here; other tests run the same code.
  local -x GTEST_FILTER='-*IsAtMostTwice*:*ErrsAtMostTwice*:*DrawsFromTheDistribution*:*VeryLargeVocabulary*:*CpuDrawsTheTokens*'
  export TSAN_OPTIONS=suppressions=$ROOT/scripts/tsan.supp:ignore_noninstrumented_modules=1
  build_preset tsan "${threaded[@]}" && run_sanitized tsan -R "^($(IFS='|'; echo "${threaded[*]}"))\$" ||
    count "tsan build" 0 1
}

# run_fuzzer TARGET FOLDER: leaves FOLDER/NAME.passed if the target finds nothing.
run_fuzzer() {
  local name=${1##*/fuzz_} work=$2
  mkdir -p "$work/$name"
  rm -f "$work/$name.passed"
  echo "fuzz_$name, ${FUZZ_SECONDS:-20} s"
  # Inputs that it finds go to the first folder, a crashing one to the artifact prefix.
  "$1" -max_total_time="${FUZZ_SECONDS:-20}" -timeout=30 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
    -artifact_prefix="$work/$name-" "$work/$name" "tests/fuzz/corpus/$name" </dev/null >"$work/$name.log" 2>&1 &&
    touch "$work/$name.passed"
}

stage_fuzz() {
  build_preset fuzz || { count "fuzz build" 0 1; return; }
  local target name ok=0 bad=0 work=build/fuzz/runs
  for target in build/fuzz/bin/fuzz_*; do
    while (($(jobs -rp | wc -l) >= $(nproc))); do wait -n; done
    run_fuzzer "$target" "$work" &
  done
  wait
  for target in build/fuzz/bin/fuzz_*; do
    name=${target##*/fuzz_}
    if [[ -e $work/$name.passed ]]; then
      ok=$((ok + 1))
    else
      cat "$work/$name.log"
      bad=$((bad + 1))
    fi
  done
  count fuzz "$ok" "$bad"
}

stages=("$@")
[[ ${#stages[@]} == 0 ]] && stages=(release install)
[[ ${stages[0]} == all ]] && stages=(release install asan tsan fuzz)
for stage in "${stages[@]}"; do
  [[ $stage =~ ^(release|install|asan|tsan|fuzz)$ ]] || { sed -n '3,10s/^# \?//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
done

if [[ " ${stages[*]} " == *" fuzz "* ]]; then ensure_packages build hip check; else ensure_packages build hip; fi || exit 1
for stage in "${stages[@]}"; do
  echo "==== $stage"
  started=$SECONDS
  "stage_$stage"
  summaries[-1]+=", $((SECONDS - started)) s"
done

echo "===="
printf '%s\n' "${summaries[@]}"
echo "$passed passed, $failed failed"
((failed == 0))
