// Against a router's real gRPC server with a scripted ClusterService.
#include "common/worker/registration.h"

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "baton/v1/cluster.grpc.pb.h"
#include "common/base/mutex.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "common/testing/status_matchers.h"

namespace baton::worker {
namespace {

using ::testing::ElementsAre;

class FakeRouter final : public v1::ClusterService::Service {
 public:
  explicit FakeRouter(uint64_t incarnation) : incarnation_(incarnation) {}

  absl::Status Listen(const std::string& address) {
    auto server = rpc::Server::Start({.address = address, .services = {this}});
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    return absl::OkStatus();
  }
  std::string address() const { return server_->address(); }
  void Shutdown() { server_->Shutdown(absl::ZeroDuration()); }

  grpc::Status Register(grpc::ServerContext*, const v1::RegisterRequest* in,
                        v1::RegisterResponse* out) override {
    MutexLock lock(&mu_);
    registered_.push_back(in->worker());
    out->set_heartbeat_interval_ms(interval_ms_);
    out->set_router_incarnation(incarnation_);
    changed_.SignalAll();
    return grpc::Status::OK;
  }
  grpc::Status Heartbeat(grpc::ServerContext* context,
                         const v1::HeartbeatRequest* in,
                         v1::HeartbeatResponse* out) override {
    MutexLock lock(&mu_);
    while (stuck_ && !context->IsCancelled()) {
      changed_.WaitFor(&mu_, absl::Milliseconds(5));
    }
    reports_.push_back(in->load());
    changed_.SignalAll();
    if (forget_) {
      forget_ = false;
      return rpc::ToGrpc(absl::NotFoundError("who are you"));
    }
    out->set_router_incarnation(incarnation_);
    return grpc::Status::OK;
  }

  template <typename Condition>
  bool WaitUntil(Condition condition) {
    const absl::Time end = Clock::Real()->Now() + absl::Seconds(20);
    MutexLock lock(&mu_);
    while (!condition()) {
      if (Clock::Real()->Now() > end) return false;
      changed_.WaitFor(&mu_, absl::Milliseconds(50));
    }
    return true;
  }
  bool WaitForReports(size_t n) {
    return WaitUntil([&] { return reports_.size() >= n; });
  }
  bool WaitForRegistrations(size_t n) {
    return WaitUntil([&] { return registered_.size() >= n; });
  }
  template <typename F>
  auto With(F f) {
    MutexLock lock(&mu_);
    return f();
  }

  std::vector<v1::WorkerInfo> registered_;
  std::vector<v1::LoadReport> reports_;
  uint64_t incarnation_;
  int64_t interval_ms_ = 100;
  bool forget_ = false;
  bool stuck_ = false;

 private:
  Mutex mu_;
  CondVar changed_;
  std::unique_ptr<rpc::Server> server_;
};

RegistrationOptions Options(std::vector<std::string> routers) {
  RegistrationOptions options;
  options.routers = std::move(routers);
  options.worker = {.name = "prefill-0",
                    .roles = {Role::kPrefill},
                    .incarnation = 77,
                    .endpoints = {"127.0.0.1:5"},
                    .blocks = 12,
                    .slots = 3,
                    .max_positions = 4096,
                    .max_backlog_tokens = 99};
  options.load = [] {
    return WorkerLoad{.tick = 5, .free_blocks = 9, .backlog_tokens = 4};
  };
  options.min_backoff = absl::Milliseconds(10);
  options.max_backoff = absl::Milliseconds(50);
  return options;
}

TEST(RegistrationTest, RegistersAndSendsNumberedReports) {
  FakeRouter router(1);
  ASSERT_OK(router.Listen("127.0.0.1:0"));
  Registration registration(Options({router.address()}));
  ASSERT_TRUE(router.WaitForReports(3));
  EXPECT_EQ(registration.registered(), 1);
  router.With([&] {
    ASSERT_EQ(router.registered_.size(), 1);
    const v1::WorkerInfo& info = router.registered_[0];
    EXPECT_EQ(info.name(), "prefill-0");
    EXPECT_THAT(info.roles(), ElementsAre(v1::WORKER_ROLE_PREFILL));
    EXPECT_EQ(info.incarnation(), 77);
    EXPECT_THAT(info.endpoints(), ElementsAre("127.0.0.1:5"));
    EXPECT_EQ(info.blocks(), 12);
    EXPECT_EQ(info.slots(), 3);
    EXPECT_EQ(info.max_backlog_tokens(), 99);
    for (size_t i = 0; i < router.reports_.size(); ++i) {
      EXPECT_EQ(router.reports_[i].sequence(), static_cast<int64_t>(i) + 1);
      EXPECT_EQ(router.reports_[i].tick(), 5);
      EXPECT_EQ(router.reports_[i].free_blocks(), 9);
      EXPECT_EQ(router.reports_[i].backlog_tokens(), 4);
      EXPECT_EQ(router.reports_[i].state(), v1::WORKER_STATE_SERVING);
    }
  });
}

TEST(RegistrationTest, NamesEachAdmittedHandoffOnceToEachRouter) {
  FakeRouter a(1);
  FakeRouter b(2);
  ASSERT_OK(a.Listen("127.0.0.1:0"));
  ASSERT_OK(b.Listen("127.0.0.1:0"));
  Registration registration(Options({a.address(), b.address()}));
  ASSERT_TRUE(a.WaitForReports(1));
  ASSERT_TRUE(b.WaitForReports(1));
  const HandoffId id{.hi = 1, .lo = 2};
  registration.NoteAdmitted(id);
  for (FakeRouter* router : {&a, &b}) {
    const size_t now = router->With([&] { return router->reports_.size(); });
    ASSERT_TRUE(router->WaitForReports(now + 3));
    router->With([&] {
      int named = 0;
      for (const v1::LoadReport& report : router->reports_) {
        for (const std::string& bytes : report.admitted_since_report()) {
          EXPECT_EQ(bytes, ToBytes(id));
          ++named;
        }
      }
      EXPECT_EQ(named, 1);
    });
  }
}

TEST(RegistrationTest, RegistersAgainWhenTheRouterForgotIt) {
  FakeRouter router(1);
  ASSERT_OK(router.Listen("127.0.0.1:0"));
  Registration registration(Options({router.address()}));
  ASSERT_TRUE(router.WaitForReports(2));
  router.With([&] { router.forget_ = true; });
  EXPECT_TRUE(router.WaitForRegistrations(2));
}

TEST(RegistrationTest, RegistersAgainWithANewIncarnationOfTheRouter) {
  FakeRouter router(1);
  ASSERT_OK(router.Listen("127.0.0.1:0"));
  Registration registration(Options({router.address()}));
  ASSERT_TRUE(router.WaitForReports(2));
  router.With([&] { router.incarnation_ = 2; });
  ASSERT_TRUE(router.WaitForRegistrations(2));
  // And stays: the incarnation that it registered with is the new one.
  const size_t now = router.With([&] { return router.reports_.size(); });
  ASSERT_TRUE(router.WaitForReports(now + 3));
  router.With([&] { EXPECT_EQ(router.registered_.size(), 2); });
}

TEST(RegistrationTest, SurvivesARouterThatIsDownAndFindsItAgain) {
  std::string address;
  auto first = std::make_unique<FakeRouter>(1);
  ASSERT_OK(first->Listen("127.0.0.1:0"));
  address = first->address();
  Registration registration(Options({address}));
  ASSERT_TRUE(first->WaitForReports(1));
  first->Shutdown();
  first = nullptr;
  FakeRouter second(2);
  ASSERT_OK(second.Listen(address));
  EXPECT_TRUE(second.WaitForReports(2));
}

TEST(RegistrationTest, OneStuckRouterDelaysNobodyElse) {
  FakeRouter stuck(1);
  FakeRouter good(2);
  stuck.stuck_ = true;
  ASSERT_OK(stuck.Listen("127.0.0.1:0"));
  ASSERT_OK(good.Listen("127.0.0.1:0"));
  Registration registration(Options({stuck.address(), good.address()}));
  ASSERT_TRUE(stuck.WaitForRegistrations(1));
  EXPECT_TRUE(good.WaitForReports(5));
  // Stop cancels the stuck call rather than waiting for its deadline.
  const absl::Time begin = Clock::Real()->Now();
  registration.Stop();
  EXPECT_LT(Clock::Real()->Now() - begin, absl::Seconds(1));
}

TEST(RegistrationTest, ReportSoonDoesNotWaitForTheInterval) {
  FakeRouter router(1);
  router.interval_ms_ = 5'000;
  ASSERT_OK(router.Listen("127.0.0.1:0"));
  Registration registration(Options({router.address()}));
  ASSERT_TRUE(router.WaitForReports(1));
  const absl::Time begin = Clock::Real()->Now();
  registration.ReportSoon();
  ASSERT_TRUE(router.WaitForReports(2));
  EXPECT_LT(Clock::Real()->Now() - begin, absl::Seconds(4));
}

TEST(RegistrationTest, StopsAtOnceWithoutAnyRouter) {
  // Port 1 of the loopback: nobody listens there.
  Registration registration(Options({"127.0.0.1:1"}));
  const absl::Time begin = Clock::Real()->Now();
  registration.Stop();
  EXPECT_LT(Clock::Real()->Now() - begin, absl::Seconds(1));
  EXPECT_EQ(registration.registered(), 0);
}

}  // namespace
}  // namespace baton::worker
