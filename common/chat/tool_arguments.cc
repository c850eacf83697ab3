#include "common/chat/tool_arguments.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton::chat {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxDepth = 100;

// Shortest digits that read back as `value`, laid out as Python's repr does:
// an exponent below 1e-4 and from 1e16 on.
std::string PythonFloat(double value) {
  std::array<char, 64> buffer{};
  const auto result =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                    std::chars_format::scientific);
  const std::string text(buffer.data(), result.ptr);
  const size_t e = text.find('e');
  const bool negative = text[0] == '-';
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits.push_back(c);
  }
  const int exponent = std::atoi(text.c_str() + e + 1);
  const int count = static_cast<int>(digits.size());
  std::string out = negative ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out.push_back(digits[0]);
    if (count > 1) absl::StrAppend(&out, ".", digits.substr(1));
    const int magnitude = std::abs(exponent);
    absl::StrAppend(&out, exponent < 0 ? "e-" : "e+", magnitude < 10 ? "0" : "",
                    magnitude);
  } else if (exponent < 0) {
    absl::StrAppend(&out, "0.",
                    std::string(static_cast<size_t>(-exponent - 1), '0'),
                    digits);
  } else if (count <= exponent + 1) {
    absl::StrAppend(&out, digits,
                    std::string(static_cast<size_t>(exponent + 1 - count), '0'),
                    ".0");
  } else {
    const size_t point = static_cast<size_t>(exponent + 1);
    absl::StrAppend(&out, digits.substr(0, point), ".", digits.substr(point));
  }
  return out;
}

// Builds the value; integers beyond 64 bits are kept as their text in a binary
// value, which JSON text cannot contain otherwise.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Json root;
  bool too_deep = false;

  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(int64_t value) override { return Put(value); }
  bool number_unsigned(uint64_t value) override { return Put(value); }
  bool number_float(double value, const std::string& text) override {
    if (text.find_first_of(".eE") == std::string::npos) {
      return Put(Json::binary(std::vector<uint8_t>(text.begin(), text.end())));
    }
    return Put(value);
  }
  bool string(std::string& value) override { return Put(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool key(std::string& value) override {
    key_ = std::move(value);
    return true;
  }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }
  bool parse_error(size_t, const std::string&,
                   const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  Json* Place(Json value) {
    if (open_.empty()) {
      root = std::move(value);
      return &root;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    Json& member = parent[key_];
    member = std::move(value);
    return &member;
  }
  bool Put(Json value) {
    Place(std::move(value));
    return true;
  }
  // A parent does not move while a child is open: only its last member does.
  bool Open(Json value) {
    if (open_.size() >= kMaxDepth) {
      too_deep = true;
      return false;
    }
    open_.push_back(Place(std::move(value)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  std::vector<Json*> open_;
  std::string key_;
};

void Write(const Json& value, std::string* out) {
  if (value.is_object()) {
    absl::string_view separator = "{";
    for (const auto& [key, member] : value.items()) {
      absl::StrAppend(out, separator, Json(key).dump(), ": ");
      Write(member, out);
      separator = ", ";
    }
    absl::StrAppend(out, value.empty() ? "{}" : "}");
  } else if (value.is_array()) {
    absl::string_view separator = "[";
    for (const Json& element : value) {
      absl::StrAppend(out, separator);
      Write(element, out);
      separator = ", ";
    }
    absl::StrAppend(out, value.empty() ? "[]" : "]");
  } else if (value.is_binary()) {
    const Json::binary_t& digits = value.get_binary();
    out->append(digits.begin(), digits.end());
  } else if (value.is_number_float()) {
    absl::StrAppend(out, PythonFloat(value.get<double>()));
  } else {
    absl::StrAppend(out, value.dump());
  }
}

}  // namespace

absl::StatusOr<std::vector<ToolParameter>> ToolParameters(
    absl::string_view arguments) {
  Builder builder;
  const bool parsed =
      Json::sax_parse(arguments.begin(), arguments.end(), &builder);
  if (builder.too_deep) {
    return absl::InvalidArgumentError(
        absl::StrCat("tool call arguments are nested deeper than ", kMaxDepth));
  }
  if (!parsed || !builder.root.is_object()) {
    return std::vector<ToolParameter>{
        {"arguments", /*is_string=*/true, std::string(arguments)}};
  }
  std::vector<ToolParameter> out;
  for (const auto& [key, value] : builder.root.items()) {
    ToolParameter parameter;
    parameter.name = key;
    parameter.is_string = value.is_string();
    if (parameter.is_string) {
      parameter.value = value.get<std::string>();
    } else {
      Write(value, &parameter.value);
    }
    out.push_back(std::move(parameter));
  }
  return out;
}

}  // namespace baton::chat
