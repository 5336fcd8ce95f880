// Writes: blocks, what is added to them, attributes.
#include <algorithm>
#include <utility>

#include "block_records.h"
#include "everlong/base/out_of_memory.h"
#include "manifest_file.h"
#include "writer.h"

namespace everlong::store {

namespace {

std::optional<FilePath> OwnFileFolder(const std::optional<FilePath>& folder) {
  if (!folder) return std::nullopt;
  return *folder / kOwnFileFolder;
}

// Return about what a block takes in the catalog.
int64_t RowBytes(const BlockDraft& draft) {
  auto bytes = static_cast<int64_t>(draft.token_ids.size_bytes() + draft.source.size());
  for (const std::string& tag : draft.tags) bytes += std::ssize(tag);
  for (const GraphNode& node : draft.graph.put_nodes) {
    bytes += std::ssize(std::as_bytes(std::span(node.vector))) + std::ssize(std::as_bytes(std::span(node.linear_sum)));
  }
  return bytes;
}

// Return what payload may take of `host_bytes` beside indexes and the catalog of a folder.
int64_t PayloadShare(int64_t host_bytes, int64_t index_bytes) {
  return std::max(host_bytes / kLeastPayloadShare, host_bytes - index_bytes - CatalogShareOf(host_bytes));
}

}  // namespace

StoreState::StoreState(Rooms rooms)
    : rooms_(std::move(rooms)), geometry_(rooms_.manifest.geometry), own_files_(OwnFileFolder(rooms_.folder)) {
  if (rooms_.files != nullptr && *rooms_.options.host_bytes > 0) {
    tier_.emplace(PayloadShare(*rooms_.options.host_bytes, 0));
  }
  if (rooms_.read_only) return;
  queue_.emplace(
      rooms_.options.queue_bytes, rooms_.next_id,
      [this](std::span<const OwnedDraft> blocks, Status& failure) { return Writer(*this).Commit(blocks, failure); });
}

Status StoreState::CheckWritable() const {
  if (rooms_.read_only) return ReadOnlyError("memory '" + rooms_.folder->string() + "' was opened for reading");
  if (rooms_.lock && !rooms_.lock->IsStillIn(*rooms_.folder)) {
    return IoError("the folder of memory '" + rooms_.folder->string() +
                   "' was removed while it was open; what is there now is another's");
  }
  return OkStatus();
}

Result<int64_t> StoreState::HostBytes() const {
  const int64_t catalog = rooms_.catalog->RamBytes();
  if (rooms_.folder) return catalog + (tier_ ? tier_->bytes() : 0);
  EVERLONG_ASSIGN_OR_RETURN(const int64_t payload, rooms_.segments->Bytes());
  return payload + catalog + own_files_.RamBytes();
}

Status StoreState::CheckRoom(int64_t more) const {
  if (rooms_.folder) return OkStatus();
  EVERLONG_ASSIGN_OR_RETURN(const int64_t held, HostBytes());
  const int64_t most = *rooms_.options.host_bytes - index_bytes_;
  if (held + more <= most) return OkStatus();
  return CapacityError("a memory in RAM holds " + std::to_string(held) + " bytes and may hold " + std::to_string(most) +
                       " (host_bytes, less what its indexes take): " + std::to_string(more) +
                       " more do not fit. What is there stays; forget something, or give the memory a folder");
}

Status Writer::WriteRecords(NewBlock& block) {
  const BlockDraft& draft = *block.draft;
  BlockRecords records(draft.span, state_.threads());
  records.AddPages(draft.payload, draft.page_bytes, state_.geometry());
  // In RAM what was written together goes together, and pages may be replaced.
  BlockRecords apart(draft.span, state_.threads());
  BlockRecords& of_tensors = state_.folder() ? records : apart;
  std::vector<std::byte> file;
  if (!draft.tensors.empty()) {
    EVERLONG_ASSIGN_OR_RETURN(file, EncodeTensors(draft.tensors));
    of_tensors.AddTensors(file);
    EVERLONG_ASSIGN_OR_RETURN(std::vector<TensorRow> tensors, TensorRowsOf(PayloadKind::kTensors, file));
    block.tensors = TensorRecord{{}, std::move(tensors)};
  }
  EVERLONG_RETURN_IF_ERROR(state_.CheckRoom(static_cast<int64_t>(records.bytes() + apart.bytes()) + RowBytes(draft)));
  EVERLONG_ASSIGN_OR_RETURN(block.rows, records.Write(block.id, segments()));
  EVERLONG_ASSIGN_OR_RETURN(std::vector<PageRow> more, apart.Write(block.id, segments()));
  std::ranges::move(more, std::back_inserter(block.rows));
  if (!block.tensors) return OkStatus();
  block.tensors->row = std::move(block.rows.back());
  block.rows.pop_back();
  return OkStatus();
}

size_t Writer::StoreBlocks(std::span<NewBlock> blocks, Status& failure) {
  size_t stored = 0;
  for (; stored < blocks.size(); ++stored) {
    NewBlock& block = blocks[stored];
    if (failure = WriteRecords(block); !failure.ok()) break;
  }
  if (stored == 0) return 0;
  Status durable = segments().Sync();
  if (durable.ok()) durable = catalog().Insert(blocks.first(stored));
  if (!durable.ok()) {
    failure = std::move(durable);
    return 0;
  }
  HostTier* const tier = state_.tier();
  if (tier == nullptr) return stored;
  for (const NewBlock& block : blocks.first(stored)) {
    size_t at = 0;
    for (size_t page = 0; page < block.rows.size(); ++page) {
      const auto bytes = static_cast<size_t>(block.draft->page_bytes[page]);
      tier->Insert(block.id, static_cast<int32_t>(page), 0, block.rows[page], block.draft->payload.subspan(at, bytes),
                   tier->erasures());  // Forget waits for the turn
      at += bytes;
    }
  }
  return stored;
}

size_t Writer::Commit(std::span<const OwnedDraft> blocks, Status& failure) {
  std::vector<NewBlock> group;
  group.reserve(blocks.size());
  for (const OwnedDraft& block : blocks) group.push_back({block.id(), &block.draft(), {}, {}});
  return StoreBlocks(group, failure);
}

Status Writer::Restore(std::span<const OwnedDraft> blocks) {
  for (const OwnedDraft& block : blocks) EVERLONG_RETURN_IF_ERROR(ValidateDraft(block.draft(), state_.geometry()));
  Status failure;
  static_cast<void>(Commit(blocks, failure));
  return failure;
}

Status Writer::ReserveIdsBelow(int64_t next) {
  state_.queue().SkipIdsBelow(next);
  return catalog().ReserveIdsBelow(next);
}

Result<int64_t> MemoryStore::Submit(const BlockDraft& draft) {
  return OrOutOfMemory([&]() -> Result<int64_t> {
    EVERLONG_RETURN_IF_ERROR(state_->CheckWritable());
    EVERLONG_RETURN_IF_ERROR(ValidateDraft(draft, state_->geometry()));
    AppendQueue& queue = state_->queue();
    if (state_->folder()) return queue.Submit(draft);
    // In RAM there is nothing to wait for, and the caller must learn at once that a budget is spent.
    Writer writer(*state_);
    EVERLONG_ASSIGN_OR_RETURN(const int64_t id, queue.TakeId());
    NewBlock block{id, &draft, {}, {}};
    const Status stored = OrOutOfMemory([&] {
      Status failure;
      return writer.StoreBlocks({&block, 1}, failure) == 1 ? OkStatus() : failure;
    });
    if (stored.ok()) return id;
    queue.GiveBack(id);
    return stored;
  });
}

Status MemoryStore::Flush(std::vector<int64_t>* lost) {
  if (lost != nullptr) lost->clear();
  return OrOutOfMemory([&] { return state_->Flush(lost); });
}

Result<int64_t> MemoryStore::WaitForSubmitted() const {
  return OrOutOfMemory([&] { return state_->WaitForSubmitted(); });
}

Result<int64_t> StoreState::WaitForSubmitted() {
  if (!queue_) return 0;
  Result<int64_t> next = queue_->WaitForSubmitted();
  ReserveLostIds();
  return next;
}

Status StoreState::Flush(std::vector<int64_t>* lost) {
  if (!queue_) return OkStatus();
  std::vector<int64_t> gone;
  Status flushed = queue_->Flush(&gone);
  if (!gone.empty()) ids_were_lost_ = true;
  ReserveLostIds();
  if (lost != nullptr) *lost = std::move(gone);
  return flushed;
}

void StoreState::ReserveLostIds() {
  // A disk that is full refuses this, too: the next flush, or the end of this store, tries again.
  if (!ids_were_lost_ || !CheckWritable().ok() || !ids_were_lost_.exchange(false)) return;
  if (!Writer(*this).catalog().ReserveIdsBelow(queue_->next_id()).ok()) ids_were_lost_ = true;
}

Status MemoryStore::ReplacePages(int64_t block, std::span<const std::byte> payload, std::span<const int64_t> page_bytes,
                                 std::span<const std::string> tags) {
  return OrOutOfMemory([&]() -> Status {
    EVERLONG_RETURN_IF_ERROR(state_->CheckWritable());
    EVERLONG_ASSIGN_OR_RETURN(const BlockInfo info, Block(block));
    return Writer(*state_).ReplacePages(info, payload, page_bytes, tags);
  });
}

Status Writer::ReplacePages(const BlockInfo& block, std::span<const std::byte> payload,
                            std::span<const int64_t> page_bytes, std::span<const std::string> tags) {
  EVERLONG_RETURN_IF_ERROR(ValidatePages(block.span, payload, page_bytes, state_.geometry()));
  BlockRecords records(block.span, state_.threads());
  records.AddPages(payload, page_bytes, state_.geometry());
  EVERLONG_RETURN_IF_ERROR(state_.CheckRoom(static_cast<int64_t>(records.bytes())));
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<PageRow> rows, records.Write(block.id, segments()));
  EVERLONG_RETURN_IF_ERROR(segments().Sync());
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<PageRow> old,
                            catalog().ReplacePages(block.id, rows, std::ssize(payload), tags));
  if (HostTier* const tier = state_.tier()) tier->Erase({&block.id, 1});
  FreeInRam(old);
  return OkStatus();
}

Status MemoryStore::AddTags(int64_t block, std::span<const std::string> tags) {
  return OrOutOfMemory([&]() -> Status {
    EVERLONG_RETURN_IF_ERROR(state_->CheckWritable());
    state_->WaitForBlock(block);
    int64_t bytes = 0;
    for (const std::string& tag : tags) bytes += std::ssize(tag);
    EVERLONG_RETURN_IF_ERROR(state_->CheckRoom(bytes));
    return Writer(*state_).catalog().AddTags(block, tags);
  });
}

Status MemoryStore::SetTags(int64_t block, std::span<const std::string> tags) {
  return OrOutOfMemory([&]() -> Status {
    EVERLONG_RETURN_IF_ERROR(state_->CheckWritable());
    state_->WaitForBlock(block);
    return Writer(*state_).catalog().SetTags(block, tags);
  });
}

Status StoreState::SetAttribute(const std::string& key, const std::string& value) {
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

Status StoreState::PutFile(const std::string& name, std::span<const std::byte> bytes) {
  EVERLONG_RETURN_IF_ERROR(CheckWritable());
  EVERLONG_RETURN_IF_ERROR(CheckRoom(std::ssize(bytes)));
  return own_files_.Put(name, bytes);
}

void StoreState::SetIndexBytes(int64_t bytes) {
  index_bytes_ = bytes;
  if (tier_) tier_->SetBudget(PayloadShare(*rooms_.options.host_bytes, bytes));
}

Manifest StoreState::manifest() const {
  const std::scoped_lock lock(manifest_mutex_);
  if (rooms_.read_only) {
    // A writer beside us may have set attributes. While its file cannot be read, the last manifest that was read stays.
    if (Result<Manifest> now = ReadManifest(*rooms_.folder); now.ok()) rooms_.manifest = std::move(now).value();
  }
  return rooms_.manifest;
}

Status StoreState::WriteManifestNow() const {
  const std::scoped_lock lock(manifest_mutex_);
  return rooms_.folder ? WriteManifest(*rooms_.folder, rooms_.manifest) : OkStatus();
}

}  // namespace everlong::store
