#!/usr/bin/env bash
# Builds with fault points and runs the tests: everything but the label `slow`.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/run.sh [options]
  --no-install       do not call apt-get
  --label NAME       only tests of this label: unit, integration, numeric,
                     fuzz, slow; may be repeated
  --sanitize KIND    address (with undefined) or thread; own build folder
  --repeat N         run each test up to N times until one fails
  --build-dir DIR    (default build/test, build/test-KIND with --sanitize)
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/scripts/packages.sh
source "$root/deploy/scripts/packages.sh"
install=1 labels=() sanitize='' build='' repeat=()
need() { [[ $# -ge 2 ]] || { echo "$1 needs a value" >&2; usage >&2; exit 2; }; }
while (($#)); do
  case $1 in
    --no-install) install=0 ;;
    --label) need "$@"; labels+=("$2"); shift ;;
    --sanitize) need "$@"; sanitize=$2; shift ;;
    --repeat) need "$@"; repeat=(--repeat "until-fail:$2"); shift ;;
    --build-dir) need "$@"; build=$2; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown option '$1'" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

if ((install)); then
  baton_install "${BATON_BUILD_PACKAGES[@]}" "${BATON_TEST_PACKAGES[@]}"
fi
: "${build:=$root/build/test${sanitize:+-$sanitize}}"
cmake -G Ninja -S "$root" -B "$build" -DBATON_FAULT_POINTS=ON \
  -DBATON_SANITIZE="$sanitize" >/dev/null
select=(--label-exclude '^slow$')
targets=()
if ((${#labels[@]})); then
  select=(--label-regex "^($(IFS='|'; echo "${labels[*]}"))\$")
  # Minutes each when instrumented; their parts have tests of their own.
  [[ -z $sanitize ]] || select+=(--label-exclude '^model$')
  # The slow tests are further runs of binaries that have other labels.
  [[ " ${labels[*]} " == *" slow "* ]] || targets=("${labels[@]/#/tests_}")
fi
cmake --build "$build" ${targets[@]+--target "${targets[@]}"}

exec ctest --test-dir "$build" --output-on-failure --parallel "$(nproc)" \
  --no-tests=error "${select[@]}" ${repeat[@]+"${repeat[@]}"}
