#!/usr/bin/env bash
# Checks #include lines against the dependency table of the house: who may
# include whom, and where generated protobuf types may be seen.
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/../..}"

# room -> rooms it may include, besides itself.
declare -A allowed=(
  [kernels]=""
  [common/base]=""
  [common/testing]="common/base"
  [common/config]="common/base"
  [common/metrics]="common/base"
  [common/request]="common/base"
  [common/rpc]="common/base common/request proto"
  [common/tokenizer]="common/base"
  [common/chat]="common/base common/tokenizer"
  [common/checkpoint]="common/base"
  [common/device]="common/base kernels"
  [common/kv]="common/base kernels"
  [common/model]="common/base common/checkpoint common/device common/kv kernels"
  [common/transfer]="common/base common/kv common/request common/rpc proto"
  [common/handoff]="kernels common/base common/kv common/request common/rpc common/transfer proto"
  [common/worker]="common/base common/checkpoint common/config common/device common/handoff common/kv common/metrics common/model common/request common/rpc common/transfer proto"
  [common/cli]="common/base common/checkpoint common/device common/kv common/model common/request common/rpc proto"
  [router]="common/base common/chat common/config common/metrics common/request common/rpc common/tokenizer proto"
  [prefill_worker]="common/base common/config common/handoff common/kv common/metrics common/model common/request common/rpc common/transfer common/worker proto"
  [decode_worker]="common/base common/config common/handoff common/kv common/metrics common/model common/request common/rpc common/tokenizer common/transfer common/worker kernels proto"
)
# Files that may see generated types: the edges.
proto_edges='^(common/(rpc|cli)/|common/transfer/(grpc|link_proto)|common/handoff/ticket_proto|common/worker/registration|router/(frontend|legs|registry)/|(prefill|decode)_worker/service/)'

bad=0
# Sets `room` (no subshell: there are thousands of lines).
room_of() {
  room=${1%%/*}
  if [[ $room == common ]]; then
    room=${1#common/}
    room=common/${room%%/*}
  fi
}
while IFS=: read -r file include; do
  room_of "$file"; from=$room
  case $include in
    baton/v1/*) to=proto ;;
    common/* | kernels/* | router/* | prefill_worker/* | decode_worker/* | \
      tests/*) room_of "$include"; to=$room ;;
    absl/* | grpc*)
      [[ $from == kernels ]] && { echo "$file includes $include"; bad=1; }
      continue ;;
    *) continue ;;
  esac
  if [[ $to == proto && ! $file =~ $proto_edges ]]; then
    echo "$file includes $include: generated types stay at the edges"
    bad=1
  fi
  [[ $to == "$from" ]] && continue
  if [[ -z ${allowed[$from]+x} ]]; then
    echo "$file: room '$from' is not in the table of $0"
    bad=1
  elif [[ " ${allowed[$from]} " != *" $to "* ]]; then
    echo "$file includes $include: '$from' may not depend on '$to'"
    bad=1
  fi
done < <(grep -rnoE '^#include "[^"]+"' --include='*.h' --include='*.cc' \
  --include='*.cu' --include='*.cuh' common kernels router prefill_worker \
  decode_worker | sed -E 's/^([^:]+):[0-9]+:#include "([^"]+)"$/\1:\2/')
exit $bad
