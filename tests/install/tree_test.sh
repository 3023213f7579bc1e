#!/usr/bin/env bash
# Installs a build, moves the tree, and builds and runs the examples against it with nothing but find_package(tessera).
#   tree_test.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
build=$1
source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/installed" >/dev/null
mv "$work/installed" "$work/moved"
"$work/moved/bin/tessera" info >/dev/null

# Programs take no library from the folder that they are run in.
mkdir "$work/libraries"
ldd "$work/moved/bin/tessera" | awk '{ print $1 }' | grep '^lib' | sed "s|^|$work/libraries/|" | xargs touch
for program in "$build/bin/tessera" "$work/moved/bin/tessera"; do
  (cd "$work/libraries" && "$program" --version)
done

# What the README links to and speaks of is there.
readme=$work/moved/share/doc/tessera/README.md
grep -oE '\]\([^)#]+' "$readme" | sed 's/^](//' | grep -v '^https\?:' | while read -r target; do
  [[ -e $(dirname "$readme")/$target ]] || { echo "the installed README links to $target, which is not there"; exit 1; }
done
"$work/moved/bin/tessera" run --model "$(dirname "$readme")/models/demo" --prompt "Once" --max-tokens 4 2>/dev/null

strict="-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
for example in attention generate c_attention c_generate c_engine; do
  # The headers must compile under the strictest warnings of someone else's project.
  cmake -G Ninja -S "$source/examples/$example" -B "$work/$example" -D CMAKE_PREFIX_PATH="$work/moved" \
    -D CMAKE_BUILD_TYPE=Release -D CMAKE_CXX_FLAGS="$strict" --no-warn-unused-cli \
    -D CMAKE_C_FLAGS="$strict" >/dev/null
  grep -q "tessera_DIR:PATH=$work/moved/" "$work/$example/CMakeCache.txt"
  cmake --build "$work/$example"
done

# So must a call that names some options and leaves out others.
cat >"$work/options.cpp" <<'EOF'
#include <tessera/attention.h>
#include <tessera/engine.h>
tessera::DiagonalMask diagonal() { return {.window_right = 0}; }
tessera::ScoreTerms scores() { return {.softcap = 20.0f}; }
tessera::ScoreModifier modifier() { return {.visible = "kv_idx <= q_idx", .tensors = {{.name = "doc"}}}; }
tessera::AttentionProblem problem() { return {.batch = 1, .paged_kv = tessera::PagedKv{.page_size = 16}}; }
tessera::AttentionOptions options() { return {.backend = "cpu"}; }
tessera::MergeStatesProblem states() { return {.batch = 1}; }
tessera::ModelOptions model() { return {.backend = "cpu"}; }
tessera::LoadOptions load() { return {.backend = "cpu"}; }
tessera::GenerateOptions generate() { return {.max_tokens = 60, .sampling = {.top_p = 0.95f}}; }
tessera::ChatOptions chat() { return {.add_generation_prompt = false}; }
tessera::EngineOptions engine() { return {.max_batch = 4}; }
tessera::Request request() { return {.max_tokens = 4}; }
tessera::EmbeddingRequest embedding() { return {.prompt = {1, 2}}; }
tessera::AttentionRequest attention() { return {.tokens = {1, 2}}; }
EOF
${CXX:-c++} -std=c++20 $strict -fsyntax-only -I"$work/moved/include" "$work/options.cpp"

"$work/attention/attention"
"$work/c_attention/c_attention"
for generate in generate/generate c_generate/c_generate c_engine/c_engine; do
  "$work/$generate" "$source/tests/fixtures/models/llama3" "The heron"
  if "$work/$generate" /no/such/model x 2>"$work/error"; then exit 1; fi
  grep -q "error: .*/no/such/model" "$work/error"
done

# The next minor version may differ in its interface: asking for it must not find this one.
mkdir "$work/newer"
sed 's/find_package(tessera 0.1 REQUIRED)/find_package(tessera 0.2 REQUIRED)/' "$source/examples/attention/CMakeLists.txt" \
  >"$work/newer/CMakeLists.txt"
if cmake -G Ninja -S "$work/newer" -B "$work/newer/build" -D CMAKE_PREFIX_PATH="$work/moved" >"$work/log" 2>&1; then
  echo "find_package(tessera 0.2) took version 0.1"
  exit 1
fi
grep -q "tesseraConfig.cmake, version: 0.1" "$work/log"
echo "the install tree works"
