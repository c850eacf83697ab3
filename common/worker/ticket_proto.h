// Tickets on the wire (types.proto Ticket) and back.
#pragma once

#include "absl/status/statusor.h"
#include "baton/v1/types.pb.h"
#include "common/handoff/ticket.h"

namespace baton::worker {

v1::Ticket TicketToProto(const handoff::Ticket& ticket);
// INVALID_ARGUMENT names the field: bad hand-off, hash of another length, no
// endpoint, incarnation 0.
absl::StatusOr<handoff::Ticket> TicketFromProto(const v1::Ticket& proto);

}  // namespace baton::worker
