// Tickets on the wire, for the services of both worker roles.
#pragma once

#include "absl/status/statusor.h"
#include "baton/v1/types.pb.h"
#include "common/handoff/ticket.h"

namespace baton::handoff {

v1::Ticket TicketToProto(const Ticket& ticket);
// InvalidArgument naming the field that is missing or malformed.
absl::StatusOr<Ticket> TicketFromProto(const v1::Ticket& proto);

}  // namespace baton::handoff
