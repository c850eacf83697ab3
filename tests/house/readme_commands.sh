#!/usr/bin/env bash
# Runs the README's first command as it stands there, looks at what it printed
# and at the addresses that it promises, and stops the cluster. (The second
# command, tests/run.sh, is what runs this in CI.)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

command=$(grep -m1 -E '^deploy/quickstart\.sh' README.md)
grep -qx 'tests/run.sh' README.md || { echo "README lacks tests/run.sh"; exit 1; }
[[ -n $command ]] || { echo "README lacks deploy/quickstart.sh"; exit 1; }
trap 'deploy/quickstart.sh --stop' EXIT

output=$(bash -c "$command" 2>&1) || { echo "$output"; exit 1; }
echo "$output"
grep -q 'You have a parrot named Smokey.' <<<"$output" ||
  { echo "the second turn did not remember the first"; exit 1; }
again=$(bash -c "$command" 2>&1) || { echo "$again"; exit 1; }
[[ $(grep -c 'runs already' <<<"$again") == 3 ]] ||
  { echo "a second run did not leave the cluster alone:"; echo "$again"; exit 1; }
for port in 9400 9410 9420; do
  # Bash's own socket: curl is not among the packages.
  exec 3<>"/dev/tcp/127.0.0.1/$port"
  printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
  grep -q '^baton_' <&3 || { echo "no metrics on port $port"; exit 1; }
  exec 3>&-
done
build/release/bin/baton status | grep -q ' serving '
build/release/bin/baton generate --max-tokens 4 "My dog is" >/dev/null
build/release/bin/baton inspect deploy/demo-model >/dev/null
