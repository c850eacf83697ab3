# Debian 12 packages, and a function that installs what is missing of them.
# Sourced by deploy/quickstart.sh, tests/run.sh and .ci/run.

# shellcheck disable=SC2034  # used by the scripts that source this
BATON_BUILD_PACKAGES=(g++ cmake ninja-build ccache pkg-config
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libabsl-dev prometheus-cpp-dev libcurl4-openssl-dev zlib1g-dev libhwy-dev
  libpcre2-dev nlohmann-json3-dev libcli11-dev libssl-dev)
BATON_TEST_PACKAGES=(libgtest-dev libgmock-dev libbenchmark-dev)
BATON_CHECK_PACKAGES=(clang clang-format python3-pip git)

# baton_install PACKAGE...: apt-get runs only when one is missing.
baton_install() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null |
      grep -qx installed || missing+=("$package")
  done
  ((${#missing[@]} == 0)) && return 0
  echo "installing: ${missing[*]}"
  if ((EUID != 0)); then
    echo "not root: install them yourself (apt-get install ${missing[*]})" >&2
    return 1
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
