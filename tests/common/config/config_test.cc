#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "common/config/effective_values.h"
#include "common/config/units.h"
#include "common/testing/status_matchers.h"

namespace baton::config {
namespace {

using ::baton::testing::StatusIs;
using ::testing::HasSubstr;

TEST(EndpointTest, ParsesAndPrints) {
  const std::vector<std::pair<std::string, Endpoint>> rows = {
      {"127.0.0.1:50051", {"127.0.0.1", 50051}},
      {"localhost:0", {"localhost", 0}},
      {"worker-1.example:65535", {"worker-1.example", 65535}},
      {"[::1]:9400", {"::1", 9400}},
  };
  for (const auto& [text, endpoint] : rows) {
    ASSERT_OK_AND_ASSIGN(const Endpoint parsed, ParseEndpoint(text));
    EXPECT_EQ(parsed, endpoint) << text;
    EXPECT_EQ(FormatEndpoint(endpoint), text);
  }
}

TEST(EndpointTest, RefusesEverythingElse) {
  for (const char* text :
       {"", ":", "host", "host:", ":80", "host:65536", "host:-1", "host:+1",
        "host:8o", "host: 80", "::1:80", "[]:80", "[::1]", "a/b:80", "a b:80",
        "host:99999999999999999999"}) {
    EXPECT_THAT(ParseEndpoint(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("expected host:port")))
        << text;
  }
}

TEST(ByteSizeTest, ParsesAndPrints) {
  const std::vector<std::pair<std::string, int64_t>> rows = {
      {"0B", 0},
      {"1B", 1},
      {"1023B", 1023},
      {"1KiB", 1024},
      {"64MiB", int64_t{64} << 20},
      {"3GiB", int64_t{3} << 30},
      {"2TiB", int64_t{2} << 40},
      {"9223372036854775807B", std::numeric_limits<int64_t>::max()},
  };
  for (const auto& [text, bytes] : rows) {
    ASSERT_OK_AND_ASSIGN(const int64_t parsed, ParseByteSize(text));
    EXPECT_EQ(parsed, bytes) << text;
    EXPECT_EQ(FormatByteSize(bytes), text);
  }
  ASSERT_OK_AND_ASSIGN(const int64_t plain, ParseByteSize("123"));
  EXPECT_EQ(plain, 123);
  ASSERT_OK_AND_ASSIGN(const int64_t decimal, ParseByteSize("5MB"));
  EXPECT_EQ(decimal, 5000000);
}

TEST(ByteSizeTest, RefusesEverythingElse) {
  for (const char* text : {"", "MiB", "-1", "+1", "1.5GiB", "1 MiB", "1mib",
                           "1KB", "9223372036854775808", "8388608TiB"}) {
    EXPECT_THAT(
        ParseByteSize(text),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("byte size")))
        << text;
  }
}

TEST(DurationTest, ParsesAndPrints) {
  for (const char* text : {"0", "250ms", "5s", "1m30s", "2h0m0s"}) {
    ASSERT_OK_AND_ASSIGN(const absl::Duration parsed, ParseDuration(text));
    ASSERT_OK_AND_ASSIGN(const absl::Duration again,
                         ParseDuration(absl::FormatDuration(parsed)));
    EXPECT_EQ(parsed, again);
  }
  EXPECT_EQ(*ParseDuration("1m30s"), absl::Seconds(90));
  for (const char* text : {"", "5", "-1s", "inf", "s", "5 s"}) {
    EXPECT_THAT(
        ParseDuration(text),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("duration")))
        << text;
  }
}

TEST(EffectiveValuesTest, ShowsValuesInOrderAndQuotesWhatNeedsIt) {
  EffectiveValues values;
  values.Add("listen", FormatEndpoint({"127.0.0.1", 50051}))
      .Add("blocks", 64)
      .Add("colocated", true)
      .Add("name", "a 'b'")
      .Add("empty", "");
  EXPECT_EQ(values.text(),
            "listen=127.0.0.1:50051 blocks=64 colocated=true "
            "name='a \\'b\\'' empty=''");
}

}  // namespace
}  // namespace baton::config
