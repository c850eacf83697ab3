// A child process of a test: started with a log file, killed with the test.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton::integration {

struct ProcessOptions {
  std::string binary;
  std::vector<std::string> args;
  std::map<std::string, std::string> env;  // added to the test's
  std::string log_file;                    // stdout and stderr, appended
};

// Not thread-safe. The destructor kills (SIGKILL) and reaps.
class Process final {
 public:
  static absl::StatusOr<Process> Start(const ProcessOptions& options);
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();

  pid_t pid() const { return pid_; }
  // False once it ended (it is reaped then).
  bool running();
  void Signal(int number);
  // Exit code, 128 + signal when killed; DEADLINE_EXCEEDED when it goes on.
  absl::StatusOr<int> Wait(absl::Duration timeout);
  void Kill();

 private:
  explicit Process(pid_t pid) : pid_(pid) {}
  pid_t pid_ = -1;
  int exit_code_ = -1;
};

// The value of `key=` in the last line of `file` that has the event `event`
// (see common/base/log.h), waiting for it up to `timeout`.
absl::StatusOr<std::string> WaitForLogField(const std::string& file,
                                            const std::string& event,
                                            const std::string& key,
                                            absl::Duration timeout);

}  // namespace baton::integration
