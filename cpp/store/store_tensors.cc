// Tensors of blocks: one record holds all tensors of a block.
#include <algorithm>
#include <utility>

#include "block_records.h"
#include "everlong/base/crc32c.h"
#include "everlong/base/out_of_memory.h"
#include "writer.h"

namespace everlong::store {
namespace {

std::string NameOf(int64_t block, const std::string& tensor) {
  return "block " + std::to_string(block) + " tensor '" + tensor + "'";
}

}  // namespace

// A catalog that was opened for reading may still be of schema 1. Then the records say what there is.
Result<std::vector<TensorRow>> StoreState::TensorRows(int64_t block) const {
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, rooms_.catalog->Schema());
  if (schema >= 2) return rooms_.catalog->Tensors(block);
  EVERLONG_RETURN_IF_ERROR(rooms_.catalog->Block(block).status());
  std::vector<TensorRow> rows;
  for (const PayloadKind kind : kTensorKinds) {
    const Result<PageRow> record = rooms_.catalog->FindRecord(block, kind);
    if (record.status().code() == StatusCode::kNotFound) continue;
    EVERLONG_RETURN_IF_ERROR(record.status());
    EVERLONG_ASSIGN_OR_RETURN(const auto payload, ReadRecordPayload(*record, "block " + std::to_string(block)));
    EVERLONG_ASSIGN_OR_RETURN(std::vector<TensorRow> some, TensorRowsOf(kind, payload));
    std::ranges::move(some, std::back_inserter(rows));
  }
  std::ranges::sort(rows, {}, [](const TensorRow& row) { return row.info.name; });
  return rows;
}

Result<PlacedTensor> StoreState::PlaceOf(int64_t block, const std::string& name) const {
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, rooms_.catalog->Schema());
  if (schema >= 2) return rooms_.catalog->FindTensor(block, name);
  EVERLONG_ASSIGN_OR_RETURN(std::vector<TensorRow> rows, TensorRows(block));
  const auto found = std::ranges::find_if(rows, [&name](const TensorRow& row) { return row.info.name == name; });
  if (found == rows.end()) return NotFoundError("block " + std::to_string(block) + " has no tensor '" + name + "'");
  EVERLONG_ASSIGN_OR_RETURN(PageRow record, rooms_.catalog->FindRecord(block, found->record));
  return PlacedTensor{std::move(*found), std::move(record)};
}

Result<std::vector<TensorInfo>> MemoryStore::Tensors(int64_t block) const {
  state_->WaitForBlock(block);
  EVERLONG_ASSIGN_OR_RETURN(std::vector<TensorRow> rows, state_->TensorRows(block));
  std::vector<TensorInfo> infos;
  infos.reserve(rows.size());
  for (TensorRow& row : rows) infos.push_back(std::move(row.info));
  return infos;
}

Result<Tensor> MemoryStore::ReadTensor(int64_t block, const std::string& name) const {
  state_->WaitForBlock(block);
  return state_->CommittedTensor(block, name);
}

Result<Tensor> StoreState::TensorAt(int64_t block, PlacedTensor place) const {
  const TensorRow& row = place.tensor;
  const std::string name = NameOf(block, row.info.name);
  const int64_t parts = std::ssize(place.record.part_crcs);
  if (parts != 1 || row.begin < 0 || row.info.bytes < 0 || row.info.bytes > place.record.part_bytes - row.begin) {
    return CorruptError(name + ": its record has no such bytes");
  }
  const SegmentSpot spot{place.record.segment, place.record.offset + RecordHeaderBytes(parts) + row.begin};
  std::vector<std::byte> bytes(static_cast<size_t>(row.info.bytes));
  if (!bytes.empty()) EVERLONG_RETURN_IF_ERROR(Under(name, rooms_.segments->Read(spot, bytes)));
  if (Crc32c(bytes) != row.data_crc) {
    return CorruptError(name + ": checksum mismatch in '" + rooms_.segments->Name(spot.segment) + "' at byte " +
                        std::to_string(spot.offset) + "; the rest of the block is readable");
  }
  TensorInfo& info = place.tensor.info;
  return Tensor{std::move(info.name), std::move(info.dtype), std::move(info.shape), std::move(bytes)};
}

Result<Tensor> StoreState::CommittedTensor(int64_t block, const std::string& name) const {
  std::optional<PageRow> failed;
  while (true) {
    EVERLONG_ASSIGN_OR_RETURN(PlacedTensor place, PlaceOf(block, name));
    const bool again = failed == place.record;
    failed = place.record;
    Result<Tensor> tensor = TensorAt(block, std::move(place));
    // A record that fails is read once more: a writer may have replaced the segment's file. And since the row was
    // found, the block's tensors may have been replaced and the bytes given back. Then the row names another record.
    if (tensor.ok() || again) return tensor;
    if (rooms_.files != nullptr) rooms_.files->Reopen();
  }
}

Result<std::vector<Tensor>> StoreState::CommittedTensors(int64_t block) const {
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<TensorRow> rows, TensorRows(block));
  std::vector<Tensor> tensors;
  tensors.reserve(rows.size());
  for (const TensorRow& row : rows) {
    EVERLONG_ASSIGN_OR_RETURN(Tensor tensor, CommittedTensor(block, row.info.name));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Result<std::map<int64_t, uint32_t>> MemoryStore::TensorChecksums(int64_t first, int64_t last,
                                                                 std::span<const std::string> names) const {
  return state_->catalog().TensorChecksums(first, last, names);
}

Status MemoryStore::PutTensors(int64_t block, std::span<const TensorView> tensors) {
  return OrOutOfMemory([&]() -> Status {
    EVERLONG_RETURN_IF_ERROR(state_->CheckWritable());
    EVERLONG_RETURN_IF_ERROR(ValidateTensors(tensors));
    EVERLONG_ASSIGN_OR_RETURN(const BlockInfo info, Block(block));
    return tensors.empty() ? OkStatus() : Writer(*state_).ChangeTensors(info, tensors, {});
  });
}

Status MemoryStore::DropTensors(int64_t block, std::span<const std::string> names) {
  return OrOutOfMemory([&]() -> Status {
    EVERLONG_RETURN_IF_ERROR(state_->CheckWritable());
    EVERLONG_ASSIGN_OR_RETURN(const BlockInfo info, Block(block));
    return Writer(*state_).ChangeTensors(info, {}, names);
  });
}

Status Writer::ChangeTensors(const BlockInfo& block, std::span<const TensorView> put,
                             std::span<const std::string> dropped) {
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<TensorRow> rows, state_.TensorRows(block.id));
  std::vector<Tensor> kept;
  for (const TensorRow& row : rows) {
    if (std::ranges::any_of(put, [&row](const TensorView& one) { return one.name == row.info.name; })) continue;
    if (std::ranges::find(dropped, row.info.name) != dropped.end()) continue;
    EVERLONG_ASSIGN_OR_RETURN(Tensor tensor, state_.CommittedTensor(block.id, row.info.name));
    kept.push_back(std::move(tensor));
  }
  if (put.empty() && kept.size() == rows.size()) return OkStatus();
  std::vector<TensorView> all = ViewsOf(kept);
  all.insert(all.end(), put.begin(), put.end());
  std::optional<TensorRecord> record;
  if (!all.empty()) {
    EVERLONG_RETURN_IF_ERROR(ValidateTensors(all));
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::byte> file, EncodeTensors(all));
    BlockRecords records(block.span, state_.threads());
    records.AddTensors(file);
    record.emplace();
    EVERLONG_ASSIGN_OR_RETURN(record->tensors, TensorRowsOf(PayloadKind::kTensors, file));
    EVERLONG_RETURN_IF_ERROR(state_.CheckRoom(static_cast<int64_t>(records.bytes())));
    EVERLONG_ASSIGN_OR_RETURN(std::vector<PageRow> written, records.Write(block.id, segments()));
    record->row = std::move(written[0]);
    EVERLONG_RETURN_IF_ERROR(segments().Sync());
  }
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<PageRow> old, catalog().PutTensors(block.id, record));
  FreeInRam(old);
  return OkStatus();
}

}  // namespace everlong::store
