#include "common/handoff/ticket_proto.h"

#include "common/base/status_macros.h"
#include "common/request/request.h"
#include "common/rpc/convert.h"

namespace baton::handoff {

v1::Ticket TicketToProto(const Ticket& ticket) {
  v1::Ticket out;
  *out.mutable_handoff() = rpc::HandoffToProto(ticket.handoff, ticket.attempt);
  out.set_receiver(ticket.receiver);
  out.set_receiver_incarnation(ticket.receiver_incarnation);
  for (const std::string& endpoint : ticket.endpoints) {
    out.add_endpoints(endpoint);
  }
  out.set_state_format_hash(BytesOf(ticket.state_format_hash));
  out.set_lease_ms(absl::ToInt64Milliseconds(ticket.lease));
  return out;
}

absl::StatusOr<Ticket> TicketFromProto(const v1::Ticket& proto) {
  ASSIGN_OR_RETURN(const rpc::HandoffKey key,
                   rpc::HandoffFromProto(proto.handoff()));
  Ticket out;
  out.handoff = key.handoff;
  out.attempt = key.attempt;
  out.receiver = proto.receiver();
  out.receiver_incarnation = proto.receiver_incarnation();
  out.endpoints.assign(proto.endpoints().begin(), proto.endpoints().end());
  if (out.endpoints.empty()) {
    return request::InvalidField("ticket.endpoints",
                                 "empty, expected one per rank");
  }
  ASSIGN_OR_RETURN(out.state_format_hash,
                   rpc::DigestFromBytes(proto.state_format_hash(),
                                        "ticket.state_format_hash"));
  if (proto.lease_ms() < 0) {
    return request::InvalidField("ticket.lease_ms", "negative");
  }
  out.lease = absl::Milliseconds(proto.lease_ms());
  return out;
}

}  // namespace baton::handoff
