// gMock matchers for absl::Status and absl::StatusOr.
//   EXPECT_THAT(Parse("x"), StatusIs(absl::StatusCode::kInvalidArgument,
//                                    HasSubstr("expected a number")));
//   ASSERT_OK(DoIt());   ASSERT_OK_AND_ASSIGN(auto v, Compute());
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status_macros.h"

namespace baton::testing {

inline const absl::Status& GetStatus(const absl::Status& s) { return s; }
template <typename T>
const absl::Status& GetStatus(const absl::StatusOr<T>& s) {
  return s.status();
}

MATCHER(IsOk, negation ? "is not OK" : "is OK") {
  *result_listener << GetStatus(arg).ToString();
  return GetStatus(arg).ok();
}

MATCHER_P(StatusIs, code,
          "has the status code " + absl::StatusCodeToString(code)) {
  *result_listener << GetStatus(arg).ToString();
  return GetStatus(arg).code() == code;
}

MATCHER_P2(StatusIs, code, message_matcher,
           "has the status code " + absl::StatusCodeToString(code) +
               " and a matching message") {
  *result_listener << GetStatus(arg).ToString();
  return GetStatus(arg).code() == code &&
         ::testing::ExplainMatchResult(message_matcher,
                                       std::string(GetStatus(arg).message()),
                                       result_listener);
}

}  // namespace baton::testing

#define EXPECT_OK(expr) EXPECT_THAT(expr, ::baton::testing::IsOk())
#define ASSERT_OK(expr) ASSERT_THAT(expr, ::baton::testing::IsOk())
#define BATON_ASSERT_OK_AND_ASSIGN(tmp, lhs, expr)  \
  auto tmp = (expr);                                \
  ASSERT_TRUE(tmp.ok()) << tmp.status().ToString(); \
  lhs = std::move(tmp).value()
#define ASSERT_OK_AND_ASSIGN(lhs, expr) \
  BATON_ASSERT_OK_AND_ASSIGN(BATON_CONCAT(baton_assert_, __LINE__), lhs, expr)
