// Link messages and segment headers of a sender that says anything: nothing may
// crash, everything is refused by status, and the receiver serves a
// well-behaved sender afterwards. Fixed seed, fixed number of rounds.
#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/random.h"
#include "common/handoff/checksum.h"
#include "common/handoff/receiver.h"
#include "common/testing/fake_clock.h"
#include "common/testing/status_matchers.h"
#include "common/transfer/link_proto.h"
#include "common/transfer/segment_header.h"

namespace baton {
namespace {

constexpr uint64_t kSeed = 20261129;

kv::StateFormat Format() {
  kv::StateFormat format;
  format.geometry = {.ratios = {0, 4, 128},
                     .head_dim = 4,
                     .index_head_dim = 4,
                     .window_tokens = 16,
                     .window_capacity = 16};
  return format;
}

// Numbers near the edges more often than anywhere else.
int64_t AnyNumber(Random* random) {
  switch (random->Uint64() % 6) {
    case 0:
      return static_cast<int64_t>(random->Uint64());
    case 1:
      return INT64_MAX - static_cast<int64_t>(random->Uint64() % 4);
    case 2:
      return INT64_MIN + static_cast<int64_t>(random->Uint64() % 4);
    default:
      return static_cast<int64_t>(random->Uint64() % 40) - 2;
  }
}

TEST(LinkFuzz, SegmentHeadersAndPreamblesOfAnyBytes) {
  SeededRandom random(kSeed);
  const transfer::SegmentHeaderBytes good = transfer::EncodeSegmentHeader(
      {.link_epoch = 1, .segment_seq = 1, .payload_bytes = 64});
  int accepted = 0;
  for (int round = 0; round < 200'000; ++round) {
    transfer::SegmentHeaderBytes bytes = good;
    const uint64_t changes = random.Uint64() % 4;
    for (uint64_t i = 0; i < changes; ++i) {
      bytes[random.Uint64() % bytes.size()] =
          static_cast<std::byte>(random.Uint64());
    }
    const auto header = transfer::DecodeSegmentHeader(bytes, 4096);
    if (header.ok()) {
      ++accepted;
      ASSERT_GE(header->payload_bytes, 1);
      ASSERT_LE(header->payload_bytes, 4096);
    }
    const size_t size = random.Uint64() % transfer::kPreambleBytes;
    transfer::DecodePreamble(absl::MakeSpan(bytes).first(size)).IgnoreError();
  }
  EXPECT_GT(accepted, 0);
}

template <typename Proto>
void MutateAndParse(const Proto& good, SeededRandom* random) {
  const std::string whole = good.SerializeAsString();
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = whole.substr(0, random->Uint64() % (whole.size() + 1));
    if (bytes.empty()) continue;
    const uint64_t changes = random->Uint64() % 6;
    for (uint64_t i = 0; i < changes; ++i) {
      bytes[random->Uint64() % bytes.size()] =
          static_cast<char>(random->Uint64());
    }
    Proto proto;
    if (!proto.ParseFromString(bytes)) continue;
    // Any verdict will do; only crashes and what sanitizers see count.
    [[maybe_unused]] const auto message = transfer::FromProto(proto);
  }
}

TEST(LinkFuzz, MessagesOfAnyBytes) {
  // It reports each string that is not UTF-8.
  const google::protobuf::LogSilencer silencer;
  SeededRandom random(kSeed);
  const HandoffId handoff{1, 2};
  MutateAndParse(transfer::ToProto(transfer::LinkHello{}), &random);
  MutateAndParse(transfer::ToProto(transfer::Offer{
                     .segment_seq = 1,
                     .handoff = handoff,
                     .attempt = 1,
                     .payload_bytes = 64,
                     .pieces = {{{1, kv::Component::kC4}, {0, 4, 1}}}}),
                 &random);
  transfer::Seal seal{.handoff = handoff, .attempt = 1};
  seal.manifest.regions = {{{0, kv::Component::kWindow}, 3, 4}};
  seal.last_logits = {1, 2, 3};
  MutateAndParse(transfer::ToProto(seal), &random);
  MutateAndParse(transfer::ToProto(transfer::LinkAbort{handoff, 1, "why"}),
                 &random);
  MutateAndParse(transfer::ToProto(transfer::Query{handoff, 1}), &random);
  MutateAndParse(transfer::ToProto(transfer::LinkProgress{handoff, 1, 7}),
                 &random);
  MutateAndParse(transfer::ToProto(transfer::Verdict{
                     handoff, 1, transfer::VerdictKind::kRejected}),
                 &random);
}

// Takes answers and drops them.
class DeafLink final : public transfer::ReceiverLink {
 public:
  absl::Status Send(const transfer::Posted&) override { return {}; }
  absl::Status Send(const transfer::Done&) override { return {}; }
  absl::Status Send(const transfer::Verdict&) override { return {}; }
  void Close(const absl::Status&) override { closed = true; }
  bool closed = false;
};

class ReceiverFuzz : public ::testing::Test {
 protected:
  ReceiverFuzz() : random_(kSeed) {
    store_ = *kv::KvStore::Create(Format(), 8, 2);
    handoff::ReceiverOptions options;
    options.identity = {.worker = "decode-0",
                        .incarnation = 1,
                        .state_format_hash = Format().Hash()};
    options.endpoints = {"inproc:decode-0"};
    options.store = store_.get();
    options.vocab_size = 4;
    options.clock = &clock_;
    options.max_segment_bytes = 4096;
    receiver_ = *handoff::CreateReceiver(options);
  }

  void Connect() {
    link_ = std::make_shared<DeafLink>();
    auto accepted = receiver_->acceptor()->Accept(
        {.sender = {.worker = "prefill-0",
                    .incarnation = 1,
                    .state_format_hash = Format().Hash()},
         .receiver_incarnation = 1},
        ++epoch_, link_);
    ASSERT_OK(accepted);
    handler_ = *std::move(accepted);
    seq_ = 1;
  }
  void Disconnect() {
    handler_->OnLinkClosed(absl::UnavailableError("fuzz"));
    handler_.reset();
  }

  // Ids end and become tombstones: new ones come into use with time.
  HandoffId AnyHandoff() { return {9, id_ + random_.Uint64() % 3}; }
  // The first attempt mostly.
  Attempt AnyAttempt() {
    const uint64_t any = random_.Uint64() % 8;
    return any < 5 ? 1 : static_cast<Attempt>(any - 4);
  }

  transfer::Piece AnyPiece() {
    return {{static_cast<int32_t>(AnyNumber(&random_) % 4),
             static_cast<kv::Component>(1 + random_.Uint64() % 7)},
            {AnyNumber(&random_), AnyNumber(&random_), AnyNumber(&random_)}};
  }
  // Often one that fits, so that the fuzz gets beyond the first check.
  transfer::Offer AnyOffer() {
    transfer::Offer offer{
        .segment_seq = seq_, .handoff = AnyHandoff(), .attempt = AnyAttempt()};
    // These end the link, so they are rare.
    if (random_.Uint64() % 100 == 0) {
      offer.segment_seq = static_cast<uint64_t>(AnyNumber(&random_));
    }
    if (random_.Uint64() % 4 != 0) {
      const auto regions = kv::Regions(Format());
      const kv::Region region = regions[random_.Uint64() % regions.size()];
      const auto rows = static_cast<int64_t>(1 + random_.Uint64() % 8);
      offer.pieces = {{region,
                       {static_cast<int64_t>(random_.Uint64() % 40), rows,
                        static_cast<int64_t>(1 + random_.Uint64() % 2)}}};
      offer.payload_bytes = rows * kv::RowBytes(Format(), region.component);
    } else {
      for (uint64_t i = random_.Uint64() % 4; i > 0; --i) {
        offer.pieces.push_back(AnyPiece());
      }
      offer.payload_bytes =
          random_.Uint64() % 20 == 0
              ? AnyNumber(&random_)
              : static_cast<int64_t>(16 + random_.Uint64() % 64);
    }
    return offer;
  }

  void Step() {
    switch (random_.Uint64() % 10) {
      case 0:
      case 1:
      case 2: {
        const transfer::Offer offer = AnyOffer();
        handler_->OnOffer(offer);
        if (offer.segment_seq == seq_) {
          ++seq_;
          offers_.push_back(offer);
        }
        break;
      }
      case 3:
      case 4:
      case 5:
        if (!offers_.empty()) {
          const transfer::Offer offer = offers_.front();
          offers_.erase(offers_.begin());
          if (offer.payload_bytes < 1 || offer.payload_bytes > 4096) break;
          std::vector<std::byte> payload(
              static_cast<size_t>(offer.payload_bytes));
          for (std::byte& b : payload) b = static_cast<std::byte>(seq_);
          const bool wrong = random_.Uint64() % 8 == 0;
          handler_->OnSegment(
              {.link_epoch = epoch_,
               .segment_seq = offer.segment_seq,
               .handoff = offer.handoff,
               .attempt = offer.attempt,
               .payload_bytes = offer.payload_bytes,
               .checksum = wrong || payload.size() % 16 != 0
                               ? 1
                               : handoff::PayloadChecksum(payload)},
              payload);
        }
        break;
      case 6: {
        transfer::Seal seal{.handoff = AnyHandoff(), .attempt = AnyAttempt()};
        seal.manifest.processed_tokens = AnyNumber(&random_);
        seal.manifest.state_format_hash = Format().Hash();
        seal.manifest.regions = {{AnyPiece().region, AnyNumber(&random_), 1}};
        seal.last_logits.resize(random_.Uint64() % 6);
        handler_->OnSeal(seal);
        break;
      }
      case 7:
        handler_->OnAbort({AnyHandoff(), AnyAttempt(), "fuzz"});
        handler_->OnQuery({AnyHandoff(), AnyAttempt()});
        break;
      case 8:
        handler_->OnProgress({AnyHandoff(), AnyAttempt(), AnyNumber(&random_)});
        break;
      case 9:
        StepLoop();
        break;
    }
  }
  // What a step loop does, at random.
  void StepLoop() {
    const HandoffId handoff = AnyHandoff();
    switch (random_.Uint64() % 8) {
      default: {
        static const std::vector<BlockId> kBlocks = {BlockId{3}};
        receiver_
            ->Reserve({.handoff = handoff,
                       .prompt_tokens = 40,
                       .sequence = {.blocks = kBlocks, .slot = 1},
                       .deadline = clock_.Now() + absl::Seconds(60)})
            .IgnoreError();
        break;
      }
      case 1:
        receiver_->Reticket(handoff, AnyAttempt()).IgnoreError();
        break;
      case 2:
        receiver_->Abort(handoff, "fuzz");
        if (random_.Uint64() % 4 == 0) id_ += 3;
        break;
      case 3:
        clock_.Advance(absl::Seconds(2));
        for (const auto& event : receiver_->TakeEvents()) {
          EXPECT_NE(event.kind, handoff::ReceiverEventKind::kVerified)
              << "garbage passed the checks";
        }
        break;
    }
  }

  testing::FakeClock clock_;
  SeededRandom random_;
  std::unique_ptr<kv::KvStore> store_;
  std::unique_ptr<handoff::Receiver> receiver_;
  std::shared_ptr<DeafLink> link_;
  std::shared_ptr<transfer::LinkReceiverHandler> handler_;
  LinkEpoch epoch_ = 0;
  uint64_t seq_ = 1;
  uint64_t id_ = 1;
  Mutex mu_;
  CondVar pause_;
  std::vector<transfer::Offer> offers_;
};

TEST_F(ReceiverFuzz, AnySequenceOfMessagesLeavesNothingBehind) {
  for (int links = 0; links < 400; ++links) {
    Connect();
    offers_.clear();
    for (int i = 0; i < 200 && !link_->closed; ++i) Step();
    Disconnect();
  }
  // Verifications are done and all leases end: nothing is held.
  for (int i = 0; i < 4000; ++i) {
    clock_.Advance(absl::Minutes(1));
    receiver_->TakeEvents();
    int32_t live = 0;
    for (const auto& [state, count] : receiver_->stats().states) live += count;
    if (live == 0) break;
    // A verification may be running yet.
    MutexLock lock(&mu_);
    pause_.WaitFor(&mu_, absl::Milliseconds(5));
  }
  for (const auto& [state, count] : receiver_->stats().states) {
    EXPECT_EQ(count, 0) << state;
  }
  clock_.Advance(absl::Hours(1));
  receiver_->TakeEvents();
  EXPECT_EQ(receiver_->stats().tombstones, 0);
  EXPECT_EQ(receiver_->stats().links_up, 0);
  EXPECT_GT(receiver_->stats().segments_dropped, 0);
  EXPECT_FALSE(receiver_->stats().bytes.empty()) << "the fuzz never got far";
}

}  // namespace
}  // namespace baton
