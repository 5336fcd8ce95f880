#include "append_queue.h"

#include <algorithm>
#include <iterator>
#include <system_error>
#include <utility>

namespace everlong::store {

OwnedDraft::OwnedDraft(int64_t id, const BlockDraft& draft)
    : id_(id),
      token_ids_(draft.token_ids.begin(), draft.token_ids.end()),
      page_bytes_(draft.page_bytes.begin(), draft.page_bytes.end()),
      tensors_(draft.tensors.begin(), draft.tensors.end()),
      draft_(draft) {
  draft_.token_ids = token_ids_;
  if (draft_.payload_owner == nullptr) {
    payload_.assign(draft.payload.begin(), draft.payload.end());
    draft_.payload = payload_;
  }
  draft_.page_bytes = page_bytes_;
  for (const TensorView& tensor : tensors_) {
    tensor_bytes_.insert(tensor_bytes_.end(), tensor.bytes.begin(), tensor.bytes.end());
  }
  size_t at = 0;
  for (TensorView& tensor : tensors_) {
    tensor.bytes = std::span(tensor_bytes_).subspan(at, tensor.bytes.size());
    at += tensor.bytes.size();
  }
  draft_.tensors = tensors_;
}

int64_t OwnedDraft::BytesOf(const BlockDraft& draft) {
  auto bytes = static_cast<int64_t>(draft.payload.size());
  for (const TensorView& tensor : draft.tensors) bytes += std::ssize(tensor.bytes);
  return bytes;
}

AppendQueue::~AppendQueue() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Status AppendQueue::CheckIdsAreLeft() const {
  return next_id_ <= kLargestBlockId ? OkStatus() : CapacityError("every id that a block may have was given");
}

Result<int64_t> AppendQueue::TakeId() {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(CheckIdsAreLeft());
  return next_id_++;
}

void AppendQueue::GiveBack(int64_t id) {
  const std::scoped_lock lock(mutex_);
  if (next_id_ == id + 1) next_id_ = id;
}

void AppendQueue::SkipIdsBelow(int64_t next) {
  const std::scoped_lock lock(mutex_);
  next_id_ = std::max(next_id_, next);
}

Result<int64_t> AppendQueue::Submit(const BlockDraft& draft) {
  const int64_t bytes = OwnedDraft::BytesOf(draft);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return pending_.empty() || bytes_ + bytes <= budget_ || !failure_.ok(); });
  EVERLONG_RETURN_IF_ERROR(failure_);
  EVERLONG_RETURN_IF_ERROR(CheckIdsAreLeft());
  if (!thread_.joinable()) {  // before a block stands in the queue, for without one it would stand there for good
    try {
      thread_ = std::thread([this] { Work(); });
    } catch (const std::system_error& error) {
      return IoError(std::string("cannot start the thread that stores blocks: ") + error.what());
    }
  }
  const int64_t id = next_id_++;
  queue_.emplace_back(id, draft);
  pending_.insert(id);
  bytes_ += bytes;
  changed_.notify_all();
  return id;
}

void AppendQueue::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::vector<OwnedDraft> group(std::move_iterator(queue_.begin()), std::move_iterator(queue_.end()));
    queue_.clear();
    size_t stored = 0;
    Status failure = failure_;  // behind a block that is lost nothing is stored
    if (failure.ok()) {
      lock.unlock();
      stored = commit_(group, failure);
      lock.lock();
    }
    for (size_t i = 0; i < group.size(); ++i) {
      pending_.erase(group[i].id());
      bytes_ -= OwnedDraft::BytesOf(group[i].draft());
      if (i >= stored) lost_.push_back(group[i].id());
    }
    failure_ = failure;
    changed_.notify_all();
  }
}

void AppendQueue::Wait() {
  std::unique_lock lock(mutex_);
  if (pending_.empty()) return;
  const int64_t last = *pending_.rbegin();
  changed_.wait(lock, [this, last] { return pending_.empty() || *pending_.begin() > last; });
}

void AppendQueue::WaitFor(int64_t id) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this, id] { return pending_.empty() || *pending_.begin() > id; });
}

Status AppendQueue::Flush(std::vector<int64_t>* lost) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return pending_.empty(); });
  if (lost != nullptr) *lost = lost_;
  lost_.clear();
  return std::exchange(failure_, OkStatus());
}

Status AppendQueue::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

}  // namespace everlong::store
