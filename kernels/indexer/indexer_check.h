#pragma once

#include "kernels/include/indexer.h"

namespace baton::kernels {

// Aborts on a violated precondition.
void CheckIndexer(const IndexerParams& params);

}  // namespace baton::kernels
