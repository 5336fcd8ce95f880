#include "everlong/kv/upload_ring.h"

#include <algorithm>
#include <utility>

#include "everlong/base/check.h"

namespace everlong::kv {
namespace {

constexpr int64_t kAlignment = 256;

}  // namespace

Result<std::unique_ptr<UploadRing>> UploadRing::Make(std::shared_ptr<StreamRuntime> runtime, int64_t bytes) {
  EVERLONG_ASSIGN_OR_RETURN(std::byte* const pinned, runtime->AllocateHost(bytes));
  return std::unique_ptr<UploadRing>(new UploadRing(std::move(runtime), pinned, bytes));
}

UploadRing::UploadRing(std::shared_ptr<StreamRuntime> runtime, std::byte* pinned, int64_t bytes)
    : runtime_(std::move(runtime)), pinned_(pinned), bytes_(bytes) {}

UploadRing::~UploadRing() {
  while (!under_way_.empty()) {
    static_cast<void>(runtime_->WaitFor(under_way_.front().copied));
    GiveBackOldest();
  }
  runtime_->FreeHost(pinned_);
}

Status UploadRing::Upload(void* stream, std::byte* to, std::span<const std::byte> from) {
  EVERLONG_CHECK(std::ssize(from) <= bytes_);
  if (from.empty()) return OkStatus();
  const std::scoped_lock lock(mutex_);
  EVERLONG_ASSIGN_OR_RETURN(const int64_t begin, Take(std::ssize(from)));
  std::ranges::copy(from, pinned_ + begin);
  EVERLONG_RETURN_IF_ERROR(runtime_->Copy(stream, {to, pinned_ + begin, std::ssize(from)}));
  Result<StreamRuntime::Event> copied = runtime_->Record(stream);
  if (!copied.ok()) {
    runtime_->Synchronize(stream);  // without the event nobody would know when the part is free
    return copied.status();
  }
  under_way_.push_back({begin, *copied});
  end_ = std::min(bytes_, (begin + std::ssize(from) + kAlignment - 1) / kAlignment * kAlignment);
  return OkStatus();
}

// Copies under way lie from the oldest part's begin to end_, around the ring's end if end_ is not above it.
bool UploadRing::TryTake(int64_t bytes, int64_t* begin) const {
  const int64_t oldest = under_way_.empty() ? 0 : under_way_.front().begin;
  if (under_way_.empty()) {
    *begin = 0;
    return true;
  }
  if (oldest < end_) {
    *begin = bytes <= bytes_ - end_ ? end_ : 0;
    return bytes <= bytes_ - end_ || bytes <= oldest;
  }
  *begin = end_;
  return bytes <= oldest - end_;
}

Result<int64_t> UploadRing::Take(int64_t bytes) {
  while (!under_way_.empty()) {
    const Result<bool> passed = runtime_->HasPassed(under_way_.front().copied);
    if (passed.ok() && !*passed) break;
    GiveBackOldest();  // a failed copy is over too; the next use of the device reports it
  }
  int64_t begin = 0;
  while (!TryTake(bytes, &begin)) {
    static_cast<void>(runtime_->WaitFor(under_way_.front().copied));  // its error is not this caller's
    GiveBackOldest();
  }
  return begin;
}

void UploadRing::GiveBackOldest() {
  runtime_->Destroy(under_way_.front().copied);
  under_way_.pop_front();
}

}  // namespace everlong::kv
