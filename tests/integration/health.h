// grpc.health.v1 without its generated code, which Debian does not ship: the
// messages are one string and one enum.
#pragma once

#include <string>

namespace baton::integration {

enum class HealthState { kUnreachable, kServing, kNotServing };

// What the server at host:port says about itself as a whole.
HealthState Health(const std::string& address);

}  // namespace baton::integration
