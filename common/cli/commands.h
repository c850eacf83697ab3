// The commands of `baton`. Each adds its subcommand to the parser and returns a
// function that runs it; exit codes: 0 done, 1 failed, 2 bad usage.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace baton::cli {

using Run = std::function<int()>;

Run AddGenerate(CLI::App& app);
Run AddChat(CLI::App& app);
Run AddStatus(CLI::App& app);
Run AddInspect(CLI::App& app);
Run AddBench(CLI::App& app);
Run AddAudit(CLI::App& app);

}  // namespace baton::cli
