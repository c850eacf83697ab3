#!/usr/bin/env bash
# Recall through the public API: 120 chats one at a time, then 16 at a time. The
# float32 model itself misses rows 89, 91, 105 and 111; any other miss fails.
# usage: recall.sh BINARY_DIR SOURCE_DIR
set -euo pipefail
bin=$1/bin source=$2
run=$(mktemp -d)
pids=()
finish() {
  for pid in ${pids[@]+"${pids[@]}"}; do kill "$pid" 2>/dev/null || true; done
  wait
  rm -rf "$run"
}
trap finish EXIT

# The value of KEY= in FILE's line with EVENT, once it is there.
field() {
  local value
  for _ in $(seq 300); do
    value=$(sed -n "s/.* $2 .*$3=\([^ ]*\).*/\1/p" "$1" | tail -1)
    if [[ -n $value ]]; then echo "$value"; return; fi
    sleep 0.1
  done
  echo "$1: no '$2' line with $3=" >&2
  return 1
}

model=$source/deploy/demo-model
"$bin/baton-router" --model "$model" --listen 127.0.0.1:0 \
  --cluster 127.0.0.1:0 --metrics 127.0.0.1:0 2>"$run/router.log" &
pids+=($!)
listen=$(field "$run/router.log" router_ready listen)
cluster=$(field "$run/router.log" router_ready cluster)
for role in prefill decode; do
  "$bin/baton-$role-worker" --name "$role-0" --model "$model" \
    --routers "$cluster" --metrics 127.0.0.1:0 2>"$run/$role.log" &
  pids+=($!)
done
field "$run/router.log" health serving >/dev/null
"$bin/baton" audit recall "$source/tests/data/oracle/recall-dev.json" \
  --address "$listen" --concurrency 1,16 --expect-misses 89,91,105,111
