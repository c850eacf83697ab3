#include "common/worker/worker_options.h"

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "common/testing/status_matchers.h"

namespace baton::worker {
namespace {

using baton::testing::StatusIs;
using ::testing::HasSubstr;

WorkerOptions Good() {
  WorkerOptions options;
  options.name = "prefill-0";
  options.model = "deploy/demo-model";
  return options;
}

TEST(WorkerOptionsTest, ParsesEveryFlag) {
  WorkerOptions options;
  CLI::App app;
  AddWorkerFlags(app, &options);
  std::vector<std::string> args = {
      "--name=w",          "--listen=0.0.0.0:1",    "--advertise=h:2",
      "--metrics=h:3",     "--routers=a:4,b:5",     "--model=dir",
      "--policy=exact",    "--state-format=bf16",   "--blocks=6",
      "--slots=7",         "--threads=8",           "--max-step-tokens=9",
      "--node=n",          "--drain-timeout=1.5",   "--poison-free-pages",
      "--log-level=debug", "--memory-fraction=0.5", "--reserve-memory=2kb"};
  app.parse(std::vector<std::string>(args.rbegin(), args.rend()));
  EXPECT_EQ(options.name, "w");
  EXPECT_EQ(options.listen, "0.0.0.0:1");
  EXPECT_EQ(options.advertise, "h:2");
  EXPECT_EQ(options.metrics, "h:3");
  EXPECT_EQ(options.routers, (std::vector<std::string>{"a:4", "b:5"}));
  EXPECT_EQ(options.model, "dir");
  EXPECT_EQ(options.policy, "exact");
  EXPECT_EQ(options.state_format, "bf16");
  EXPECT_EQ(options.blocks, 6);
  EXPECT_EQ(options.slots, 7);
  EXPECT_EQ(options.threads, 8);
  EXPECT_EQ(options.max_step_tokens, 9);
  EXPECT_EQ(options.memory_fraction, 0.5);
  EXPECT_EQ(options.reserve_memory_bytes, 2048);
  EXPECT_EQ(options.node, "n");
  EXPECT_EQ(options.drain_timeout, absl::Seconds(1.5));
  EXPECT_TRUE(options.poison_free_pages);
  EXPECT_EQ(options.log_level, "debug");
  EXPECT_OK(FinishWorkerOptions(&options));
}

TEST(WorkerOptionsTest, FillsNodeAndThreads) {
  WorkerOptions options = Good();
  ASSERT_OK(FinishWorkerOptions(&options));
  EXPECT_FALSE(options.node.empty());
  EXPECT_GE(options.threads, 1);
}

TEST(WorkerOptionsTest, NamesTheBadFlag) {
  struct Case {
    const char* flag;
    std::function<void(WorkerOptions*)> break_it;
  };
  const std::vector<Case> cases = {
      {"--name", [](auto* o) { o->name = ""; }},
      {"--name", [](auto* o) { o->name = std::string(129, 'x'); }},
      {"--listen", [](auto* o) { o->listen = "localhost"; }},
      {"--listen", [](auto* o) { o->listen = ":1"; }},
      {"--listen", [](auto* o) { o->listen = "h:65536"; }},
      {"--metrics", [](auto* o) { o->metrics = "h:x"; }},
      {"--advertise", [](auto* o) { o->advertise = "h:0"; }},
      {"--routers",
       [](auto* o) {
         o->routers = {"h:1", "h:0"};
       }},
      {"--model", [](auto* o) { o->model = ""; }},
      {"--policy", [](auto* o) { o->policy = "fast"; }},
      {"--state-format", [](auto* o) { o->state_format = "fp8"; }},
      {"--blocks", [](auto* o) { o->blocks = 0; }},
      {"--slots", [](auto* o) { o->slots = 0; }},
      {"--slots", [](auto* o) { o->slots = 65537; }},
      {"--threads", [](auto* o) { o->threads = -1; }},
      {"--max-step-tokens", [](auto* o) { o->max_step_tokens = 0; }},
      {"--memory-fraction", [](auto* o) { o->memory_fraction = 0; }},
      {"--memory-fraction", [](auto* o) { o->memory_fraction = 1.01; }},
      {"--reserve-memory", [](auto* o) { o->reserve_memory_bytes = -1; }},
      {"--drain-timeout",
       [](auto* o) { o->drain_timeout = absl::Seconds(-1); }},
      {"--log-level", [](auto* o) { o->log_level = "loud"; }},
  };
  for (const Case& c : cases) {
    WorkerOptions options = Good();
    c.break_it(&options);
    EXPECT_THAT(
        FinishWorkerOptions(&options),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.flag)));
  }
}

}  // namespace
}  // namespace baton::worker
