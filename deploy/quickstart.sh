#!/usr/bin/env bash
# Builds Baton, starts a router, prefill and decode workers with the demo model
# on the CPU, asks a question over two turns and leaves the cluster running.
# Running it again starts only what does not run.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: deploy/quickstart.sh [options]
  --no-install          do not call apt-get
  --prefill N           prefill workers (default 1)
  --decode M            decode workers (default 1)
  --model DIR           checkpoint (default deploy/demo-model)
  --listen HOST:PORT    public gRPC (default 127.0.0.1:50051)
  --cluster HOST:PORT   where workers register (default 127.0.0.1:50052)
  --metrics-port PORT   router's metrics (default 9400); prefill i: PORT+10+i,
                        decode i: PORT+20+i
  --run-dir DIR         pids, ports and logs (default run/ beside this folder)
  --build-dir DIR       (default build/release beside this folder)
  --stop                stop what runs in the run folder
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/scripts/packages.sh
source "$root/deploy/scripts/packages.sh"
install=1 stop=0 prefill=1 decode=1
model=$root/deploy/demo-model
listen=127.0.0.1:50051 cluster=127.0.0.1:50052 metrics_port=9400
run=$root/run build=$root/build/release

need() { [[ $# -ge 2 ]] || { echo "$1 needs a value" >&2; usage >&2; exit 2; }; }
while (($#)); do
  case $1 in
    --no-install) install=0 ;;
    --stop) stop=1 ;;
    --prefill) need "$@"; prefill=$2; shift ;;
    --decode) need "$@"; decode=$2; shift ;;
    --model) need "$@"; model=$2; shift ;;
    --listen) need "$@"; listen=$2; shift ;;
    --cluster) need "$@"; cluster=$2; shift ;;
    --metrics-port) need "$@"; metrics_port=$2; shift ;;
    --run-dir) need "$@"; run=$2; shift ;;
    --build-dir) need "$@"; build=$2; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown option '$1'" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
for count in "$prefill" "$decode"; do
  [[ $count =~ ^[1-9]$ ]] || {
    echo "--prefill and --decode take 1 to 9, got '$count'" >&2; exit 2; }
done

# The pid of NAME if that process still is one of ours, else nothing.
alive() {
  local pid
  pid=$(cat "$run/$1.pid" 2>/dev/null) || return 0
  [[ $(readlink "/proc/$pid/exe" 2>/dev/null) == */baton-* ]] && echo "$pid"
  return 0
}

# Names of everything that has a pid file here.
names() {
  local file
  for file in "$run"/*.pid; do
    if [[ -e $file ]]; then basename "$file" .pid; fi
  done
}

# stop_these NAME...
stop_these() {
  local name pid pids=()
  for name in "$@"; do
    pid=$(alive "$name")
    if [[ -n $pid ]]; then kill -TERM "$pid"; pids+=("$pid"); fi
  done
  for pid in ${pids[@]+"${pids[@]}"}; do
    for _ in $(seq 400); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -KILL "$pid" 2>/dev/null || true
  done
  for name in "$@"; do rm -f "$run/$name.pid"; done
  echo "stopped ${#pids[@]} processes"
}

# shellcheck disable=SC2046  # names have no spaces
if ((stop)); then stop_these $(names); exit 0; fi

# What runs must be what is asked for: other addresses or another model would
# not reach the processes that run already.
settings="--model $model --listen $listen --cluster $cluster --metrics-port $metrics_port"
for name in $(names); do
  [[ -n $(alive "$name") ]] || continue
  running=$(cat "$run/settings" 2>/dev/null || true)
  if [[ $running != "$settings" ]]; then
    echo "$name runs with $running" >&2
    echo "asked for: $settings; stop it first: deploy/quickstart.sh --stop" >&2
    exit 1
  fi
done

if ((install)); then baton_install "${BATON_BUILD_PACKAGES[@]}"; fi

echo "building in $build"
mkdir -p "$run"
cmake -G Ninja -S "$root" -B "$build" -DBATON_TESTS=OFF >"$run/build.log" 2>&1 &&
  cmake --build "$build" --target baton baton-router baton-prefill-worker \
    baton-decode-worker >>"$run/build.log" 2>&1 || {
  echo "the build failed; last lines of $run/build.log:" >&2
  tail -20 "$run/build.log" >&2
  exit 1
}
bin=$build/bin
echo "$settings" >"$run/settings"
started=()

# start NAME BINARY ARGUMENT...
start() {
  local name=$1 binary=$2
  shift 2
  if [[ -n $(alive "$name") ]]; then
    echo "$name runs already"
    return
  fi
  setsid nohup "$bin/$binary" "$@" </dev/null >"$run/$name.log" 2>&1 &
  echo $! >"$run/$name.pid"
  started+=("$name")
}

host=${listen%:*}
start router baton-router --model "$model" --listen "$listen" \
  --cluster "$cluster" --metrics "$host:$metrics_port"
for ((i = 0; i < prefill; ++i)); do
  start "prefill-$i" baton-prefill-worker --name "prefill-$i" --model "$model" \
    --routers "$cluster" --metrics "$host:$((metrics_port + 10 + i))"
done
for ((i = 0; i < decode; ++i)); do
  start "decode-$i" baton-decode-worker --name "decode-$i" --model "$model" \
    --routers "$cluster" --metrics "$host:$((metrics_port + 20 + i))"
done

fail() {
  local name
  echo "$1" >&2
  for name in $(names); do
    [[ -n $(alive "$name") ]] && continue
    echo "--- $name ended; last lines of $run/$name.log:" >&2
    tail -5 "$run/$name.log" >&2
  done
  # Only what this call started: what ran before goes on.
  stop_these ${started[@]+"${started[@]}"} >&2
  exit 1
}

for ((tries = 0; ; ++tries)); do
  serving=$("$bin/baton" status --cluster "$cluster" 2>/dev/null |
    grep -c ' serving ' || true)
  # A worker that was just started again may still be listed as its dead
  # predecessor: its own log says when the router knows it.
  for name in ${started[@]+"${started[@]}"}; do
    [[ $name == router ]] || grep -q ' registered ' "$run/$name.log" || serving=0
  done
  ((serving >= prefill + decode)) && break
  ((tries < 300)) || fail "the workers did not serve within 60 s"
  for name in $(names); do
    [[ -n $(alive "$name") ]] || fail "$name ended at start"
  done
  sleep 0.2
done

echo
"$bin/baton" chat --address "$listen" --temperature 0 \
  --say "I have a parrot named Smokey." --say "What is my pet called?" ||
  fail "the cluster did not answer"

cat <<TEXT

The cluster runs (folder $run: *.pid, *.log):
  public gRPC    $listen
  workers join   $cluster
  metrics        http://$host:$metrics_port/metrics (router), $((metrics_port + 10))+i (prefill i), $((metrics_port + 20))+i (decode i)
Try:
  $bin/baton chat --address $listen
  $bin/baton generate --address $listen --max-tokens 20 "My dog is"
  $bin/baton status --cluster $cluster
  curl -s http://$host:$metrics_port/metrics
Stop it:
  ${BASH_SOURCE[0]} --stop$([[ $run == "$root/run" ]] || echo " --run-dir $run")
TEXT
