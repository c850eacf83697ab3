// Scripted legs and client for tests of dispatch: they record what the run
// asked for and let the test play the workers.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/check.h"
#include "router/dispatch/legs.h"
#include "router/dispatch/run.h"

namespace baton::router::dispatch {

// One journal for all fakes, so that the order between them can be asserted.
using Journal = std::vector<std::string>;

struct FakePrefillCall {
  registry::WorkerRef worker;
  PrefillStart start;
  std::function<void(PrefillEvent)> send;
  std::vector<std::string> tickets;
  bool cancelled = false;
  bool let_go = false;
};

struct FakeDecodeCall {
  registry::WorkerRef worker;
  DecodeStart start;
  std::function<void(DecodeEvent)> send_now;
  int reads = 0;  // asked for and not answered
  std::vector<Attempt> retickets;
  bool cancelled = false;
  bool let_go = false;

  // A message may only follow a read.
  void Send(DecodeEvent event) {
    CHECK(reads > 0) << "the run did not ask for an event";
    --reads;
    send_now(std::move(event));
  }
  void End(absl::Status status) { send_now(LegEnded{std::move(status)}); }
};

class FakeLegs final : public LegFactory {
 public:
  explicit FakeLegs(Journal* journal) : journal_(journal) {}

  std::unique_ptr<PrefillLeg> StartPrefill(
      const registry::WorkerRef& worker, const PrefillStart& start,
      std::function<void(PrefillEvent)> on_event) override {
    auto call = std::make_shared<FakePrefillCall>();
    call->worker = worker;
    call->start = start;
    call->send = std::move(on_event);
    prefills.push_back(call);
    journal_->push_back(
        absl::StrCat("admit ", worker.name, " attempt ", start.attempt));
    return std::make_unique<PrefillHandle>(journal_, call);
  }
  std::unique_ptr<DecodeLeg> StartDecode(
      const registry::WorkerRef& worker, const DecodeStart& start,
      std::function<void(DecodeEvent)> on_event) override {
    auto call = std::make_shared<FakeDecodeCall>();
    call->worker = worker;
    call->start = start;
    call->send_now = std::move(on_event);
    decodes.push_back(call);
    journal_->push_back(absl::StrCat("start ", worker.name));
    return std::make_unique<DecodeHandle>(journal_, call);
  }

  FakePrefillCall& prefill() { return *prefills.back(); }
  FakeDecodeCall& decode() { return *decodes.back(); }
  // Calls that neither ended by the run's will nor were let go.
  int held() const {
    int out = 0;
    for (const auto& call : prefills) out += !call->cancelled && !call->let_go;
    for (const auto& call : decodes) out += !call->cancelled && !call->let_go;
    return out;
  }

  std::vector<std::shared_ptr<FakePrefillCall>> prefills;
  std::vector<std::shared_ptr<FakeDecodeCall>> decodes;

 private:
  class PrefillHandle final : public PrefillLeg {
   public:
    PrefillHandle(Journal* journal, std::shared_ptr<FakePrefillCall> call)
        : journal_(journal), call_(std::move(call)) {}
    ~PrefillHandle() override {
      if (call_->let_go) return;
      call_->cancelled = true;
      journal_->push_back(absl::StrCat("cancel ", call_->worker.name));
    }
    void Attach(const OpaqueTicket& ticket) override {
      call_->tickets.push_back(ticket.bytes);
      journal_->push_back(absl::StrCat("attach ", call_->worker.name));
    }
    void Cancel() override { call_->cancelled = true; }
    void LetGo() override { call_->let_go = true; }

   private:
    Journal* const journal_;
    const std::shared_ptr<FakePrefillCall> call_;
  };
  class DecodeHandle final : public DecodeLeg {
   public:
    DecodeHandle(Journal* journal, std::shared_ptr<FakeDecodeCall> call)
        : journal_(journal), call_(std::move(call)) {}
    ~DecodeHandle() override {
      if (call_->let_go) return;
      call_->cancelled = true;
      journal_->push_back(absl::StrCat("cancel ", call_->worker.name));
    }
    void Next() override { ++call_->reads; }
    void Reticket(Attempt attempt) override {
      call_->retickets.push_back(attempt);
      journal_->push_back(absl::StrCat("reticket ", attempt));
    }
    void Cancel() override { call_->cancelled = true; }
    void LetGo() override { call_->let_go = true; }

   private:
    Journal* const journal_;
    const std::shared_ptr<FakeDecodeCall> call_;
  };

  Journal* const journal_;
};

// A client that reads at once, or only when told.
class FakeSink final : public ClientSink {
 public:
  void Write(const ClientEvent& event) override {
    events.push_back(event);
    if (reading) {
      run->OnWriteDone(true);
    } else {
      ++unread;
    }
  }
  void Cut(const absl::Status& why) override {
    cut = why;
    unread = 0;
    run->OnWriteDone(false);
  }
  void Finish(const absl::Status& status) override {
    CHECK(!finished) << "finished twice";
    finished = true;
    final = status;
  }
  void TakeOne() {
    --unread;
    run->OnWriteDone(true);
  }

  Run* run = nullptr;
  bool reading = true;
  int unread = 0;
  std::vector<ClientEvent> events;
  bool finished = false;
  absl::Status final;
  absl::Status cut;
};

}  // namespace baton::router::dispatch
