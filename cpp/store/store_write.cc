// Writes: blocks, what is added to them, attributes.
#include <algorithm>
#include <utility>

#include "block_records.h"
#include "everlong/base/out_of_memory.h"
#include "manifest_file.h"
#include "store.h"

namespace everlong::store {

namespace {

std::optional<FilePath> OwnFileFolder(const std::optional<FilePath>& folder) {
  if (!folder) return std::nullopt;
  return *folder / kOwnFileFolder;
}

}  // namespace

Store::Store(Rooms rooms)
    : rooms_(std::move(rooms)), geometry_(rooms_.manifest.geometry), own_files_(OwnFileFolder(rooms_.folder)) {
  if (rooms_.files != nullptr && *rooms_.options.host_bytes > 0) tier_.emplace(*rooms_.options.host_bytes);
  if (rooms_.read_only) return;
  queue_.emplace(rooms_.options.queue_bytes, rooms_.next_id,
                 [this](std::span<const OwnedDraft> blocks, Status& failure) { return Commit(blocks, failure); });
}

Status Store::CheckWritable() const {
  if (rooms_.read_only) return ReadOnlyError("memory '" + rooms_.folder->string() + "' was opened for reading");
  if (rooms_.lock && !rooms_.lock->IsStillIn(*rooms_.folder)) {
    return IoError("the folder of memory '" + rooms_.folder->string() +
                   "' was removed while it was open; what is there now is another's");
  }
  return OkStatus();
}

Status Store::WriteRecords(NewBlock& block) {
  const BlockDraft& draft = *block.draft;
  BlockRecords records(draft.span, *threads_);
  records.AddPages(draft.payload, draft.page_bytes, geometry_);
  std::vector<std::byte> file;
  if (!draft.tensors.empty()) {
    EVERLONG_ASSIGN_OR_RETURN(file, EncodeTensors(draft.tensors));
    records.AddTensors(file);
    EVERLONG_ASSIGN_OR_RETURN(std::vector<TensorRow> tensors, TensorRowsOf(PayloadKind::kTensors, file));
    block.tensors = TensorRecord{{}, std::move(tensors)};
  }
  EVERLONG_ASSIGN_OR_RETURN(block.rows, records.Write(block.id, *rooms_.segments));
  if (!block.tensors) return OkStatus();
  block.tensors->row = std::move(block.rows.back());
  block.rows.pop_back();
  return OkStatus();
}

size_t Store::StoreBlocks(std::span<NewBlock> blocks, Status& failure) {
  size_t stored = 0;
  for (; stored < blocks.size(); ++stored) {
    NewBlock& block = blocks[stored];
    if (failure = WriteRecords(block); !failure.ok()) break;
  }
  if (stored == 0) return 0;
  Status durable = rooms_.segments->Sync();
  if (durable.ok()) durable = rooms_.catalog->Insert(blocks.first(stored));
  if (!durable.ok()) {
    failure = std::move(durable);
    return 0;
  }
  if (!tier_) return stored;
  for (const NewBlock& block : blocks.first(stored)) {
    size_t at = 0;
    for (size_t page = 0; page < block.rows.size(); ++page) {
      const auto bytes = static_cast<size_t>(block.draft->page_bytes[page]);
      tier_->Insert(block.id, static_cast<int32_t>(page), 0, block.rows[page].part_bytes,
                    block.draft->payload.subspan(at, bytes), tier_->erasures());  // Forget waits for write_mutex_
      at += bytes;
    }
  }
  return stored;
}

size_t Store::Commit(std::span<const OwnedDraft> blocks, Status& failure) {
  std::vector<NewBlock> group;
  group.reserve(blocks.size());
  for (const OwnedDraft& block : blocks) group.push_back({block.id(), &block.draft(), {}, {}});
  const std::scoped_lock lock(write_mutex_);
  return StoreBlocks(group, failure);
}

Status Store::Restore(std::span<const OwnedDraft> blocks) {
  for (const OwnedDraft& block : blocks) EVERLONG_RETURN_IF_ERROR(ValidateDraft(block.draft(), geometry_));
  Status failure;
  static_cast<void>(Commit(blocks, failure));
  return failure;
}

Status Store::ReserveIdsBelow(int64_t next) {
  queue_->SkipIdsBelow(next);
  return rooms_.catalog->ReserveIdsBelow(next);
}

Result<int64_t> Store::Submit(const BlockDraft& draft) {
  return OrOutOfMemory([&]() -> Result<int64_t> {
    EVERLONG_RETURN_IF_ERROR(CheckWritable());
    EVERLONG_RETURN_IF_ERROR(ValidateDraft(draft, geometry_));
    if (rooms_.folder) return queue_->Submit(draft);
    // In RAM there is nothing to wait for, and the caller must learn at once that a budget is spent.
    const std::scoped_lock lock(write_mutex_);
    EVERLONG_ASSIGN_OR_RETURN(const int64_t id, queue_->TakeId());
    NewBlock block{id, &draft, {}, {}};
    const Status stored = OrOutOfMemory([&] {
      Status failure;
      return StoreBlocks({&block, 1}, failure) == 1 ? OkStatus() : failure;
    });
    if (stored.ok()) return id;
    queue_->GiveBack(id);
    return stored;
  });
}

Status Store::Flush(std::vector<int64_t>* lost) {
  if (lost != nullptr) lost->clear();
  return queue_ ? OrOutOfMemory([&] { return TryFlush(lost); }) : OkStatus();
}

Status Store::TryFlush(std::vector<int64_t>* lost) {
  std::vector<int64_t> gone;
  Status flushed = queue_->Flush(&gone);
  ids_were_lost_ = ids_were_lost_ || !gone.empty();
  ReserveLostIds();
  if (lost != nullptr) *lost = std::move(gone);
  return flushed;
}

void Store::ReserveLostIds() {
  // A disk that is full refuses this, too: the next flush, or the end of this store, tries again.
  if (!ids_were_lost_ || !CheckWritable().ok()) return;
  ids_were_lost_ = !rooms_.catalog->ReserveIdsBelow(queue_->next_id()).ok();
}

Status Store::AddTags(int64_t block, std::span<const std::string> tags) {
  return OrOutOfMemory([&]() -> Status {
    EVERLONG_RETURN_IF_ERROR(CheckWritable());
    if (queue_) queue_->WaitFor(block);
    return rooms_.catalog->AddTags(block, tags);
  });
}

Status Store::SetAttribute(const std::string& key, const std::string& value) {
  return OrOutOfMemory([&]() -> Status {
    EVERLONG_RETURN_IF_ERROR(CheckWritable());
    const std::scoped_lock lock(manifest_mutex_);
    Manifest changed = rooms_.manifest;
    changed.attributes[key] = value;
    if (rooms_.folder) EVERLONG_RETURN_IF_ERROR(WriteManifest(*rooms_.folder, changed));
    rooms_.manifest = std::move(changed);
    return OkStatus();
  });
}

Status Store::PutFile(const std::string& name, std::span<const std::byte> bytes) {
  EVERLONG_RETURN_IF_ERROR(CheckWritable());
  return own_files_.Put(name, bytes);
}

void Store::SetIndexBytes(int64_t bytes) {
  index_bytes_ = bytes;
  const int64_t all = *rooms_.options.host_bytes;
  const int64_t left = std::max(all / kLeastPayloadShare, all - bytes);
  if (tier_) tier_->SetBudget(left);
  if (!rooms_.folder) rooms_.segments->SetBudget(left);
}

Status Store::WriteManifestNow() const {
  const std::scoped_lock lock(manifest_mutex_);
  return rooms_.folder ? WriteManifest(*rooms_.folder, rooms_.manifest) : OkStatus();
}

}  // namespace everlong::store
