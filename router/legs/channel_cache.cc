#include "router/legs/channel_cache.h"

#include "common/rpc/server.h"

namespace baton::router::legs {

std::shared_ptr<grpc::Channel> ChannelCache::Get(
    const registry::WorkerRef& worker) {
  MutexLock lock(&mu_);
  Entry& entry = channels_[worker.name];
  if (entry.channel == nullptr || !(entry.worker == worker)) {
    entry = {worker, rpc::CreateChannel(worker.endpoint)};
  }
  return entry.channel;
}

void ChannelCache::Drop(const registry::WorkerRef& worker,
                        const std::shared_ptr<grpc::Channel>& channel) {
  MutexLock lock(&mu_);
  const auto it = channels_.find(worker.name);
  if (it != channels_.end() && it->second.channel == channel) {
    channels_.erase(it);
  }
}

}  // namespace baton::router::legs
