#include "common/base/log.h"

#include <atomic>
#include <cstdio>
#include <map>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace baton {
namespace {

struct Sink {
  Mutex mu;
  std::string identity BATON_GUARDED_BY(mu) = "baton";
  std::map<std::string, absl::Time> last_bug BATON_GUARDED_BY(mu);
};

Sink& GetSink() {
  static Sink* const sink = new Sink;
  return *sink;
}

// Flag: written at start-up, read everywhere; no other data depends on it.
std::atomic<int> g_level{static_cast<int>(LogLevel::kInfo)};
// Counter.
std::atomic<int64_t> g_bugs{0};
// Set once at start-up.
std::atomic<void (*)(absl::string_view)> g_bug_sink{nullptr};

const char* LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "DEBUG";
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarning:
      return "WARNING";
    case LogLevel::kError:
      return "ERROR";
  }
  return "?";
}

// Values with spaces, quotes or control characters are quoted so that one line
// stays one record.
std::string Quoted(const std::string& value) {
  bool plain = !value.empty();
  for (const char c : value) {
    if (c <= ' ' || c == '"' || c == '=' || c == 0x7f) plain = false;
  }
  return plain ? value : absl::StrCat("\"", absl::CEscape(value), "\"");
}

}  // namespace

void SetLogIdentity(absl::string_view identity) {
  Sink& sink = GetSink();
  MutexLock lock(&sink.mu);
  sink.identity = std::string(identity);
}

void SetLogLevel(LogLevel level) {
  g_level.store(static_cast<int>(level), std::memory_order_relaxed);
}

void Log(LogLevel level, absl::string_view event,
         std::initializer_list<LogField> fields) {
  if (static_cast<int>(level) < g_level.load(std::memory_order_relaxed)) return;
  std::string tail = absl::StrCat(" ", event);
  for (const LogField& f : fields) {
    absl::StrAppend(&tail, " ", f.key, "=", Quoted(f.value));
  }
  const std::string time = absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::Now(),
                                            absl::UTCTimeZone());
  Sink& sink = GetSink();
  MutexLock lock(&sink.mu);
  std::fprintf(stderr, "%s %s %s%s\n", time.c_str(), LevelName(level),
               sink.identity.c_str(), tail.c_str());
}

void ReportBug(absl::string_view site, absl::string_view what) {
  g_bugs.fetch_add(1, std::memory_order_relaxed);
  if (auto* sink = g_bug_sink.load(std::memory_order_acquire)) sink(site);
  {
    Sink& sink = GetSink();
    MutexLock lock(&sink.mu);
    absl::Time& last = sink.last_bug[std::string(site)];
    const absl::Time now = absl::Now();
    if (now - last < absl::Seconds(1)) return;
    last = now;
  }
  LogError("bug", {{"site", site}, {"what", what}});
}

void SetBugSink(void (*sink)(absl::string_view)) {
  g_bug_sink.store(sink, std::memory_order_release);
}

int64_t BugCount() { return g_bugs.load(std::memory_order_relaxed); }

}  // namespace baton
