// `baton chat`: a conversation in the terminal, or scripted with --say.

#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/cli/client.h"
#include "common/cli/commands.h"
#include "common/cli/sampling_flags.h"

namespace baton::cli {
namespace {

struct Options {
  std::string address = kDefaultAddress;
  std::string system;
  std::vector<std::string> say;
  bool thinking = false;
  double timeout_s = 120;
};

void AddTurn(v1::Chat* chat, v1::Role role, const std::string& content) {
  v1::Message* message = chat->add_messages();
  message->set_role(role);
  message->set_content(content);
}

// Takes one turn: streams the answer and appends it to the conversation.
absl::Status TakeTurn(const Client& client, const Options& o,
                      const v1::SamplingParams& sampling,
                      const std::string& user, v1::Chat* chat) {
  AddTurn(chat, v1::ROLE_USER, user);
  v1::GenerateRequest request;
  *request.mutable_chat() = *chat;
  *request.mutable_sampling() = sampling;
  std::string answer;
  const absl::Status status =
      client.Generate(request, absl::Seconds(o.timeout_s),
                      [&answer](const v1::GenerateResponse& event) {
                        if (event.has_delta()) {
                          answer += event.delta().text();
                          std::fputs(event.delta().text().c_str(), stdout);
                          std::fflush(stdout);
                        }
                        return true;
                      });
  std::fputs("\n", stdout);
  if (!status.ok()) {
    // The turn did not happen: the user may try again.
    chat->mutable_messages()->RemoveLast();
    return status;
  }
  AddTurn(chat, v1::ROLE_ASSISTANT, answer);
  if (o.thinking) {
    // model.md 8.2: text up to </think> is reasoning.
    constexpr absl::string_view kEnd = "</think>";
    v1::Message* message = chat->mutable_messages(chat->messages_size() - 1);
    if (const size_t end = answer.find(kEnd.data(), 0, kEnd.size());
        end != std::string::npos) {
      message->set_reasoning(answer.substr(0, end));
      message->set_content(answer.substr(end + kEnd.size()));
    }
  }
  return absl::OkStatus();
}

int RunChat(const Options& o, const v1::SamplingParams& sampling) {
  const Client client(o.address);
  v1::Chat chat;
  chat.set_thinking_mode(o.thinking ? v1::THINKING_MODE_THINKING
                                    : v1::THINKING_MODE_CHAT);
  if (!o.system.empty()) AddTurn(&chat, v1::ROLE_SYSTEM, o.system);
  for (const std::string& line : o.say) {
    std::printf("> %s\n", line.c_str());
    const absl::Status status = TakeTurn(client, o, sampling, line, &chat);
    if (!status.ok()) {
      std::fprintf(stderr, "baton chat: %s\n", Describe(status).c_str());
      return 1;
    }
  }
  if (!o.say.empty()) return 0;
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) std::printf("Ctrl-D ends the conversation.\n");
  std::string line;
  int failures = 0;
  while (true) {
    if (terminal) std::printf("> ");
    std::fflush(stdout);
    if (!std::getline(std::cin, line)) break;
    if (line.empty()) continue;
    const absl::Status status = TakeTurn(client, o, sampling, line, &chat);
    if (!status.ok()) {
      ++failures;
      std::fprintf(stderr, "baton chat: %s\n", Describe(status).c_str());
    }
  }
  if (terminal) std::printf("\n");
  return failures == 0 ? 0 : 1;
}

}  // namespace

Run AddChat(CLI::App& app) {
  auto* command = app.add_subcommand("chat", "Talks with the model.");
  const auto o = std::make_shared<Options>();
  const auto sampling = std::make_shared<v1::SamplingParams>();
  command->add_option("--say", o->say,
                      "a user turn; may be repeated, then no input is read");
  command->add_option("--system", o->system, "system message");
  command->add_flag("--thinking", o->thinking, "let the model reason first");
  command->add_option("--address", o->address, "router")->capture_default_str();
  command->add_option("--timeout", o->timeout_s, "seconds per turn")
      ->capture_default_str();
  AddSamplingFlags(*command, sampling);
  return [o, sampling] { return RunChat(*o, *sampling); };
}

}  // namespace baton::cli
