// A sender and a receiver with small stores of random rows, joined by a
// transport: the bench on which hand-off tests stand.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/handoff/receiver.h"
#include "common/handoff/sender.h"
#include "common/kv/kv_store.h"
#include "common/transfer/late_acceptor.h"
#include "common/transfer/link.h"

namespace baton::handoff {

// Where a receiver of a test answers; ends with its destructor, as a process
// does.
class TestHost {
 public:
  virtual ~TestHost() = default;
  virtual std::string endpoint() const = 0;
  transfer::LateAcceptor acceptor;
};

class TestTransport {
 public:
  virtual ~TestTransport() = default;
  // `endpoint`: the one of an earlier host, to start on the same address.
  virtual std::unique_ptr<TestHost> Listen(Incarnation incarnation,
                                           const std::string& endpoint) = 0;
  virtual transfer::LinkDialer* dialer() = 0;
  // Repetitions of race replays that this transport affords.
  virtual int repetitions() const = 0;
};
// Defined by inprocess_transport.cc or tcp_transport.cc.
std::unique_ptr<TestTransport> NewTestTransport(Clock* clock);

// 4 layers: window only, C4, C128, C4.
kv::StateFormat TestFormat();
inline constexpr int32_t kTestVocab = 37;
inline constexpr int32_t kTestBlocks = 24;
inline constexpr int32_t kTestSlots = 4;

// A store, and sequences in it with blocks in no particular order.
class TestStore {
 public:
  TestStore();
  kv::KvStore* get() { return store_.get(); }
  // Blocks for `tokens`, or as many as there are; `index` 0 .. kTestSlots - 1
  // names the slot and rotates the blocks.
  kv::SequenceView Sequence(int64_t tokens, int32_t index);
  // Random rows, as a prefill of `tokens` tokens leaves them.
  void Fill(const kv::SequenceView& sequence, int64_t tokens, uint64_t seed);
  // All pages and rings NaN.
  void Poison();
  // Bytes of every row that a hand-off of `tokens` tokens moves.
  std::vector<std::byte> Rows(const kv::SequenceView& sequence, int64_t tokens);

 private:
  std::unique_ptr<kv::KvStore> store_;
  std::deque<std::vector<BlockId>> tables_;
};

// Collects the events of one side and waits for kinds of them.
template <typename Event, typename Kind>
class EventLog {
 public:
  explicit EventLog(std::function<std::vector<Event>()> take)
      : take_(std::move(take)) {}
  void Notify() {
    MutexLock lock(&mu_);
    changed_.SignalAll();
  }
  // The first event of this kind for the hand-off that was not returned yet;
  // nothing after 20 s.
  std::optional<Event> Await(HandoffId handoff, Kind kind) {
    const absl::Time end = Clock::Real()->Now() + absl::Seconds(20);
    while (Clock::Real()->Now() < end) {
      if (auto event = Find(handoff, kind)) return event;
      MutexLock lock(&mu_);
      changed_.WaitFor(&mu_, absl::Milliseconds(2));
    }
    return std::nullopt;
  }
  // Likewise, of what is there now.
  std::optional<Event> Find(HandoffId handoff, Kind kind) {
    for (Event& event : take_()) events_.push_back(std::move(event));
    for (auto it = events_.begin(); it != events_.end(); ++it) {
      if (it->handoff == handoff && it->kind == kind) {
        Event event = std::move(*it);
        events_.erase(it);
        return event;
      }
    }
    return std::nullopt;
  }
  // Events taken and not asked for.
  const std::deque<Event>& rest() const { return events_; }

 private:
  std::function<std::vector<Event>()> take_;
  std::deque<Event> events_;
  Mutex mu_;
  CondVar changed_;
};
using SenderLog = EventLog<SenderEvent, SenderEventKind>;
using ReceiverLog = EventLog<ReceiverEvent, ReceiverEventKind>;

// One worker that sends.
struct SenderSide {
  SenderSide(TestTransport* transport, Clock* clock, std::string worker,
             Incarnation incarnation, int64_t max_segment_bytes);
  TestStore store;
  std::unique_ptr<SenderLog> log;
  std::unique_ptr<Sender> sender;
};

// One worker that receives.
struct ReceiverSide {
  ReceiverSide(TestTransport* transport, Clock* clock, Incarnation incarnation,
               const std::string& endpoint = "");
  ~ReceiverSide();
  // Ends all links, as a broken network does, and listens again.
  void Reconnect(TestTransport* transport);
  TestStore store;
  Incarnation incarnation;
  std::unique_ptr<ReceiverLog> log;
  std::unique_ptr<Receiver> receiver;
  std::unique_ptr<TestHost> host;
};

// A transport with one of each.
struct HandoffPair {
  explicit HandoffPair(Clock* use_clock = Clock::Real(),
                       int64_t max_segment_bytes = 4096);

  Clock* clock;
  std::unique_ptr<TestTransport> transport;
  std::unique_ptr<ReceiverSide> to;
  std::unique_ptr<SenderSide> from;
};

HandoffId TestHandoff(uint64_t number);
std::vector<float> TestLogits(uint64_t seed);
Sha256Digest TestPromptHash(uint64_t seed);

Expectation TestExpectation(ReceiverSide* to, HandoffId handoff, int64_t tokens,
                            int32_t index, absl::Time deadline);
SendRequest TestSendRequest(SenderSide* from, const Ticket& ticket,
                            int64_t tokens, int32_t index, absl::Time deadline);
// With the hash that TestExpectation of the same hand-off expects.
SealRequest TestSeal(HandoffId handoff, uint64_t logits_seed);

}  // namespace baton::handoff
