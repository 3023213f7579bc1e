#!/usr/bin/env bash
# Installs what is missing, builds, and lets the demo model write a story.
#   scripts/demo.sh [PROMPT [OPTION OF tessera run]...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

ensure_packages build
build_preset release tessera_cli

prompt=${1:-Once upon a time}
exec build/release/bin/tessera run --model models/demo --prompt "$prompt" --echo --max-tokens 600 --temperature 0.7 \
  --top-p 0.95 --seed 1 "${@:2}"
