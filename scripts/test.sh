#!/usr/bin/env bash
# Installs what is missing, builds and runs the tests.
#   scripts/test.sh [STAGE]...     release and install if none is given
# Stages, or `all`:
#   release   g++, optimised: the tests that answer soon
#   install   the install tree and the archive, used from outside
#   long      the rest of the release build's: all cases on the backends that people use, every GPU kernel through its compilers
#   asan      clang++: builds everything, runs the tests with AddressSanitizer and UndefinedBehaviorSanitizer
#   tsan      the tests of threaded code with ThreadSanitizer
#   fuzz      each fuzz target of that build for FUZZ_SECONDS (20) on its corpus
# While a stage's tests run, the next stages are built; what a build says is printed when its stage begins.
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

# What a stage needs; other programs whose code runs on several threads are not in tsan.
threaded=(parallel_test cpu_attention_test attention_conformance_test ops_test engine_test engine_requests_test server_test)
build_stage() {
  case $1 in
    release | install | long)
      local configure_options=("${release_options[@]}")
      build_preset release
      ;;
    tsan) build_preset tsan "${threaded[@]}" ;;
    fuzz) build_preset asan fuzzers ;;
    *) build_preset "$1" ;;
  esac
}

stage_release() {
  local contained=none  # in the stage `long`
  [[ " ${stages[*]} " == *" long "* ]] && contained='^attention_conformance_quick_test$'
  run_ctest release release -LE 'install|long' -E "$contained"
}
stage_install() { run_ctest install release -L install; }
stage_long() { run_ctest long release -L long; }

stage_asan() {
  # What these test is numbers; the conformance suite and other tests run the same code.
  local -x GTEST_FILTER='-*ErrorIsAtMostTwiceThatOfUnfused*:*DrawsFromTheDistribution*:*VeryLargeVocabulary*:*CpuDrawsTheTokens*:*BatchInvariantRowsOfAThousand*:*BatchInvariantRowsDoNotDepend*'
  # Of time it shows nothing, and the conformance suite has the cases of `verify`.
  GTEST_FILTER+=':*TakeTimeInProportion*:*TakeNoLonger*:Verify.PassesOneCaseALine*'
  # Of models on the plain backends, too, whose loops the tests of kernels have run.
  local plain
  for plain in unfused reference; do
    GTEST_FILTER+=":Models/Golden*_$plain:Backends/Demo*/$plain:Backends/PaddedVocabulary*/$plain:Backends/SamplingOfRequests*/$plain:Backends/Schedules*/$plain"
  done
  # libgomp keeps memory for its threads until the process ends.
  local -x LSAN_OPTIONS=suppressions=$ROOT/scripts/lsan.supp:print_suppressions=0
  # All kernels through NVIDIA's compiler, which isn't built here, are the release build's.
  run_ctest asan asan -E '^nvrtc_test$'
}

stage_tsan() {
  # What these test is numbers, and their references take minutes here; other tests run the same code.
  local -x GTEST_FILTER='-*IsAtMostTwice*:*ErrsAtMostTwice*:*ErrAtMostTwice*:*DrawsFromTheDistribution*:*VeryLargeVocabulary*:*CpuDrawsTheTokens*:*AllParametersAndLogits*:*BatchInvariantRowsOfAThousand*:*DecodesWithEveryBlockN*'
  local -x TSAN_OPTIONS=suppressions=$ROOT/scripts/tsan.supp:ignore_noninstrumented_modules=1
  # Of the conformance suite's cases some meet all ways in which threads share work.
  local tests
  tests=$(IFS='|'; echo "${threaded[*]/attention_conformance_test/attention_conformance_quick_test}")
  run_ctest tsan tsan -R "^($tests)\$"
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
  local target name ok=0 bad=0 work=build/asan/fuzz_runs running=()
  for target in build/asan/bin/fuzz_*; do
    while ((${#running[@]} >= $(nproc))); do
      wait "${running[0]}"
      running=("${running[@]:1}")
    done
    run_fuzzer "$target" "$work" &
    running+=($!)
  done
  wait "${running[@]}"
  for target in build/asan/bin/fuzz_*; do
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
[[ ${stages[0]} == all ]] && stages=(release install long asan tsan fuzz)
for stage in "${stages[@]}"; do
  [[ $stage =~ ^(release|install|long|asan|tsan|fuzz)$ ]] || { sed -n '3,13s/^# \?//p' "$ROOT/scripts/test.sh" >&2; exit 2; }
done

# So that all stages take minutes less: gfx1102 and gfx1151 have gfx1100's instructions, attention kernels of f16 are those of
# bf16 but for the names of a few, and kernels without an architecture's instructions have one text, of which PTX and a target
# of each size of waves are enough. Tests compile a few of what is left out.
release_options=()
if [[ " ${stages[*]} " == *" long "* ]]; then
  release_options=(-DTESSERA_HIP_TARGETS="gfx90a;gfx942;gfx1100;gfx1201" -DTESSERA_HIP_COMMON_TARGETS="gfx942;gfx1201"
    -DTESSERA_HIP_AOT_DTYPES="bf16;f32" -DTESSERA_CUDA_AOT_DTYPES="bf16;f32" -DTESSERA_CUDA_AOT_ARCHITECTURES="sm_90a;compute_80")
  # In warps of 64 plain kernels run with AddressSanitizer.
  [[ " ${stages[*]} " == *" asan "* ]] && release_options+=(-DTESSERA_SIMT_WARP_SIZES=32)
fi

if [[ " ${stages[*]} " =~ " asan "|" tsan "|" fuzz "|" long " ]]; then ensure_packages build hip check; else ensure_packages build hip; fi || exit 1

# Builds the stages behind the first in their order, each with its log and then its exit status in build/stages.
logs=build/stages
mkdir -p "$logs"
rm -f "$logs"/*
build_ahead() {
  local stage seconds
  for stage in "${stages[@]:1}"; do
    seconds=$SECONDS
    build_stage "$stage" >"$logs/$stage.log" 2>&1
    echo "$? $((SECONDS - seconds))" >"$logs/$stage.part" && mv "$logs/$stage.part" "$logs/$stage.status"
  done
}

# await_build STAGE: the first stage's build runs in sight, another's is waited for. Sets build_seconds.
builder=
await_build() {
  local status seconds=$SECONDS
  if [[ $1 == "${stages[0]}" ]]; then
    build_stage "$1"
    status=$?
    build_seconds=$((SECONDS - seconds))
    set -m  # a process group of its own, to be ended with all that it started
    build_ahead </dev/null &
    set +m
    builder=$!
    return $status
  fi
  while [[ ! -e $logs/$1.status ]] && kill -0 "$builder" 2>/dev/null; do sleep 0.2; done
  cat "$logs/$1.log"
  read -r status build_seconds <"$logs/$1.status" || status=1
  return "$status"
}
trap '[[ -n $builder ]] && kill -- "-$builder" 2>/dev/null' EXIT
trap 'exit 130' INT TERM

for stage in "${stages[@]}"; do
  echo "==== $stage"
  if await_build "$stage"; then
    started=$SECONDS
    "stage_$stage"
    summaries[-1]+=", built in $build_seconds s, ran for $((SECONDS - started)) s"
  else
    count "$stage build" 0 1
  fi
done

echo "===="
printf '%s\n' "${summaries[@]}"
echo "all of it took $SECONDS s"
echo "$passed passed, $failed failed"
((failed == 0))
