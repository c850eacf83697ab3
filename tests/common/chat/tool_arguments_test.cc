#include "common/chat/tool_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/testing/status_matchers.h"

namespace baton::chat {
namespace {

using ::baton::testing::StatusIs;

std::string Show(absl::string_view arguments) {
  auto parameters = ToolParameters(arguments);
  EXPECT_TRUE(parameters.ok()) << parameters.status();
  std::string out;
  for (const ToolParameter& parameter : *parameters) {
    absl::StrAppend(&out, parameter.name,
                    parameter.is_string ? "=s:" : "=j:", parameter.value, ";");
  }
  return out;
}

// Right-hand sides as Python's json.loads and json.dumps give them.
TEST(ToolArgumentsTest, WritesJsonAsPythonDoes) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"{}", ""},
      {R"({"b":1,"a":2})", "b=j:1;a=j:2;"},
      {R"({"a":1,"b":2,"a":3})", "a=j:3;b=j:2;"},
      {R"({"s":"x\n\"y\" \u4e2d"})", "s=s:x\n\"y\" 中;"},
      {R"({"o":{"k":[1,{"z":null}],"e":{},"l":[]},"t":true})",
       R"(o=j:{"k": [1, {"z": null}], "e": {}, "l": []};t=j:true;)"},
      {R"({"l":["\u00e9\n\u0001\"\\\/\u007f"]})",
       "l=j:[\"é\\n\\u0001\\\"\\\\/\x7f\"];"},
      {R"({"n":[0,-0,-7,9223372036854775807,18446744073709551615]})",
       "n=j:[0, 0, -7, 9223372036854775807, 18446744073709551615];"},
      {R"({"n":123456789012345678901234567890})",
       "n=j:123456789012345678901234567890;"},
      {R"({"f":[1.0,-0.0,0.1,1e5,1e15,123456789012345680.0,1e16,1.5e300]})",
       "f=j:[1.0, -0.0, 0.1, 100000.0, 1000000000000000.0, "
       "1.2345678901234568e+17, 1e+16, 1.5e+300];"},
      {R"({"f":[0.0001,0.00001,1.25e-7,123.456,5e-324]})",
       "f=j:[0.0001, 1e-05, 1.25e-07, 123.456, 5e-324];"},
  };
  for (const auto& [arguments, expected] : rows) {
    EXPECT_EQ(Show(arguments), expected) << arguments;
  }
}

TEST(ToolArgumentsTest, WhatIsNotAnObjectIsOneString) {
  for (const char* text :
       {"", "plain", "[1]", "3", "null", "{\"a\":", "{a:1}", "{} x", "\"s\""}) {
    EXPECT_EQ(Show(text), absl::StrCat("arguments=s:", text, ";"));
  }
}

TEST(ToolArgumentsTest, DepthIsLimited) {
  const auto nested = [](size_t depth) {
    return absl::StrCat("{\"a\":", std::string(depth - 1, '['),
                        std::string(depth - 1, ']'), "}");
  };
  EXPECT_OK(ToolParameters(nested(100)));
  EXPECT_THAT(ToolParameters(nested(101)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ToolParameters(nested(1000000)),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace baton::chat
