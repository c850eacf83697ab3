#include "common/transfer/in_process.h"

#include <deque>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/fault_point.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"

namespace baton::transfer {

namespace {

constexpr absl::string_view kScheme = "inproc:";
constexpr size_t kMaxQueuedSegments = 2;
// How often a wait looks at the injected clock, in real time.
constexpr absl::Duration kClockPoll = absl::Milliseconds(10);

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace

// Lock order: Pipe::mu_ is a leaf; handlers are called without it.
class InProcessNetwork::Pipe final {
 public:
  using ToReceiver = std::variant<Offer, Seal, LinkAbort, Query, LinkProgress>;
  using ToSender = std::variant<Posted, Done, Verdict>;

  Pipe(LinkEpoch epoch, Clock* clock, std::shared_ptr<LinkSenderHandler> sender)
      : epoch_(epoch), clock_(clock), sender_(std::move(sender)) {}
  ~Pipe() {
    Close(absl::CancelledError("link destroyed"));
    JoinSender();
    JoinReceiver();
  }

  void Start(std::shared_ptr<LinkReceiverHandler> receiver) {
    receiver_ = std::move(receiver);
    control_thread_ = Thread("link-control", [this] { DeliverControl(); });
    data_thread_ = Thread("link-data", [this] { DeliverSegments(); });
    answer_thread_ = Thread("link-answers", [this] { DeliverAnswers(); });
  }

  LinkEpoch epoch() const { return epoch_; }

  absl::Status PushControl(ToReceiver message) {
    MutexLock lock(&mu_);
    if (closed_.has_value()) return ClosedError();
    control_.push_back(std::move(message));
    changed_.SignalAll();
    return absl::OkStatus();
  }

  absl::Status PushAnswer(ToSender message) {
    MutexLock lock(&mu_);
    if (closed_.has_value()) return ClosedError();
    answers_.push_back(std::move(message));
    changed_.SignalAll();
    return absl::OkStatus();
  }

  absl::Status PushSegment(const SegmentHeader& header,
                           absl::Span<const std::byte> payload,
                           absl::Time deadline) {
    BATON_FAULT_POINT("transfer.delay_segment");
    if (BATON_FAULT("transfer.drop_link", "")) {
      Close(absl::UnavailableError("link dropped by transfer.drop_link"));
    }
    Segment segment{header, {payload.begin(), payload.end()}};
    if (BATON_FAULT("transfer.corrupt_segment", "")) {
      segment.payload[segment.payload.size() / 2] ^= std::byte{0x10};
    }
    MutexLock lock(&mu_);
    while (!closed_.has_value() && segments_.size() >= kMaxQueuedSegments) {
      if (clock_->Now() >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat(
            "segment ", header.segment_seq, " was not taken in time"));
      }
      changed_.WaitFor(&mu_, kClockPoll);
    }
    if (closed_.has_value()) return ClosedError();
    segments_.push_back(std::move(segment));
    changed_.SignalAll();
    return absl::OkStatus();
  }

  void Close(const absl::Status& status) {
    MutexLock lock(&mu_);
    if (!closed_.has_value()) closed_ = status;
    changed_.SignalAll();
  }

  bool receiver_done() {
    MutexLock lock(&mu_);
    return receiver_done_;
  }
  void JoinSender() { answer_thread_.Join(); }
  void JoinReceiver() {
    control_thread_.Join();
    data_thread_.Join();
  }

 private:
  struct Segment {
    SegmentHeader header;
    std::vector<std::byte> payload;
  };

  absl::Status ClosedError() const BATON_REQUIRES(mu_) {
    return absl::UnavailableError(
        absl::StrCat("link closed: ", closed_->message()));
  }

  // Made anew for each reader: the count of a shared absl::Status is
  // decremented inside the prebuilt library, where ThreadSanitizer does not see
  // it.
  absl::Status WhyClosed() {
    MutexLock lock(&mu_);
    return absl::Status(closed_->code(), closed_->message());
  }

  template <typename T>
  std::optional<T> Next(std::deque<T>* queue) {
    MutexLock lock(&mu_);
    while (!closed_.has_value() && queue->empty()) changed_.Wait(&mu_);
    if (closed_.has_value()) return std::nullopt;
    T next = std::move(queue->front());
    queue->pop_front();
    changed_.SignalAll();
    return next;
  }

  void DeliverControl() {
    while (auto message = Next(&control_)) {
      std::visit(
          Overloaded{
              [this](const Offer& m) { receiver_->OnOffer(m); },
              [this](Seal& m) { receiver_->OnSeal(std::move(m)); },
              [this](const LinkAbort& m) { receiver_->OnAbort(m); },
              [this](const Query& m) { receiver_->OnQuery(m); },
              [this](const LinkProgress& m) { receiver_->OnProgress(m); }},
          *message);
    }
    {
      MutexLock lock(&mu_);
      while (!data_done_) changed_.Wait(&mu_);
    }
    receiver_->OnLinkClosed(WhyClosed());
    receiver_.reset();
    MutexLock lock(&mu_);
    receiver_done_ = true;
  }

  void DeliverSegments() {
    while (auto segment = Next(&segments_)) {
      receiver_->OnSegment(segment->header, segment->payload);
    }
    MutexLock lock(&mu_);
    data_done_ = true;
    changed_.SignalAll();
  }

  void DeliverAnswers() {
    while (auto message = Next(&answers_)) {
      std::visit(
          Overloaded{[this](const Posted& m) { sender_->OnPosted(m); },
                     [this](const Done& m) { sender_->OnDone(m); },
                     [this](const Verdict& m) { sender_->OnVerdict(m); }},
          *message);
    }
    sender_->OnLinkClosed(WhyClosed());
    sender_.reset();
  }

  const LinkEpoch epoch_;
  Clock* const clock_;
  std::shared_ptr<LinkSenderHandler> sender_;
  std::shared_ptr<LinkReceiverHandler> receiver_;
  Mutex mu_;
  CondVar changed_;
  std::deque<ToReceiver> control_ BATON_GUARDED_BY(mu_);
  std::deque<Segment> segments_ BATON_GUARDED_BY(mu_);
  std::deque<ToSender> answers_ BATON_GUARDED_BY(mu_);
  std::optional<absl::Status> closed_ BATON_GUARDED_BY(mu_);
  bool data_done_ BATON_GUARDED_BY(mu_) = false;
  bool receiver_done_ BATON_GUARDED_BY(mu_) = false;
  Thread control_thread_;
  Thread data_thread_;
  Thread answer_thread_;
};

class InProcessNetwork::SenderEnd final : public SenderLink {
 public:
  explicit SenderEnd(std::shared_ptr<Pipe> pipe) : pipe_(std::move(pipe)) {}
  ~SenderEnd() override {
    pipe_->Close(absl::UnavailableError("the sender closed the link"));
    pipe_->JoinSender();
  }
  LinkEpoch epoch() const override { return pipe_->epoch(); }
  absl::Status Send(const Offer& m) override { return pipe_->PushControl(m); }
  absl::Status Send(const Seal& m) override { return pipe_->PushControl(m); }
  absl::Status Send(const LinkAbort& m) override {
    return pipe_->PushControl(m);
  }
  absl::Status Send(const Query& m) override { return pipe_->PushControl(m); }
  absl::Status Send(const LinkProgress& m) override {
    return pipe_->PushControl(m);
  }
  absl::Status SendSegment(const SegmentHeader& header,
                           absl::Span<const std::byte> payload,
                           absl::Time deadline) override {
    return pipe_->PushSegment(header, payload, deadline);
  }

 private:
  const std::shared_ptr<Pipe> pipe_;
};

// Held by the receiver's handler, which the pipe holds: a weak pointer, so that
// the two do not keep each other.
class InProcessNetwork::ReceiverEnd final : public ReceiverLink {
 public:
  explicit ReceiverEnd(std::weak_ptr<Pipe> pipe) : pipe_(std::move(pipe)) {}
  absl::Status Send(const Posted& m) override { return Push(m); }
  absl::Status Send(const Done& m) override { return Push(m); }
  absl::Status Send(const Verdict& m) override { return Push(m); }
  void Close(const absl::Status& status) override {
    if (const auto pipe = pipe_.lock()) pipe->Close(status);
  }

 private:
  absl::Status Push(Pipe::ToSender message) {
    const auto pipe = pipe_.lock();
    if (pipe == nullptr) return absl::UnavailableError("link closed");
    return pipe->PushAnswer(std::move(message));
  }

  const std::weak_ptr<Pipe> pipe_;
};

InProcessNetwork::InProcessNetwork(Clock* clock) : clock_(clock) {}

InProcessNetwork::~InProcessNetwork() {
  std::vector<std::string> names;
  {
    MutexLock lock(&mu_);
    for (const auto& [name, listener] : listeners_) names.push_back(name);
  }
  for (const std::string& name : names) StopListening(name);
}

absl::StatusOr<std::string> InProcessNetwork::Listen(absl::string_view name,
                                                     LinkAcceptor* acceptor) {
  MutexLock lock(&mu_);
  const auto [it, inserted] = listeners_.try_emplace(std::string(name));
  if (!inserted) {
    return absl::AlreadyExistsError(
        absl::StrCat(kScheme, name, " is being listened at"));
  }
  it->second.acceptor = acceptor;
  return absl::StrCat(kScheme, name);
}

void InProcessNetwork::StopListening(absl::string_view name) {
  std::vector<std::shared_ptr<Pipe>> pipes;
  {
    MutexLock lock(&mu_);
    const auto it = listeners_.find(std::string(name));
    if (it == listeners_.end()) return;
    it->second.stopping = true;
    while (it->second.dialing > 0) dialed_.Wait(&mu_);
    pipes = std::move(it->second.pipes);
    listeners_.erase(it);
  }
  for (const auto& pipe : pipes) {
    pipe->Close(absl::UnavailableError("the receiver is gone"));
    pipe->JoinReceiver();
  }
}

absl::StatusOr<std::unique_ptr<SenderLink>> InProcessNetwork::Dial(
    const std::string& endpoint, const LinkHello& hello,
    std::shared_ptr<LinkSenderHandler> handler, absl::Time deadline) {
  if (clock_->Now() >= deadline) {
    return absl::DeadlineExceededError(
        absl::StrCat("no time left to dial ", endpoint));
  }
  absl::string_view name = endpoint;
  if (!absl::ConsumePrefix(&name, kScheme)) {
    return absl::InvalidArgumentError(
        absl::StrCat("endpoint '", endpoint, "', expected inproc:NAME"));
  }
  LinkAcceptor* acceptor = nullptr;
  LinkEpoch epoch = 0;
  std::vector<std::shared_ptr<Pipe>> finished;
  {
    MutexLock lock(&mu_);
    const auto it = listeners_.find(std::string(name));
    if (it == listeners_.end() || it->second.stopping) {
      return absl::UnavailableError(
          absl::StrCat("nobody listens at ", endpoint));
    }
    acceptor = it->second.acceptor;
    ++it->second.dialing;
    epoch = next_epoch_++;
    auto& pipes = it->second.pipes;
    for (size_t i = pipes.size(); i-- > 0;) {
      if (!pipes[i]->receiver_done()) continue;
      finished.push_back(std::move(pipes[i]));
      pipes.erase(pipes.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  for (const auto& pipe : finished) pipe->JoinReceiver();
  auto pipe = std::make_shared<Pipe>(epoch, clock_, std::move(handler));
  auto accepted =
      acceptor->Accept(hello, epoch, std::make_shared<ReceiverEnd>(pipe));
  std::unique_ptr<SenderLink> link;
  if (accepted.ok()) {
    pipe->Start(*std::move(accepted));
    link = std::make_unique<SenderEnd>(pipe);
  }
  MutexLock lock(&mu_);
  Listener& listener = listeners_.find(std::string(name))->second;
  if (accepted.ok()) listener.pipes.push_back(std::move(pipe));
  --listener.dialing;
  dialed_.SignalAll();
  if (!accepted.ok()) return accepted.status();
  return link;
}

}  // namespace baton::transfer
