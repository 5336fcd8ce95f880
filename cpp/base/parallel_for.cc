#include "everlong/base/parallel_for.h"

#include <atomic>

namespace everlong {
namespace {

std::atomic<ParallelForHook> g_hook{nullptr};

}  // namespace

void SetParallelForHook(ParallelForHook hook) { g_hook.store(hook, std::memory_order_release); }

void ParallelForErased(int64_t begin, int64_t end, int64_t grain, const void* context, ParallelBody body) {
  const ParallelForHook hook = g_hook.load(std::memory_order_acquire);
  if (hook == nullptr || end - begin <= grain) {
    body(context, begin, end);
    return;
  }
  hook(begin, end, grain, context, body);
}

}  // namespace everlong
