#include "tests/integration/cluster.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "baton/v1/cluster.grpc.pb.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "common/testing/paths.h"

namespace baton::integration {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(30);

bool IsRouter(const Member& member) {
  return absl::StartsWith(member.name, "router");
}

bool ToSocketAddress(const std::string& address, sockaddr_in* out) {
  const std::vector<std::string> parts = absl::StrSplit(address, ':');
  int port = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &port)) return false;
  out->sin_family = AF_INET;
  out->sin_port = htons(static_cast<uint16_t>(port));
  return inet_pton(AF_INET, parts[0].c_str(), &out->sin_addr) == 1;
}

// Bound and not listening: with SO_REUSEADDR on both, a server may bind beside
// it, but the system gives the port to nobody. -1 when the port is taken.
int HoldPort(const std::string& address) {
  sockaddr_in at{};
  if (!ToSocketAddress(address, &at)) return -1;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0) return fd;
  close(fd);
  return -1;
}

}  // namespace

absl::StatusOr<std::string> HttpGet(const std::string& address,
                                    const std::string& path) {
  sockaddr_in to{};
  if (!ToSocketAddress(address, &to))
    return absl::InvalidArgumentError(address);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval timeout{.tv_sec = 5, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  std::string reply;
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) {
    const std::string request = absl::StrCat("GET ", path, " HTTP/1.0\r\n\r\n");
    if (write(fd, request.data(), request.size()) > 0) {
      char buffer[16384];
      for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) {
        reply.append(buffer, static_cast<size_t>(n));
      }
    }
  }
  close(fd);
  const size_t body = reply.find("\r\n\r\n");
  if (body == std::string::npos) {
    return absl::UnavailableError(absl::StrCat("no answer from ", address));
  }
  return reply.substr(body + 4);
}

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Start(
    const ClusterOptions& options) {
  auto cluster = std::unique_ptr<Cluster>(new Cluster);
  std::string folder =
      (std::filesystem::temp_directory_path() / "baton-test-XXXXXX").string();
  CHECK(mkdtemp(folder.data()) != nullptr);
  cluster->folder_ = folder;
  const std::string model = options.model.empty()
                                ? testing::SourcePath("deploy/demo-model")
                                : options.model;
  const auto add = [&](const std::string& role, int32_t index,
                       std::vector<std::string> args,
                       const std::vector<std::string>& extra) {
    auto member = std::make_unique<Member>();
    member->name = absl::StrCat(role, "-", index);
    member->log_file = absl::StrCat(folder, "/", member->name, ".log");
    args.insert(args.end(), extra.begin(), extra.end());
    member->options = {
        .binary = testing::BinaryPath(
            role == "router" ? "baton-router"
                             : absl::StrCat("baton-", role, "-worker")),
        .args = std::move(args),
        .log_file = member->log_file};
    member->fault_file = absl::StrCat(folder, "/", member->name, ".faults");
    member->options.env["BATON_FAULTS_FILE"] = member->fault_file;
    cluster->members_.push_back(std::move(member));
    return cluster->StartMember(cluster->members_.back().get());
  };
  std::vector<std::string> joins;
  for (int32_t i = 0; i < options.routers; ++i) {
    RETURN_IF_ERROR(
        add("router", i,
            {"--model", model, "--listen", "127.0.0.1:0", "--cluster",
             "127.0.0.1:0", "--metrics", "127.0.0.1:0"},
            options.router_args));
    joins.push_back(cluster->members_.back()->cluster);
    cluster->clients_.push_back(
        std::make_unique<cli::Client>(cluster->members_.back()->grpc));
  }
  const std::string routers = absl::StrJoin(joins, ",");
  for (const bool prefill : {true, false}) {
    const std::string role = prefill ? "prefill" : "decode";
    for (int32_t i = 0; i < (prefill ? options.prefill : options.decode); ++i) {
      RETURN_IF_ERROR(
          add(role, i,
              {"--name", absl::StrCat(role, "-", i), "--model", model,
               "--routers", routers, "--listen", "127.0.0.1:0", "--metrics",
               "127.0.0.1:0", "--threads", "1"},
              prefill ? options.prefill_args : options.decode_args));
    }
  }
  for (int32_t i = 0; i < options.routers; ++i) {
    RETURN_IF_ERROR(Annotate(cluster->WaitUntilServing(kStartTimeout, i),
                             absl::StrCat("logs in ", folder)));
  }
  return cluster;
}

Cluster::~Cluster() {
  for (auto it = members_.rbegin(); it != members_.rend(); ++it) {
    if ((*it)->process != nullptr) (*it)->process->Kill();
    for (const int fd : (*it)->held_ports) close(fd);
  }
  if (::testing::Test::HasFailure()) {
    ADD_FAILURE() << "logs kept in " << folder_;
    return;
  }
  std::error_code ignored;  // a left-over folder in /tmp harms nobody
  std::filesystem::remove_all(folder_, ignored);
}

absl::Status Cluster::StartMember(Member* member) {
  ASSIGN_OR_RETURN(Process process, Process::Start(member->options));
  member->process = std::make_unique<Process>(std::move(process));
  const auto field = [&](const std::string& key) {
    return WaitForLogField(member->log_file,
                           IsRouter(*member) ? "router_ready" : "listening",
                           key, kStartTimeout);
  };
  const auto fix = [&](const std::string& flag, const std::string& value) {
    auto& args = member->options.args;
    for (size_t i = 0; i + 1 < args.size(); ++i) {
      if (args[i] == flag) args[i + 1] = value;
    }
  };
  ASSIGN_OR_RETURN(member->grpc, field(IsRouter(*member) ? "listen" : "grpc"));
  ASSIGN_OR_RETURN(member->metrics, field("metrics"));
  fix("--listen", member->grpc);
  fix("--metrics", member->metrics);
  if (IsRouter(*member)) {
    ASSIGN_OR_RETURN(member->cluster, field("cluster"));
    fix("--cluster", member->cluster);
  }
  return absl::OkStatus();
}

Member& Cluster::member(const std::string& name) {
  for (const auto& member : members_) {
    if (member->name == name) return *member;
  }
  CHECK(false) << "no member '" << name << "'";
  return *members_.front();
}

const std::string& Cluster::address(int32_t router) const {
  return members_[static_cast<size_t>(router)]->grpc;
}

absl::Status Cluster::Arm(const std::string& name, const std::string& spec) {
  const Member& m = member(name);
  // Unique, so that the log line of this very change can be waited for.
  static int serial = 0;
  const std::string mark = absl::StrCat("test.serial", ++serial);
  const std::string text =
      absl::StrCat(mark, "=fire", spec.empty() ? "" : ";", spec);
  std::ofstream(m.fault_file) << text;
  const absl::Time deadline = Clock::Real()->Now() + absl::Seconds(5);
  while (Clock::Real()->Now() < deadline) {
    std::ifstream in(m.log_file);
    for (std::string line; std::getline(in, line);) {
      if (absl::StrContains(line, " faults_armed ") &&
          absl::StrContains(line, text)) {
        return absl::StrContains(line, "status=OK")
                   ? absl::OkStatus()
                   : absl::InvalidArgumentError(line);
      }
    }
    absl::SleepFor(absl::Milliseconds(2));
  }
  return absl::DeadlineExceededError(
      absl::StrCat(name, " did not arm '", spec, "'"));
}

void Cluster::Kill(const std::string& name) {
  Member& m = member(name);
  if (m.process != nullptr) m.process->Kill();
  if (!m.held_ports.empty()) return;
  for (const std::string& address : {m.grpc, m.cluster, m.metrics}) {
    const int fd = address.empty() ? -1 : HoldPort(address);
    if (fd >= 0) m.held_ports.push_back(fd);
  }
}

absl::Status Cluster::Restart(const std::string& name) {
  Kill(name);
  Member& m = member(name);
  const absl::Status status = StartMember(&m);
  for (const int fd : m.held_ports) close(fd);
  m.held_ports.clear();
  return status;
}

absl::StatusOr<v1::GetClusterStatusResponse> Cluster::Status(
    int32_t router) const {
  const auto stub = v1::ClusterService::NewStub(
      rpc::CreateChannel(members_[static_cast<size_t>(router)]->cluster));
  grpc::ClientContext context;
  context.set_deadline(rpc::DeadlineIn(absl::Seconds(5)));
  v1::GetClusterStatusResponse response;
  const absl::Status status = rpc::FromGrpc(stub->GetClusterStatus(
      &context, v1::GetClusterStatusRequest(), &response));
  if (!status.ok()) return status;
  return response;
}

absl::Status Cluster::WaitUntilServing(absl::Duration timeout, int32_t router) {
  const absl::Time deadline = Clock::Real()->Now() + timeout;
  std::string missing;
  do {
    missing.clear();
    const auto status = Status(router);
    for (const auto& member : members_) {
      if (IsRouter(*member)) continue;
      if (!member->process->running()) {
        return absl::UnavailableError(
            absl::StrCat(member->name, " ended: see ", member->log_file));
      }
      bool serves = false;
      const auto incarnation = WaitForLogField(
          member->log_file, "listening", "incarnation", absl::ZeroDuration());
      if (status.ok() && incarnation.ok()) {
        for (const v1::WorkerStatus& w : status->workers()) {
          serves |= w.info().name() == member->name &&
                    w.state() == v1::WORKER_STATE_SERVING &&
                    absl::StrCat(w.info().incarnation()) == *incarnation;
        }
      }
      if (!serves) absl::StrAppend(&missing, " ", member->name);
    }
    if (missing.empty()) return absl::OkStatus();
    absl::SleepFor(absl::Milliseconds(20));
  } while (Clock::Real()->Now() < deadline);
  return absl::DeadlineExceededError(absl::StrCat("not serving:", missing));
}

absl::StatusOr<Metrics> Cluster::Scrape(const std::string& name) const {
  std::string address;
  for (const auto& member : members_) {
    if (member->name == name) address = member->metrics;
  }
  ASSIGN_OR_RETURN(const std::string text, HttpGet(address, "/metrics"));
  Metrics out;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    double value = 0;
    if (space != absl::string_view::npos &&
        absl::SimpleAtod(line.substr(space + 1), &value)) {
      out[std::string(line.substr(0, space))] = value;
    }
  }
  return out;
}

double Cluster::Value(const std::string& name,
                      const std::string& series) const {
  const auto metrics = Scrape(name);
  if (!metrics.ok()) return 0;
  const auto it = metrics->find(series);
  return it == metrics->end() ? 0 : it->second;
}

absl::Status Cluster::WaitUntilIdle(absl::Duration timeout) const {
  const absl::Time deadline = Clock::Real()->Now() + timeout;
  std::string busy;
  do {
    busy.clear();
    for (const auto& member : members_) {
      if (IsRouter(*member) || !member->process->running()) continue;
      const auto metrics = Scrape(member->name);
      if (!metrics.ok()) {
        absl::StrAppend(&busy, " ", member->name, "(no scrape)");
        continue;
      }
      for (const char* series :
           {"baton_blocks{state=\"active\"}",
            "baton_blocks{state=\"reserved_idle\"}",
            "baton_slots{state=\"used\"}", "baton_blocks_orphaned"}) {
        const auto it = metrics->find(series);
        if (it == metrics->end() || it->second != 0) {
          absl::StrAppend(&busy, " ", member->name, ":", series, "=",
                          it == metrics->end() ? -1 : it->second);
        }
      }
    }
    if (busy.empty()) return absl::OkStatus();
    absl::SleepFor(absl::Milliseconds(20));
  } while (Clock::Real()->Now() < deadline);
  return absl::DeadlineExceededError(absl::StrCat("not idle:", busy));
}

double Cluster::Bugs() const {
  double sum = 0;
  for (const auto& member : members_) {
    if (!member->process->running()) continue;
    const auto metrics = Scrape(member->name);
    if (!metrics.ok()) continue;
    for (const auto& [series, value] : *metrics) {
      if (absl::StartsWith(series, "baton_bug_total")) sum += value;
    }
  }
  return sum;
}

}  // namespace baton::integration
