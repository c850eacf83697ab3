#include "common/config/units.h"

#include <array>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace baton::config {
namespace {

struct Unit {
  const char* name;
  int64_t bytes;
};
constexpr std::array<Unit, 4> kBinary = {{{"TiB", int64_t{1} << 40},
                                          {"GiB", int64_t{1} << 30},
                                          {"MiB", int64_t{1} << 20},
                                          {"KiB", int64_t{1} << 10}}};
constexpr std::array<Unit, 4> kDecimal = {
    {{"TB", 1000000000000}, {"GB", 1000000000}, {"MB", 1000000}, {"kB", 1000}}};

absl::Status BadEndpoint(absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("endpoint '", text,
                   "': expected host:port or [ipv6]:port with a port in "
                   "0..65535"));
}

bool AllDigits(absl::string_view text) {
  if (text.empty()) return false;
  for (const char c : text) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return false;
  }
  return true;
}

// 0 if there is no such unit.
int64_t BytesOfUnit(absl::string_view name) {
  if (name.empty() || name == "B") return 1;
  for (const auto& units : {kBinary, kDecimal}) {
    for (const Unit& unit : units) {
      if (name == unit.name) return unit.bytes;
    }
  }
  return 0;
}

}  // namespace

absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return BadEndpoint(text);
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port = text.substr(colon + 1);
  const bool bracketed =
      host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || host.find_first_of("[]/ \t\r\n") != host.npos ||
      (!bracketed && host.find(':') != host.npos)) {
    return BadEndpoint(text);
  }
  Endpoint out;
  out.host = std::string(host);
  if (!AllDigits(port) || !absl::SimpleAtoi(port, &out.port) ||
      out.port > 65535) {
    return BadEndpoint(text);
  }
  return out;
}

std::string FormatEndpoint(const Endpoint& endpoint) {
  const bool ipv6 = endpoint.host.find(':') != std::string::npos;
  return absl::StrCat(ipv6 ? "[" : "", endpoint.host, ipv6 ? "]:" : ":",
                      endpoint.port);
}

absl::StatusOr<int64_t> ParseByteSize(absl::string_view text) {
  size_t digits = 0;
  while (digits < text.size() &&
         absl::ascii_isdigit(static_cast<unsigned char>(text[digits]))) {
    ++digits;
  }
  const int64_t unit = BytesOfUnit(text.substr(digits));
  int64_t count = 0;
  if (unit == 0 || digits == 0 ||
      !absl::SimpleAtoi(text.substr(0, digits), &count) ||
      count > std::numeric_limits<int64_t>::max() / unit) {
    return absl::InvalidArgumentError(
        absl::StrCat("byte size '", text,
                     "': expected a whole number with B, KiB, MiB, GiB, TiB, "
                     "kB, MB, GB, TB or no unit, below 2^63"));
  }
  return count * unit;
}

std::string FormatByteSize(int64_t bytes) {
  for (const Unit& unit : kBinary) {
    if (bytes != 0 && bytes % unit.bytes == 0) {
      return absl::StrCat(bytes / unit.bytes, unit.name);
    }
  }
  return absl::StrCat(bytes, "B");
}

absl::StatusOr<absl::Duration> ParseDuration(absl::string_view text) {
  absl::Duration out;
  if (!absl::ParseDuration(text, &out) || out < absl::ZeroDuration() ||
      out == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("duration '", text,
                     "': expected a finite one that is not negative, such as "
                     "250ms, 5s or 1m30s"));
  }
  return out;
}

}  // namespace baton::config
