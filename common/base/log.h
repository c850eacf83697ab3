// Structured log lines on standard error:
//   2026-11-29T16:30:01.123456Z INFO decode-0 handoff_committed request=...
//   rows=12
// Nothing per token; one line per request at completion. Thread-safe.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace baton {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

struct LogField {
  template <typename T>
  LogField(absl::string_view k, const T& v) : key(k), value(Text(v)) {}

  std::string key;
  std::string value;

 private:
  template <typename T>
  static std::string Text(const T& v) {
    if constexpr (std::is_same_v<T, bool>) {
      return v ? "true" : "false";
    } else {
      return absl::StrCat(v);
    }
  }
};

// Set once in main: who is speaking ("router-0", "decode-1") and what is shown.
void SetLogIdentity(absl::string_view identity);
void SetLogLevel(LogLevel level);

void Log(LogLevel level, absl::string_view event,
         std::initializer_list<LogField> fields = {});

inline void LogInfo(absl::string_view event,
                    std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kInfo, event, fields);
}
inline void LogWarning(absl::string_view event,
                       std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kWarning, event, fields);
}
inline void LogError(absl::string_view event,
                     std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kError, event, fields);
}

// A survivable "should not happen": logs (once a second per site), counts for
// baton_bug_total{site}. The caller then takes the safe path.
void ReportBug(absl::string_view site, absl::string_view what);
// Called on each ReportBug; the metrics room installs the counter. The tests
// install one that fails.
void SetBugSink(void (*sink)(absl::string_view site));
// Bugs reported since the process started.
int64_t BugCount();

}  // namespace baton
