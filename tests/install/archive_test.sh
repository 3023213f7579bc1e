#!/usr/bin/env bash
# Packs a build, unpacks the archive elsewhere and runs it: every library but glibc must come from the archive.
#   archive_test.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
build=$1
source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cpack --config "$build/CPackConfig.cmake" -B "$work/pack" >/dev/null
mkdir "$work/elsewhere"
tar -xzf "$work"/pack/tessera-*.tar.gz -C "$work/elsewhere"
archive=$(echo "$work"/elsewhere/tessera-*)
du -sh "$archive"

# glibc_only FILE: fails if FILE or anything that it loads comes from outside the archive and is not part of glibc.
glibc='linux-vdso\.so|ld-linux|/lib(c|m|mvec|dl|rt|pthread|util|resolv)\.so'
glibc_only() {
  local resolved foreign
  resolved=$(env -i ldd "$1")
  if grep "not found" <<<"$resolved"; then return 1; fi
  foreign=$(grep -vE "$glibc" <<<"$resolved" | grep -vF "$archive/" || true)
  [[ -z $foreign ]] || { echo "$1 needs libraries of this system: $foreign"; return 1; }
}
glibc_only "$archive/bin/tessera"
glibc_only "$archive/lib/libtessera.so"

env -i "$archive/bin/tessera" info
env -i "$archive/bin/tessera" run --model "$source/tests/fixtures/models/llama3" --prompt "The heron" --max-tokens 8

# The same in a root that holds glibc and the archive and nothing else, where this user may make one.
if [[ $(id -u) == 0 ]] && chroot / true 2>/dev/null; then
  root=$work/root
  mkdir -p "$root/opt" "$root/model"
  env -i ldd "$archive/bin/tessera" | grep -E "$glibc" | grep -oE '/[^ ]+' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
  done
  cp -r "$archive" "$root/opt/tessera"
  cp "$source"/tests/fixtures/models/llama3/* "$root/model/"
  # glibc asks /proc where a program lies; without /proc there it takes LD_ORIGIN_PATH.
  env -i LD_ORIGIN_PATH=/opt/tessera/bin "$(command -v chroot)" "$root" /opt/tessera/bin/tessera run --model /model --prompt "The heron" --max-tokens 8
fi

# The archive also serves find_package.
cmake -G Ninja -S "$source/examples/attention" -B "$work/attention" -D CMAKE_PREFIX_PATH="$archive" \
  -D CMAKE_BUILD_TYPE=Release >/dev/null
cmake --build "$work/attention"
"$work/attention/attention"
echo "the archive works"
