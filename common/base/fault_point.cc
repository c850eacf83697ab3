#include "common/base/fault_point.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace baton {

FaultRegistry& FaultRegistry::Global() {
  static FaultRegistry* const registry = new FaultRegistry;
  return *registry;
}

void FaultRegistry::Arm(absl::string_view name, Handler handler) {
  MutexLock lock(&mu_);
  entries_[std::string(name)] = Entry{std::move(handler), 0};
}

void FaultRegistry::Disarm(absl::string_view name) {
  MutexLock lock(&mu_);
  entries_.erase(std::string(name));
}

void FaultRegistry::DisarmAll() {
  MutexLock lock(&mu_);
  entries_.clear();
}

int64_t FaultRegistry::hits(absl::string_view name) const {
  MutexLock lock(&mu_);
  const auto it = entries_.find(std::string(name));
  return it == entries_.end() ? 0 : it->second.hits;
}

bool FaultRegistry::Reach(absl::string_view name, absl::string_view detail) {
  Handler handler;
  {
    MutexLock lock(&mu_);
    if (entries_.empty()) return false;
    const auto it = entries_.find(std::string(name));
    if (it == entries_.end()) return false;
    ++it->second.hits;
    handler = it->second.handler;
  }
  return handler(detail);
}

absl::Status FaultRegistry::ArmFromSpec(absl::string_view spec) {
  for (const absl::string_view item :
       absl::StrSplit(spec, ';', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    absl::string_view name = parts.first;
    const absl::string_view action = parts.second;
    auto remaining = std::make_shared<std::atomic<int64_t>>(INT64_MAX);
    if (const size_t star = name.find('*'); star != absl::string_view::npos) {
      int64_t count = 0;
      if (!absl::SimpleAtoi(name.substr(star + 1), &count) || count < 1) {
        return absl::InvalidArgumentError(
            absl::StrCat("fault '", item, "': count after * must be >= 1"));
      }
      remaining->store(count);
      name = name.substr(0, star);
    }
    std::string wanted;
    bool any = true;
    if (const size_t at = name.find('@'); at != absl::string_view::npos) {
      wanted = std::string(name.substr(at + 1));
      any = false;
      name = name.substr(0, at);
    }
    int64_t sleep_ms = 0;
    const bool sleeps = absl::StartsWith(action, "sleep:");
    if (sleeps && !absl::SimpleAtoi(action.substr(6), &sleep_ms)) {
      return absl::InvalidArgumentError(
          absl::StrCat("fault '", item, "': sleep needs milliseconds"));
    }
    const bool kills = action == "kill";
    if (name.empty() || (!sleeps && !kills && action != "fire")) {
      return absl::InvalidArgumentError(
          absl::StrCat("fault '", item,
                       "': expected name[@detail][*count]=fire|sleep:MS|kill"));
    }
    Arm(name, [=](absl::string_view detail) {
      if (!any && detail != wanted) return false;
      if (remaining->fetch_sub(1) <= 0) return false;
      if (sleeps) {
        absl::SleepFor(absl::Milliseconds(sleep_ms));
        return false;
      }
      if (kills) kill(getpid(), SIGKILL);
      return true;
    });
  }
  return absl::OkStatus();
}

namespace {

#ifdef BATON_FAULT_POINTS
// Re-arms whenever the file's text changes. Runs until the process ends: a test
// arms and disarms faults of a running process at the moment it chooses.
void WatchFaultFile(const std::string& path) {
  std::string armed;
  while (true) {
    std::ifstream in(path);
    std::string text((std::istreambuf_iterator<char>(in)),
                     std::istreambuf_iterator<char>());
    if (text != armed) {
      armed = text;
      FaultRegistry::Global().DisarmAll();
      const absl::Status status =
          FaultRegistry::Global().ArmFromSpec(absl::StripAsciiWhitespace(text));
      LogInfo("faults_armed", {{"spec", text}, {"status", status.ToString()}});
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
}
#endif

}  // namespace

absl::Status ArmFaultsFromEnvironment() {
  const char* const spec = std::getenv("BATON_FAULTS");
  const char* const file = std::getenv("BATON_FAULTS_FILE");
#ifdef BATON_FAULT_POINTS
  if (file != nullptr && *file != '\0') {
    std::thread(WatchFaultFile, std::string(file)).detach();
  }
  if (spec == nullptr) return absl::OkStatus();
  return FaultRegistry::Global().ArmFromSpec(spec);
#else
  for (const char* const value : {spec, file}) {
    if (value == nullptr || *value == '\0') continue;
    return absl::FailedPreconditionError(
        "BATON_FAULTS or BATON_FAULTS_FILE is set but this binary was built "
        "without BATON_FAULT_POINTS");
  }
  return absl::OkStatus();
#endif
}

}  // namespace baton
