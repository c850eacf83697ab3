// A client that stops reading a long stream: cut after --slow-reader-timeout,
// with bounded memory meanwhile, and nobody else notices.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "common/testing/status_matchers.h"
#include "tests/integration/cluster.h"

namespace baton::integration {
namespace {

constexpr int32_t kSamples = 8;
constexpr int32_t kSlowOutput = 2000;
constexpr absl::Duration kTimeout = absl::Seconds(2);

v1::GenerateRequest Request(int32_t kind, int32_t max_tokens) {
  v1::GenerateRequest request;
  for (int32_t i = 0; i < 40 + 30 * kind; ++i) {
    request.mutable_token_ids()->add_ids(300 + (i * (3 + kind)) % 1500);
  }
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_ignore_eos(true);
  request.set_return_token_ids(true);
  return request;
}

absl::StatusOr<std::vector<int32_t>> Ask(const Cluster& cluster, int32_t kind) {
  std::vector<int32_t> ids;
  const absl::Status status = cluster.client().Generate(
      Request(kind, 20), absl::Seconds(30),
      [&ids](const v1::GenerateResponse& event) {
        const auto& some = event.delta().token_ids();
        ids.insert(ids.end(), some.begin(), some.end());
        return true;
      });
  if (!status.ok()) return status;
  return ids;
}

int64_t ResidentBytes(const Process& process) {
  std::ifstream file(absl::StrCat("/proc/", process.pid(), "/status"));
  for (std::string word; file >> word;) {
    int64_t kib = 0;
    if (word == "VmRSS:" && file >> kib) return kib * 1024;
  }
  ADD_FAILURE() << "no VmRSS of " << process.pid();
  return 0;
}

bool WaitFor(const std::function<bool()>& condition, absl::Duration timeout) {
  const absl::Time end = Clock::Real()->Now() + timeout;
  while (!condition()) {
    if (Clock::Real()->Now() >= end) return false;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return true;
}

TEST(SlowReader, IsCutAndNobodyElseNotices) {
  auto started = Cluster::Start(
      {.router_args = {"--slow-reader-timeout",
                       absl::StrCat(absl::ToInt64Seconds(kTimeout))},
       // Touches all pages at the start: resident memory is then what is
       // buffered, not what sequences use.
       .decode_args = {"--poison-free-pages"}});
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  Cluster& cluster = **started;
  std::vector<std::vector<int32_t>> golden;
  for (int32_t kind = 0; kind < 3; ++kind) {
    ASSERT_OK_AND_ASSIGN(auto ids, Ask(cluster, kind));
    ASSERT_EQ(ids.size(), 20U);
    golden.push_back(std::move(ids));
  }

  // Log-probabilities make the events large: flow control stops the router
  // after some hundred tokens of 16,000.
  v1::GenerateRequest slow = Request(1, kSlowOutput);
  slow.mutable_sampling()->set_temperature(1);
  slow.mutable_sampling()->set_n(kSamples);
  slow.set_logprobs(20);
  // A window of 64 KiB that does not grow, so that not reading shows at once.
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65'535);
  const auto stub = v1::InferenceService::NewStub(grpc::CreateCustomChannel(
      cluster.address(), grpc::InsecureChannelCredentials(), args));
  grpc::ClientContext context;
  context.set_deadline(rpc::DeadlineIn(absl::Seconds(120)));
  const auto reader = stub->Generate(&context, slow);
  int64_t tokens = 0;
  v1::GenerateResponse event;
  while (tokens < 3 * kSamples) {
    ASSERT_TRUE(reader->Read(&event));
    tokens += event.delta().token_ids_size();
  }
  // Not read from here on.
  const absl::Time stopped = Clock::Real()->Now();
  std::map<std::string, int64_t> before;
  std::map<std::string, int64_t> most;
  for (const char* name : {"router-0", "decode-0"}) {
    before[name] = ResidentBytes(*cluster.member(name).process);
  }

  std::atomic<bool> over{false};
  Mutex mu;
  std::vector<absl::Duration> latencies;
  std::vector<std::string> wrong;
  std::vector<Thread> others;
  for (int32_t kind = 0; kind < 3; ++kind) {
    others.emplace_back("other", [&, kind] {
      while (!over.load()) {
        const absl::Time begin = Clock::Real()->Now();
        const auto ids = Ask(cluster, kind);
        MutexLock lock(&mu);
        latencies.push_back(Clock::Real()->Now() - begin);
        if (!ids.ok()) {
          wrong.push_back(ids.status().ToString());
        } else if (*ids != golden[static_cast<size_t>(kind)]) {
          wrong.push_back("other tokens than without the slow reader");
        }
      }
    });
  }
  EXPECT_TRUE(WaitFor(
      [&] {
        for (auto& [name, bytes] : before) {
          most[name] = std::max(most[name],
                                ResidentBytes(*cluster.member(name).process));
        }
        return cluster.Value("router-0",
                             "baton_requests_total{outcome=\"slow_reader\"}") ==
               1;
      },
      absl::Seconds(30)))
      << "never cut";
  const absl::Duration took = Clock::Real()->Now() - stopped;
  over.store(true);
  others.clear();

  EXPECT_TRUE(wrong.empty()) << wrong.size() << " such as " << wrong.front();
  ASSERT_FALSE(latencies.empty());
  std::sort(latencies.begin(), latencies.end());
  // A step loop or a router that waited for the reader would hold them until
  // the cut. The median, because the machine is shared.
  EXPECT_LT(latencies[latencies.size() / 2], kTimeout / 2);
  EXPECT_GE(took, kTimeout);
  for (const auto& [name, bytes] : before) {
    // Flow-control windows, ids, and what three other clients need. The whole
    // stream has 6 MiB (370 bytes a token).
    EXPECT_LT(most[name] - bytes, int64_t{4} << 20) << name;
    std::printf("%s: %+.1f MiB while it was not read\n", name.c_str(),
                static_cast<double>(most[name] - bytes) / (1 << 20));
  }
  std::printf("cut after %.2f s; %zu others, median %.0f ms, worst %.0f ms\n",
              absl::ToDoubleSeconds(took), latencies.size(),
              absl::ToDoubleMilliseconds(latencies[latencies.size() / 2]),
              absl::ToDoubleMilliseconds(latencies.back()));

  // What arrived before is still there; then the documented end.
  while (reader->Read(&event)) {
    tokens += event.delta().token_ids_size();
    EXPECT_FALSE(event.has_finished());
  }
  const absl::Status status = rpc::FromGrpc(reader->Finish());
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status.ToString();
  EXPECT_TRUE(absl::StrContains(status.message(), "did not read"))
      << status.ToString();
  EXPECT_LT(tokens, kSamples * kSlowOutput) << "the stream was no long one";
  EXPECT_OK(cluster.WaitUntilIdle(absl::Seconds(2)));
  EXPECT_EQ(cluster.Bugs(), 0);
}

}  // namespace
}  // namespace baton::integration
