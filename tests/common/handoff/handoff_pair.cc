#include "tests/common/handoff/handoff_pair.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/random.h"

namespace baton::handoff {

kv::StateFormat TestFormat() {
  kv::StateFormat format;
  format.geometry = {.ratios = {0, 4, 128, 4},
                     .head_dim = 8,
                     .index_head_dim = 4,
                     .window_tokens = 128,
                     .window_capacity = 136};
  return format;
}

TestStore::TestStore() {
  auto store = kv::KvStore::Create(TestFormat(), kTestBlocks, kTestSlots);
  CHECK_OK(store);
  store_ = *std::move(store);
}

kv::SequenceView TestStore::Sequence(int64_t tokens, int32_t index) {
  CHECK(index >= 0 && index < kTestSlots);
  std::vector<BlockId>& table = tables_.emplace_back();
  // Each index has its own sixth of the pool, in descending order.
  constexpr int32_t kEach = kTestBlocks / kTestSlots;
  CHECK(kv::BlocksFor(tokens) <= kEach);
  for (int32_t i = 0; i < kv::BlocksFor(tokens); ++i) {
    table.push_back(BlockId{(index + 1) * kEach - 1 - i});
  }
  return {.blocks = table, .slot = (index + 1) % kTestSlots};
}

void TestStore::Fill(const kv::SequenceView& sequence, int64_t tokens,
                     uint64_t seed) {
  SeededRandom random(seed);
  for (const kv::Region& region : kv::Regions(store_->format())) {
    const auto rows =
        kv::CompleteRows(store_->format(), region.component, tokens);
    std::vector<std::byte> data(
        static_cast<size_t>(kv::CountRows(rows) *
                            kv::RowBytes(store_->format(), region.component)));
    for (std::byte& b : data) b = static_cast<std::byte>(random.Uint64());
    store_->ScatterRows(region, sequence, rows, data.data());
  }
}

void TestStore::Poison() {
  for (int32_t i = 0; i < kTestBlocks; ++i) store_->PoisonBlock(BlockId{i});
  for (int32_t i = 0; i < kTestSlots; ++i) store_->PoisonSlot(i);
}

std::vector<std::byte> TestStore::Rows(const kv::SequenceView& sequence,
                                       int64_t tokens) {
  std::vector<std::byte> all;
  for (const kv::Region& region : kv::Regions(store_->format())) {
    const auto rows =
        kv::CompleteRows(store_->format(), region.component, tokens);
    const auto bytes = static_cast<size_t>(
        kv::CountRows(rows) * kv::RowBytes(store_->format(), region.component));
    const size_t before = all.size();
    all.resize(before + bytes);
    store_->GatherRows(region, sequence, rows, all.data() + before);
  }
  return all;
}

SenderSide::SenderSide(TestTransport* transport, Clock* clock,
                       std::string worker, Incarnation incarnation,
                       int64_t max_segment_bytes) {
  log = std::make_unique<SenderLog>([this] { return sender->TakeEvents(); });
  SenderOptions options;
  options.identity = {.worker = std::move(worker),
                      .incarnation = incarnation,
                      .state_format_hash = TestFormat().Hash()};
  options.store = store.get();
  options.dialer = transport->dialer();
  options.clock = clock;
  options.on_event = [this] { log->Notify(); };
  options.max_segment_bytes = max_segment_bytes;
  options.redial_interval = absl::Milliseconds(5);
  auto created = CreateSender(options);
  CHECK_OK(created);
  sender = *std::move(created);
}

ReceiverSide::ReceiverSide(TestTransport* transport, Clock* clock,
                           Incarnation number, const std::string& endpoint)
    : incarnation(number), host(transport->Listen(number, endpoint)) {
  store.Poison();
  log =
      std::make_unique<ReceiverLog>([this] { return receiver->TakeEvents(); });
  ReceiverOptions options;
  options.identity = {.worker = "decode-0",
                      .incarnation = incarnation,
                      .state_format_hash = TestFormat().Hash()};
  options.endpoints = {host->endpoint()};
  options.store = store.get();
  options.vocab_size = kTestVocab;
  options.clock = clock;
  options.on_event = [this] { log->Notify(); };
  auto created = CreateReceiver(options);
  CHECK_OK(created);
  receiver = *std::move(created);
  host->acceptor.Set(receiver->acceptor());
}

ReceiverSide::~ReceiverSide() { host.reset(); }

void ReceiverSide::Reconnect(TestTransport* transport) {
  const std::string endpoint = host->endpoint();
  host.reset();
  host = transport->Listen(incarnation, endpoint);
  host->acceptor.Set(receiver->acceptor());
}

HandoffPair::HandoffPair(Clock* use_clock, int64_t max_segment_bytes)
    : clock(use_clock),
      transport(NewTestTransport(use_clock)),
      to(std::make_unique<ReceiverSide>(transport.get(), clock, 11)),
      from(std::make_unique<SenderSide>(transport.get(), clock, "prefill-0", 21,
                                        max_segment_bytes)) {}

HandoffId TestHandoff(uint64_t number) { return {0xabc, number}; }

std::vector<float> TestLogits(uint64_t seed) {
  SeededRandom random(seed);
  std::vector<float> logits(kTestVocab);
  for (float& x : logits) x = static_cast<float>(random.Uniform() * 20 - 10);
  return logits;
}

Sha256Digest TestPromptHash(uint64_t seed) {
  return Sha256(absl::StrCat("prompt ", seed));
}

Expectation TestExpectation(ReceiverSide* to, HandoffId handoff, int64_t tokens,
                            int32_t index, absl::Time deadline) {
  return {.handoff = handoff,
          .prompt_tokens = tokens,
          .prompt_hash = TestPromptHash(handoff.lo),
          .sequence = to->store.Sequence(tokens, index),
          .deadline = deadline};
}

SendRequest TestSendRequest(SenderSide* from, const Ticket& ticket,
                            int64_t tokens, int32_t index,
                            absl::Time deadline) {
  return {.handoff = ticket.handoff,
          .attempt = ticket.attempt,
          .ticket = ticket,
          .prompt_tokens = tokens,
          .sequence = from->store.Sequence(tokens, index),
          .deadline = deadline};
}

SealRequest TestSeal(HandoffId handoff, uint64_t logits_seed) {
  return {.prompt_hash = TestPromptHash(handoff.lo),
          .last_logits = TestLogits(logits_seed),
          .prefill_us = 1};
}

}  // namespace baton::handoff
