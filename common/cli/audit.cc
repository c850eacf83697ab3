// `baton audit recall`: does the cluster still remember what it was told?

#include <atomic>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/cli/client.h"
#include "common/cli/commands.h"

namespace baton::cli {
namespace {

struct Options {
  std::string address = kDefaultAddress;
  std::string file;
  std::vector<int32_t> concurrency = {1};
  std::vector<int32_t> expect_misses;
  bool check_expected = false;
  int32_t limit = 0;
  double timeout_s = 300;
};

struct Row {
  v1::GenerateRequest request;
  std::string answer;
  int32_t prompt_tokens = 0;
};

absl::StatusOr<std::vector<Row>> ReadRows(const std::string& file) {
  std::ifstream in(file);
  if (!in) return absl::NotFoundError(absl::StrCat("cannot read ", file));
  std::vector<Row> rows;
  // nlohmann-json reports malformed input by exception.
  try {
    const nlohmann::json json = nlohmann::json::parse(in);
    for (const auto& item : json) {
      Row row;
      row.answer = item.at("answer").get<std::string>();
      row.prompt_tokens = item.at("prompt_tokens").get<int32_t>();
      for (const auto& message : item.at("messages")) {
        v1::Message* out = row.request.mutable_chat()->add_messages();
        const std::string role = message.at("role").get<std::string>();
        if (role == "user") {
          out->set_role(v1::ROLE_USER);
        } else if (role == "assistant") {
          out->set_role(v1::ROLE_ASSISTANT);
        } else if (role == "system") {
          out->set_role(v1::ROLE_SYSTEM);
        } else {
          return absl::InvalidArgumentError(absl::StrCat(
              file, ": role '", role, "', expected user, assistant, system"));
        }
        out->set_content(message.at("content").get<std::string>());
      }
      row.request.set_expected_prompt_tokens(row.prompt_tokens);
      row.request.mutable_sampling()->set_temperature(0);
      row.request.mutable_sampling()->set_max_tokens(64);
      rows.push_back(std::move(row));
    }
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", e.what()));
  }
  return rows;
}

// Outputs in the order of the rows; a failed call gives "!" and its status.
std::vector<std::string> AskAll(const Client& client, const Options& o,
                                const std::vector<Row>& rows,
                                int32_t concurrency) {
  std::vector<std::string> outputs(rows.size());
  std::atomic<size_t> next{0};
  std::vector<Thread> threads;
  for (int32_t i = 0; i < concurrency; ++i) {
    threads.emplace_back("recall", [&] {
      for (size_t row; (row = next.fetch_add(1)) < rows.size();) {
        std::string text;
        const absl::Status status =
            client.Generate(rows[row].request, absl::Seconds(o.timeout_s),
                            [&text](const v1::GenerateResponse& event) {
                              if (event.has_delta()) {
                                text += event.delta().text();
                              }
                              return true;
                            });
        outputs[row] = status.ok() ? text : absl::StrCat("!", Describe(status));
      }
    });
  }
  threads.clear();
  return outputs;
}

int RunRecall(const Options& o) {
  auto read = ReadRows(o.file);
  if (!read.ok()) {
    std::fprintf(stderr, "baton audit recall: %s\n",
                 Describe(read.status()).c_str());
    return 1;
  }
  std::vector<Row> rows = *std::move(read);
  if (o.limit > 0 && rows.size() > static_cast<size_t>(o.limit)) {
    rows.resize(static_cast<size_t>(o.limit));
  }
  const Client client(o.address);
  std::vector<std::string> first;
  bool failed = false;
  for (const int32_t concurrency : o.concurrency) {
    const std::vector<std::string> outputs =
        AskAll(client, o, rows, concurrency);
    // Rows by prompt length: asked, missed.
    std::map<int32_t, std::pair<int32_t, int32_t>> by_length;
    std::vector<int32_t> misses;
    for (size_t i = 0; i < rows.size(); ++i) {
      auto& bucket = by_length[rows[i].prompt_tokens / 250 * 250];
      ++bucket.first;
      if (absl::StripAsciiWhitespace(outputs[i]) ==
          absl::StripAsciiWhitespace(rows[i].answer)) {
        continue;
      }
      ++bucket.second;
      misses.push_back(static_cast<int32_t>(i));
      std::printf("row %zu (%d tokens): expected '%s', got '%s'\n", i,
                  rows[i].prompt_tokens, rows[i].answer.c_str(),
                  outputs[i].c_str());
    }
    std::printf("%d at a time: %zu of %zu right; misses by prompt length:",
                concurrency, rows.size() - misses.size(), rows.size());
    for (const auto& [length, counts] : by_length) {
      std::printf("  %d-%d: %d/%d", length, length + 249, counts.second,
                  counts.first);
    }
    std::printf("\n");
    if (o.check_expected && misses != o.expect_misses) {
      std::printf("MISSES DIFFER: rows {%s}, expected {%s}\n",
                  absl::StrJoin(misses, ",").c_str(),
                  absl::StrJoin(o.expect_misses, ",").c_str());
      failed = true;
    }
    if (first.empty()) {
      first = outputs;
    } else if (outputs != first) {
      for (size_t i = 0; i < rows.size(); ++i) {
        if (outputs[i] != first[i]) {
          std::printf("OUTPUT DIFFERS at row %zu: '%s', at first '%s'\n", i,
                      outputs[i].c_str(), first[i].c_str());
        }
      }
      failed = true;
    } else {
      std::printf("outputs identical to the first run\n");
    }
  }
  return failed ? 1 : 0;
}

}  // namespace

Run AddAudit(CLI::App& app) {
  auto* command =
      app.add_subcommand("audit", "Proves that it still is the same model.");
  command->require_subcommand(1);
  auto* recall = command->add_subcommand(
      "recall", "Asks for facts told earlier in chats, greedily.");
  const auto o = std::make_shared<Options>();
  recall
      ->add_option("file", o->file,
                   "JSON list of {messages, answer, "
                   "prompt_tokens}")
      ->required();
  recall->add_option("--address", o->address, "router")->capture_default_str();
  recall
      ->add_option("--concurrency", o->concurrency,
                   "chats at once; several values are run one after another "
                   "and must give identical outputs")
      ->delimiter(',')
      ->capture_default_str();
  recall
      ->add_option_function<std::vector<int32_t>>(
          "--expect-misses",
          [o](const std::vector<int32_t>& rows) {
            o->expect_misses = rows;
            o->check_expected = true;
          },
          "rows (from 0) that must be the only wrong ones")
      ->delimiter(',');
  recall->add_option("--limit", o->limit, "first rows only; 0: all")
      ->capture_default_str();
  return [o] { return RunRecall(*o); };
}

}  // namespace baton::cli
