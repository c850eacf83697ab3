#!/usr/bin/env bash
# clang's thread-safety analysis over every file that takes one of our locks.
# usage: thread_safety.sh BUILD_DIR (for the generated protobuf headers)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
grep -rl MutexLock --include='*.cc' common router prefill_worker decode_worker |
  xargs -P "$(nproc)" -n 4 clang++ -std=c++20 -fsyntax-only -Wthread-safety \
    -Werror=thread-safety -DBATON_FAULT_POINTS=1 -I. \
    -isystem "$1/proto/gen"
