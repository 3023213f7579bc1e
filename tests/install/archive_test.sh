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

# The archive also serves find_package, and pkg-config.
example=$source/examples/attention
cmake -G Ninja -S "$example" -B "$work/attention" -D CMAKE_PREFIX_PATH="$archive" -D CMAKE_BUILD_TYPE=Release >/dev/null
cmake --build "$work/attention"
"$work/attention/attention"

# And so where the system has glibc and nothing else to link with: the linker, too, looks for the libraries that the archive's
# libraries need. It finds those of this system unless it is shown a root without them.
if command -v dpkg >/dev/null && [[ -n $(dpkg -L libc6-dev 2>/dev/null) ]]; then
  sysroot=$work/sysroot
  # Libraries and what the linker starts programs with, under both names that /lib has.
  dpkg -L libc6 libc6-dev | grep -E '/(lib[^/]*\.(so[.0-9]*|a)|ld-[^/]*|[a-zA-Z]*crt[^/]*\.o)$' | while read -r file; do
    [[ -e $file ]] || continue
    for name in "${file#/usr}" "/usr${file#/usr}"; do
      mkdir -p "$sysroot$(dirname "$name")"
      cp -L "$file" "$sysroot$name"
    done
  done
  cmake -G Ninja -S "$example" -B "$work/elsewhere_build" -D CMAKE_PREFIX_PATH="$archive" -D CMAKE_BUILD_TYPE=Release \
    -D CMAKE_EXE_LINKER_FLAGS="--sysroot=$sysroot" >/dev/null
  cmake --build "$work/elsewhere_build"
  "$work/elsewhere_build/attention"

  export PKG_CONFIG_PATH=$archive/lib/pkgconfig
  # shellcheck disable=SC2046
  ${CXX:-c++} -std=c++20 -c "$example/main.cpp" $(pkg-config --cflags tessera) -o "$work/main.o"
  # shellcheck disable=SC2046
  ${CXX:-c++} --sysroot="$sysroot" "$work/main.o" $(pkg-config --libs tessera) -Wl,-rpath,"$archive/lib" -o "$work/with_pkg_config"
  "$work/with_pkg_config"
  [[ $(pkg-config --modversion tessera) == 0.1.* ]]
fi
echo "the archive works"
