#include "router/frontend/request_parser.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/unknown_field_set.h>

#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/request/request.h"
#include "common/tokenizer/utf8.h"

namespace baton::router::frontend {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

// The schema is at most four messages deep and not recursive.
constexpr int kMaxDepth = 8;

// Path of the first string field in `fields`, read as a `type`, that is not
// valid UTF-8.
std::optional<std::string> InvalidString(const UnknownFieldSet& fields,
                                         const Descriptor* type, int depth) {
  std::map<int, int> seen;
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& field = fields.field(i);
    const FieldDescriptor* const known =
        type->FindFieldByNumber(field.number());
    if (known == nullptr ||
        field.type() != UnknownField::TYPE_LENGTH_DELIMITED) {
      continue;
    }
    std::string path = known->name();
    if (known->is_repeated()) {
      absl::StrAppend(&path, "[", seen[field.number()]++, "]");
    }
    const std::string& bytes = field.length_delimited();
    if (known->type() == FieldDescriptor::TYPE_STRING) {
      if (tokenizer::FirstInvalidUtf8(bytes).has_value()) return path;
    } else if (known->type() == FieldDescriptor::TYPE_MESSAGE &&
               depth < kMaxDepth) {
      UnknownFieldSet inner;
      if (!inner.ParseFromString(bytes)) continue;
      if (const auto found =
              InvalidString(inner, known->message_type(), depth + 1)) {
        return absl::StrCat(path, ".", *found);
      }
    }
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<v1::GenerateRequest> ParseGenerateRequest(
    absl::string_view bytes) {
  // Looked at first: protobuf would also log the failure.
  UnknownFieldSet fields;
  if (!fields.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return request::InvalidField("request", "not a protobuf message");
  }
  if (const auto path = InvalidString(fields, v1::GenerateRequest::descriptor(),
                                      /*depth=*/0)) {
    return request::InvalidField(*path, "not valid UTF-8");
  }
  v1::GenerateRequest out;
  if (!out.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return request::InvalidField("request",
                                 "not a baton.v1.GenerateRequest message");
  }
  return out;
}

}  // namespace baton::router::frontend
