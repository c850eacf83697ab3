// Reads typed fields of one JSON object and remembers the first problem, so
// that a parser is a list of fields and not a list of ifs.
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace baton::checkpoint {

class FieldReader final {
 public:
  // `json` must outlive the reader; `what` starts every message.
  FieldReader(const nlohmann::json& json, absl::string_view what)
      : json_(json), what_(what) {
    if (!json.is_object()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat(what_, ": expected an object"));
    }
  }

  // The first problem met, or OK.
  const absl::Status& status() const { return status_; }
  bool Has(const char* key) const {
    return json_.is_object() && json_.contains(key) && !json_[key].is_null();
  }
  void Fail(absl::string_view key, absl::string_view problem) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        absl::StrCat(what_, ": '", key, "' ", problem));
  }

  // An integer in [low, high].
  int32_t Int(const char* key, int32_t low, int32_t high) {
    const nlohmann::json* const value = Require(key);
    return value == nullptr ? low : IntOf(key, *value, low, high);
  }
  // A finite number in (low, high], or [low, high] when `low_included`.
  double Number(const char* key, double low, double high,
                bool low_included = false) {
    const nlohmann::json* const value = Require(key);
    if (value == nullptr) return high;
    const std::string range =
        absl::StrCat("expected a number in ", low_included ? "[" : "(", low,
                     ", ", high, "]");
    if (!value->is_number()) {
      Fail(key, absl::StrCat("is ", Short(*value), ", ", range));
      return high;
    }
    const double number = value->get<double>();
    if (!(number > low || (low_included && number == low)) ||
        !(number <= high)) {
      Fail(key, absl::StrCat("is ", Short(*value), ", ", range));
      return high;
    }
    return number;
  }
  // Exactly this boolean or text; an absent key passes unless `required`.
  template <typename T>
  void Expect(const char* key, const T& expected, bool required) {
    if (!required && !Has(key)) return;
    const nlohmann::json* const value = Require(key);
    if (value == nullptr) return;
    if (*value != nlohmann::json(expected)) {
      Fail(key, absl::StrCat("is ", Short(*value), ", expected ",
                             nlohmann::json(expected).dump()));
    }
  }
  // A non-empty list of integers in [low, high]; one integer stands for a list
  // of one when `single_allowed`.
  std::vector<int32_t> Ints(const char* key, int32_t low, int32_t high,
                            bool single_allowed) {
    const nlohmann::json* const value = Require(key);
    if (value == nullptr) return {};
    if (single_allowed && value->is_number()) {
      return {IntOf(key, *value, low, high)};
    }
    if (!value->is_array() || value->empty()) {
      Fail(key, absl::StrCat("is ", Short(*value),
                             ", expected a non-empty list of integers"));
      return {};
    }
    std::vector<int32_t> out;
    for (const nlohmann::json& item : *value) {
      out.push_back(IntOf(key, item, low, high));
    }
    return out;
  }
  const nlohmann::json* Require(const char* key) {
    if (!json_.is_object()) return nullptr;
    if (!Has(key)) {
      Fail(key, "is missing");
      return nullptr;
    }
    return &json_[key];
  }
  // The value as JSON text, cut to a length that fits a message.
  static std::string Short(const nlohmann::json& value) {
    std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
    if (text.size() > 60) text = absl::StrCat(text.substr(0, 57), "...");
    return text;
  }

 private:
  int32_t IntOf(const char* key, const nlohmann::json& value, int32_t low,
                int32_t high) {
    // An unsigned beyond int64 reads as a negative; both are out of range only
    // if checked before the conversion.
    const bool fits =
        value.is_number_integer() &&
        (!value.is_number_unsigned() ||
         value.get<uint64_t>() <= static_cast<uint64_t>(INT32_MAX));
    const int64_t number = fits ? value.get<int64_t>() : 0;
    if (!fits || number < low || number > high) {
      Fail(key, absl::StrCat("is ", Short(value), ", expected an integer in [",
                             low, ", ", high, "]"));
      return low;
    }
    return static_cast<int32_t>(number);
  }

  const nlohmann::json& json_;
  const std::string what_;
  absl::Status status_;
};

}  // namespace baton::checkpoint
