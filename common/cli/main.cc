// The `baton` command line.

#include <CLI/CLI.hpp>
#include <utility>
#include <vector>

#include "common/cli/commands.h"

int main(int argc, char** argv) {
  CLI::App app("Talks to a Baton cluster and looks at checkpoints.", "baton");
  app.require_subcommand(1);
  const std::vector<std::pair<const char*, baton::cli::Run>> commands = {
      {"generate", baton::cli::AddGenerate(app)},
      {"chat", baton::cli::AddChat(app)},
      {"status", baton::cli::AddStatus(app)},
      {"inspect", baton::cli::AddInspect(app)},
      {"bench", baton::cli::AddBench(app)},
      {"audit", baton::cli::AddAudit(app)},
  };
  // CLI11 reports bad usage by exception.
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  for (const auto& [name, run] : commands) {
    if (app.got_subcommand(name)) return run();
  }
  return 2;
}
