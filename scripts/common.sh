# Sourced by the scripts beside it: installs what is missing and builds a preset. Sets ROOT and changes there.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"

# Where ccache is installed, it keeps what compilers made, for other checkouts too.
if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER-ccache} CCACHE_BASEDIR=$ROOT
  export CCACHE_SLOPPINESS=pch_defines,time_macros
fi

# ensure_packages PURPOSE...: installs the packages that packages.txt lists for these purposes, if any is missing.
ensure_packages() {
  local name purpose missing=() sudo=()
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "This is no Debian system: the packages in scripts/packages.txt have to be there already." >&2
    return
  fi
  while read -r name purpose; do
    [[ -z $name || $name == \#* || " $* " != *" $purpose "* ]] && continue
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null) == installed ]] || missing+=("$name")
  done <scripts/packages.txt
  ((${#missing[@]})) || return 0
  echo "Installing ${missing[*]}" >&2
  [[ $(id -u) == 0 ]] || sudo=(sudo)
  "${sudo[@]}" apt-get update -q >&2 </dev/null
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >&2 </dev/null
}

# compile_jobs: how many compilers may run at once: one a processor, and 1.5 GiB of free memory for each.
compile_jobs() {
  local jobs free_gib
  jobs=$(nproc)
  free_gib=$(awk '/MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo 2>/dev/null)
  [[ -n $free_gib ]] && ((jobs * 3 / 2 > free_gib)) && jobs=$((free_gib * 2 / 3))
  echo $((jobs < 1 ? 1 : jobs))
}

# build_preset PRESET [TARGET...]: configures a preset once, with configure_options, and builds it, or only the targets.
configure_options=()
build_preset() {
  local preset=$1
  shift
  [[ -f build/$preset/build.ninja ]] || cmake --preset "$preset" "${configure_options[@]}" >&2 || return
  cmake --build --preset "$preset" -j "$(compile_jobs)" ${1:+--target "$@"} >&2
}
