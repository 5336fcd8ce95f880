#include "append_queue.h"

#include <algorithm>
#include <new>
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
  return next_id_ <= kLargestBlockId ? OkStatus() : CapacityError("all ids of blocks are used up");
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

int64_t AppendQueue::next_id() const {
  const std::scoped_lock lock(mutex_);
  return next_id_;
}

Result<int64_t> AppendQueue::Submit(const BlockDraft& draft) {
  const int64_t bytes = OwnedDraft::BytesOf(draft);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return pending_.empty() || bytes_ + bytes <= budget_ || !failure_.ok(); });
  EVERLONG_RETURN_IF_ERROR(failure_);
  EVERLONG_RETURN_IF_ERROR(CheckIdsAreLeft());
  if (!thread_.joinable()) {  // before a block is in the queue: without a thread it would stay there for good
    try {
      thread_ = std::thread([this] { Work(); });
    } catch (const std::system_error& error) {
      return IoError(std::string("cannot start the thread that stores blocks: ") + error.what());
    }
  }
  // Allocate everything before anything changes.
  OwnedDraft owned(next_id_, draft);
  if (queue_.size() == queue_.capacity()) queue_.reserve(2 * queue_.size() + 1);
  pending_.insert(next_id_);
  queue_.push_back(std::move(owned));
  const int64_t id = next_id_++;
  bytes_ += bytes;
  changed_.notify_all();
  return id;
}

void AppendQueue::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::vector<OwnedDraft> group = std::exchange(queue_, {});
    size_t stored = 0;
    const bool stores = failure_.ok();  // nothing is stored behind a lost block
    if (stores) {
      lock.unlock();
      Status failure;
      try {
        stored = commit_(group, failure);
      } catch (const std::bad_alloc&) {
        failure = CapacityError("out of memory");  // short enough that the string allocates nothing
      }
      lock.lock();
      if (!failure.ok()) NoteFailure(failure);
      failure_ = std::move(failure);
    }
    for (size_t i = 0; i < group.size(); ++i) {
      bytes_ -= OwnedDraft::BytesOf(group[i].draft());
      auto done = pending_.extract(group[i].id());
      if (i >= stored) lost_.insert(std::move(done));
    }
    changed_.notify_all();
  }
}

void AppendQueue::NoteFailure(const Status& failure) {
  ++failures_;
  try {
    newest_failure_ = failure;
  } catch (const std::bad_alloc&) {
    newest_failure_ = CapacityError("out of memory");
  }
}

Result<int64_t> AppendQueue::WaitForSubmitted() {
  std::unique_lock lock(mutex_);
  const int64_t behind = next_id_;
  const int64_t failures = failures_;
  changed_.wait(lock, [this, behind] { return pending_.empty() || *pending_.begin() >= behind; });
  EVERLONG_RETURN_IF_ERROR(failure_);
  if (failures_ != failures) return newest_failure_;  // another caller's Flush has taken it
  return behind;
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
  if (lost != nullptr) lost->assign(lost_.begin(), lost_.end());
  lost_.clear();
  return std::exchange(failure_, OkStatus());
}

Status AppendQueue::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

}  // namespace everlong::store
