// What `baton inspect DIR` prints.
#pragma once

#include <string>

#include "common/checkpoint/checkpoint.h"

namespace baton::checkpoint {

// A text of several lines: files, tensors and bytes, dtype census, layers by
// kind, encodings found by module kind, drafter, digests. The order of lines is
// fixed, so two reports can be compared.
std::string CensusReport(const Checkpoint& checkpoint);

}  // namespace baton::checkpoint
