// Flag values with a form of their own: endpoints, byte sizes, durations. Each
// Parse names the text and what was expected (InvalidArgument); each Format is
// what Parse reads back (absl::FormatDuration for durations). Thread-safe, no
// state.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace baton::config {

struct Endpoint {
  std::string host;  // name or address; IPv6 without brackets
  int32_t port = 0;  // 0..65535; 0: the system chooses one when listening

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

// "host:port" or "[ipv6]:port".
absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text);
std::string FormatEndpoint(const Endpoint& endpoint);

// Digits, then nothing or one of B, KiB, MiB, GiB, TiB (powers of 1024), kB,
// MB, GB, TB (powers of 1000): "64MiB".
absl::StatusOr<int64_t> ParseByteSize(absl::string_view text);
// The largest power of 1024 that divides it: "64MiB", "1000B".
std::string FormatByteSize(int64_t bytes);

// "250ms", "1m30s", "0"; not negative, not infinite.
absl::StatusOr<absl::Duration> ParseDuration(absl::string_view text);

}  // namespace baton::config
