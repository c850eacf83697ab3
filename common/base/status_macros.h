// RETURN_IF_ERROR and ASSIGN_OR_RETURN for absl::Status, and Annotate to add
// context when an error crosses a room boundary.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace baton {

// The same code and payloads with "context: " in front of the message.
inline absl::Status Annotate(const absl::Status& status,
                             absl::string_view context) {
  if (status.ok()) return status;
  absl::Status out(status.code(),
                   absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload([&out](absl::string_view url, const absl::Cord& value) {
    out.SetPayload(url, value);
  });
  return out;
}

}  // namespace baton

#define RETURN_IF_ERROR(expr)                    \
  do {                                           \
    absl::Status baton_status = (expr);          \
    if (!baton_status.ok()) return baton_status; \
  } while (false)

#define BATON_CONCAT_INNER(a, b) a##b
#define BATON_CONCAT(a, b) BATON_CONCAT_INNER(a, b)
#define BATON_ASSIGN_OR_RETURN(tmp, lhs, expr) \
  auto tmp = (expr);                           \
  if (!tmp.ok()) return tmp.status();          \
  lhs = std::move(tmp).value()
#define ASSIGN_OR_RETURN(lhs, expr) \
  BATON_ASSIGN_OR_RETURN(BATON_CONCAT(baton_statusor_, __LINE__), lhs, expr)
