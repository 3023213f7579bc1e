#!/usr/bin/env bash
# The library for other languages exports the functions that the header declares, and nothing else.
#   exports_test.sh LIBRARY HEADER
set -euo pipefail
exported=$(nm -D --defined-only "$1" | awk '{print $3}' | sort)
# Comments aside, a declaration is TESSERA_API … name(…);
declared=$(sed 's|/\*.*\*/||' "$2" | tr '\n' ' ' | grep -oE 'TESSERA_API [^;(]*\(' | grep -oE 'tessera_[a-z0-9_]+ *\($' | tr -d ' (' | sort)
[[ $(wc -l <<<"$declared") -ge 36 ]] || { echo "only $(wc -l <<<"$declared") declarations were found in $2"; exit 1; }
diff <(echo "$declared") <(echo "$exported") || { echo "declared (<) and exported (>) functions differ"; exit 1; }
echo "$(wc -l <<<"$exported") functions"
