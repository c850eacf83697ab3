// `baton inspect DIR`: census of a checkpoint, or why it is refused.

#include <cstdio>

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/inspect.h"
#include "common/cli/client.h"
#include "common/cli/commands.h"

namespace baton::cli {
namespace {

struct Options {
  std::string dir;
  bool verify = false;
};

int RunInspect(const Options& o) {
  const auto checkpoint =
      checkpoint::Checkpoint::Open(o.dir, {.verify_content = o.verify});
  if (!checkpoint.ok()) {
    std::fprintf(stderr, "baton inspect: %s\n",
                 Describe(checkpoint.status()).c_str());
    return 1;
  }
  std::fputs(checkpoint::CensusReport(**checkpoint).c_str(), stdout);
  return 0;
}

}  // namespace

Run AddInspect(CLI::App& app) {
  auto* command = app.add_subcommand(
      "inspect", "Prints a checkpoint's census, or names what is wrong in it.");
  const auto o = std::make_shared<Options>();
  command->add_option("dir", o->dir, "checkpoint folder")->required();
  command->add_flag("--verify", o->verify,
                    "read every byte and compare with SHA256SUMS");
  return [o] { return RunInspect(*o); };
}

}  // namespace baton::cli
