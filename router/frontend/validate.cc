#include "router/frontend/validate.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/request/request.h"
#include "common/rpc/convert.h"

namespace baton::router::frontend {
namespace {

using dispatch::kBlockTokens;
using request::ErrorReason;
using request::InvalidField;

absl::Status Unsupported(absl::string_view field, absl::string_view message) {
  return request::MakeError(
      absl::StatusCode::kInvalidArgument, absl::StrCat(field, ": ", message),
      {.reason = ErrorReason::kUnsupported, .field = std::string(field)});
}

absl::Status ContextExceeded(absl::string_view field,
                             absl::string_view message) {
  return request::MakeError(
      absl::StatusCode::kInvalidArgument, absl::StrCat(field, ": ", message),
      {.reason = ErrorReason::kContextExceeded, .field = std::string(field)});
}

std::optional<chat::Role> RoleFromProto(v1::Role role) {
  switch (role) {
    case v1::ROLE_SYSTEM:
      return chat::Role::kSystem;
    case v1::ROLE_USER:
      return chat::Role::kUser;
    case v1::ROLE_ASSISTANT:
      return chat::Role::kAssistant;
    case v1::ROLE_TOOL:
      return chat::Role::kTool;
    case v1::ROLE_LATEST_REMINDER:
      return chat::Role::kLatestReminder;
    default:
      return std::nullopt;
  }
}

absl::StatusOr<chat::ReasoningEffort> EffortFromProto(
    const std::string& effort) {
  if (effort.empty()) return chat::ReasoningEffort::kUnspecified;
  if (effort == "low") return chat::ReasoningEffort::kLow;
  if (effort == "high") return chat::ReasoningEffort::kHigh;
  if (effort == "max") return chat::ReasoningEffort::kMax;
  return InvalidField("chat.reasoning_effort",
                      absl::StrCat("'", effort.substr(0, 32),
                                   "', expected low, high, max or nothing"));
}

int64_t TextBytes(const v1::Chat& chat) {
  size_t bytes = chat.tools_json().size();
  for (const v1::Message& message : chat.messages()) {
    bytes += message.content().size() + message.reasoning().size() +
             message.tool_call_id().size();
    for (const v1::ToolCall& call : message.tool_calls()) {
      bytes += call.arguments_json().size() + call.name().size();
    }
  }
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<chat::Conversation> ConversationFromProto(const v1::Chat& chat) {
  chat::Conversation out;
  if (chat.messages().empty()) {
    return InvalidField("chat.messages", "empty, expected at least one");
  }
  if (!chat.tools_json().empty()) {
    return Unsupported("chat.tools_json",
                       "tools are not served by this version, leave it empty");
  }
  for (int i = 0; i < chat.messages_size(); ++i) {
    const v1::Message& message = chat.messages(i);
    const auto role = RoleFromProto(message.role());
    if (!role.has_value()) {
      return InvalidField(
          absl::StrCat("chat.messages[", i, "].role"),
          absl::StrCat(static_cast<int>(message.role()),
                       ", expected ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, "
                       "ROLE_TOOL or ROLE_LATEST_REMINDER"));
    }
    chat::Message turn;
    turn.role = *role;
    turn.content = message.content();
    turn.reasoning = message.reasoning();
    turn.tool_call_id = message.tool_call_id();
    for (const v1::ToolCall& call : message.tool_calls()) {
      turn.tool_calls.push_back(
          {call.id(), call.name(), call.arguments_json()});
    }
    out.messages.push_back(std::move(turn));
  }
  switch (chat.thinking_mode()) {
    case v1::THINKING_MODE_UNSPECIFIED:
    case v1::THINKING_MODE_CHAT:
      out.thinking_mode = chat::ThinkingMode::kChat;
      break;
    case v1::THINKING_MODE_THINKING:
      out.thinking_mode = chat::ThinkingMode::kThinking;
      break;
    default:
      return InvalidField("chat.thinking_mode",
                          absl::StrCat(static_cast<int>(chat.thinking_mode()),
                                       ", expected THINKING_MODE_CHAT or "
                                       "THINKING_MODE_THINKING"));
  }
  ASSIGN_OR_RETURN(out.reasoning_effort,
                   EffortFromProto(chat.reasoning_effort()));
  return out;
}

// Most output tokens that some decode worker could ever hold for n samples of
// the prompt; nothing when no decode worker is known.
std::optional<int64_t> MostThatFits(const registry::Snapshot& workers,
                                    int64_t prompt_tokens, int32_t n) {
  std::optional<int64_t> most;
  for (const registry::WorkerView& worker : workers) {
    if (!worker.identity->decode ||
        worker.state == registry::WorkerState::kLost) {
      continue;
    }
    const int64_t shared = prompt_tokens / kBlockTokens;
    const int64_t each = (worker.identity->blocks - shared) / n;
    const int64_t positions =
        std::min((shared + std::max<int64_t>(each, 0)) * kBlockTokens,
                 worker.identity->max_positions);
    const int64_t tokens =
        worker.identity->slots < n ? 0 : positions - prompt_tokens + 1;
    most = std::max(most.value_or(0), tokens);
  }
  return most;
}

}  // namespace

absl::StatusOr<absl::Time> Validator::Deadline(absl::Time now,
                                               absl::Duration time_left) const {
  if (time_left == absl::InfiniteDuration()) {
    time_left = std::min(limits_.default_deadline, limits_.max_deadline);
  }
  if (time_left <= absl::ZeroDuration()) {
    return request::MakeError(
        absl::StatusCode::kDeadlineExceeded,
        "the deadline had passed when the request arrived",
        {.reason = ErrorReason::kDeadline});
  }
  return now + std::min(time_left, limits_.max_deadline);
}

absl::Status Validator::CheckTokenIds(const v1::TokenIds& ids) const {
  if (ids.ids().empty()) {
    return InvalidField("token_ids", "empty, expected at least one id");
  }
  for (int i = 0; i < ids.ids_size(); ++i) {
    const int32_t id = ids.ids(i);
    if (id < 0 || id >= facts_.vocab_size ||
        (tokenizer_ != nullptr && !tokenizer_->Contains(id))) {
      return InvalidField("token_ids",
                          absl::StrCat("unknown token id ", id, " at ", i,
                                       ", expected ids of the vocabulary, 0 "
                                       "to ",
                                       facts_.vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Validator::EncodeChat(
    const v1::Chat& chat) const {
  ASSIGN_OR_RETURN(const chat::Conversation conversation,
                   ConversationFromProto(chat));
  absl::StatusOr<std::vector<int32_t>> ids =
      chat_encoder_->EncodeChat(conversation);
  if (ids.ok()) return ids;
  // This model cannot express what was asked for.
  if (absl::IsFailedPrecondition(ids.status())) {
    return Unsupported("chat", ids.status().message());
  }
  return InvalidField("chat", ids.status().message());
}

absl::StatusOr<std::vector<int32_t>> Validator::Encode(
    const v1::GenerateRequest& request) const {
  if (tokenizer_ == nullptr &&
      request.input_case() != v1::GenerateRequest::INPUT_NOT_SET &&
      !request.has_token_ids()) {
    return Unsupported(request.has_chat() ? "chat" : "prompt",
                       "this checkpoint has no tokenizer.json, expected "
                       "token_ids");
  }
  const auto check_bytes = [this](absl::string_view field, int64_t bytes) {
    if (bytes <= limits_.max_prompt_bytes) return absl::OkStatus();
    return InvalidField(field, absl::StrCat(bytes, " bytes of text, at most ",
                                            limits_.max_prompt_bytes));
  };
  switch (request.input_case()) {
    case v1::GenerateRequest::kPrompt: {
      const std::string& text = request.prompt();
      if (text.empty()) return InvalidField("prompt", "empty");
      RETURN_IF_ERROR(check_bytes("prompt", static_cast<int64_t>(text.size())));
      absl::StatusOr<std::vector<int32_t>> ids =
          tokenizer_->Encode(text, tokenizer::AddedTokens::kMatch);
      if (!ids.ok()) return InvalidField("prompt", ids.status().message());
      return ids;
    }
    case v1::GenerateRequest::kTokenIds: {
      RETURN_IF_ERROR(CheckTokenIds(request.token_ids()));
      return std::vector<int32_t>(request.token_ids().ids().begin(),
                                  request.token_ids().ids().end());
    }
    case v1::GenerateRequest::kChat: {
      RETURN_IF_ERROR(check_bytes("chat", TextBytes(request.chat())));
      return EncodeChat(request.chat());
    }
    case v1::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  return InvalidField("input", "missing, expected prompt, token_ids or chat");
}

absl::StatusOr<request::SamplingParams> Validator::Sampling(
    const v1::GenerateRequest& request, int64_t prompt_tokens,
    const registry::Snapshot& workers) const {
  const v1::SamplingParams& given = request.sampling();
  request::SamplingParams out = rpc::SamplingFromProto(given, facts_.defaults);
  if (!given.has_seed()) out.seed = random_->Uint64();
  // The default of max_tokens depends on n, so n and the rest come first.
  request::SamplingParams probe = out;
  if (!given.has_max_tokens()) {
    probe.max_tokens = std::max(1, probe.min_tokens);
  }
  RETURN_IF_ERROR(request::ValidateSampling(probe, facts_.vocab_size));

  // The last output token needs no position of its own.
  const int64_t in_context = facts_.context_tokens - prompt_tokens + 1;
  const std::optional<int64_t> in_workers =
      MostThatFits(workers, prompt_tokens, out.n);
  if (!given.has_max_tokens()) {
    const int64_t most = std::min(
        in_context, std::max<int64_t>(1, in_workers.value_or(in_context)));
    out.max_tokens = static_cast<int32_t>(
        std::min<int64_t>(request::kDefaultMaxTokens, most));
    RETURN_IF_ERROR(request::ValidateSampling(out, facts_.vocab_size));
  }
  if (out.max_tokens > in_context) {
    return ContextExceeded(
        "max_tokens",
        absl::StrCat(out.max_tokens, " after a prompt of ", prompt_tokens,
                     " tokens, at most ", in_context, " fit the context of ",
                     facts_.context_tokens));
  }
  if (in_workers.has_value() && out.max_tokens > *in_workers) {
    return request::MakeError(
        absl::StatusCode::kInvalidArgument,
        absl::StrCat("max_tokens: ", out.max_tokens, " for ", out.n,
                     " samples after a prompt of ", prompt_tokens,
                     " tokens, the largest decode worker can hold ",
                     std::max<int64_t>(0, *in_workers)),
        {.reason = ErrorReason::kNeverFits, .field = "max_tokens"});
  }
  return out;
}

absl::StatusOr<dispatch::RequestSpec> Validator::MakeSpec(
    const v1::GenerateRequest& request,
    const registry::Snapshot& workers) const {
  if (request.request_id().size() >
      static_cast<size_t>(request::kMaxRequestIdBytes)) {
    return InvalidField(
        "request_id",
        absl::StrCat(request.request_id().size(), " bytes, at most ",
                     request::kMaxRequestIdBytes));
  }
  if (request.has_logprobs() &&
      (request.logprobs() < 0 || request.logprobs() > request::kMaxLogprobs)) {
    return InvalidField("logprobs",
                        absl::StrCat(request.logprobs(), ", expected 0 to ",
                                     request::kMaxLogprobs));
  }
  const v1::Placement& placement = request.placement();
  const bool placed =
      !placement.prefill_worker().empty() || !placement.decode_worker().empty();
  if (placed && !limits_.allow_placement) {
    return InvalidField("placement",
                        "honoured only by a router started with "
                        "--allow-placement, leave it empty");
  }

  dispatch::RequestSpec spec;
  ASSIGN_OR_RETURN(std::vector<int32_t> ids, Encode(request));
  const auto prompt_tokens = static_cast<int64_t>(ids.size());
  if (request.has_expected_prompt_tokens() &&
      request.expected_prompt_tokens() != prompt_tokens) {
    return InvalidField("expected_prompt_tokens",
                        absl::StrCat(request.expected_prompt_tokens(),
                                     ", the prompt has ", prompt_tokens));
  }
  if (prompt_tokens == 0) {
    return InvalidField("prompt", "no tokens, expected at least one");
  }
  if (prompt_tokens >= facts_.context_tokens) {
    return ContextExceeded(
        "input", absl::StrCat("the prompt has ", prompt_tokens,
                              " tokens, expected fewer than the context of ",
                              facts_.context_tokens));
  }
  ASSIGN_OR_RETURN(spec.sampling, Sampling(request, prompt_tokens, workers));

  spec.id = RequestId::Mint(random_);
  spec.label = request.request_id();
  spec.prompt_hash = HashTokenIds(ids);
  spec.prompt_ids =
      std::make_shared<const std::vector<int32_t>>(std::move(ids));
  if (request.has_logprobs()) spec.logprobs = request.logprobs();
  spec.return_token_ids = request.return_token_ids();
  spec.pinned_prefill = placement.prefill_worker();
  spec.pinned_decode = placement.decode_worker();
  return spec;
}

}  // namespace baton::router::frontend
