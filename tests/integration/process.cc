#include "tests/integration/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"

namespace baton::integration {

absl::StatusOr<Process> Process::Start(const ProcessOptions& options) {
  std::vector<std::string> args = {options.binary};
  args.insert(args.end(), options.args.begin(), options.args.end());
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const int log = open(options.log_file.c_str(),
                       O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log < 0) {
    return absl::InternalError(
        absl::StrCat("open ", options.log_file, ": ", std::strerror(errno)));
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    for (const auto& [key, value] : options.env) {
      setenv(key.c_str(), value.c_str(), 1);
    }
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(log);
  if (pid < 0) return absl::InternalError("fork failed");
  return Process(pid);
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), exit_code_(other.exit_code_) {}

Process& Process::operator=(Process&& other) noexcept {
  if (this != &other) {
    Kill();
    pid_ = std::exchange(other.pid_, -1);
    exit_code_ = other.exit_code_;
  }
  return *this;
}

Process::~Process() { Kill(); }

bool Process::running() { return !Wait(absl::ZeroDuration()).ok(); }

void Process::Signal(int number) {
  if (pid_ > 0) kill(pid_, number);
}

absl::StatusOr<int> Process::Wait(absl::Duration timeout) {
  const absl::Time deadline = Clock::Real()->Now() + timeout;
  while (pid_ > 0) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      exit_code_ =
          WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      pid_ = -1;
      break;
    }
    if (Clock::Real()->Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("process ", pid_, " still runs"));
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  return exit_code_;
}

void Process::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  kill(pid_, SIGCONT);
  Wait(absl::Seconds(10)).IgnoreError();  // SIGKILL cannot be refused
}

absl::StatusOr<std::string> WaitForLogField(const std::string& file,
                                            const std::string& event,
                                            const std::string& key,
                                            absl::Duration timeout) {
  const absl::Time deadline = Clock::Real()->Now() + timeout;
  const std::string mark = absl::StrCat(" ", event, " ");
  const std::string field = absl::StrCat(key, "=");
  while (true) {
    std::string found;
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
      if (!absl::StrContains(line, mark)) continue;
      for (const absl::string_view part : absl::StrSplit(line, ' ')) {
        if (absl::StartsWith(part, field)) {
          found = std::string(part.substr(field.size()));
        }
      }
    }
    if (!found.empty()) return found;
    if (Clock::Real()->Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(file, ": no '", event, "' line with ", key, "="));
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
}

}  // namespace baton::integration
