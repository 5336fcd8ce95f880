// Reads of pages, from the RAM tier and from the segments, and of the catalog.
#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <system_error>
#include <tuple>
#include <utility>

#include "everlong/base/crc32c.h"
#include "everlong/base/file.h"
#include "everlong/base/out_of_memory.h"
#include "everlong/base/parallel_for.h"
#include "manifest_file.h"
#include "record.h"
#include "store_state.h"

namespace everlong::store {
namespace {

// Of the disk, that the files in a folder and in those below it take.
Result<int64_t> BytesBelow(const FilePath& folder) {
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(folder));
  int64_t bytes = 0;
  for (const std::string& name : names) {
    // A file that a writer removed meanwhile counts nothing.
    const Result<FileKind> kind = KindOf(folder / name);
    if (!kind.ok() || (*kind != FileKind::kFile && *kind != FileKind::kFolder)) continue;
    const Result<int64_t> more = *kind == FileKind::kFile ? AllocatedBytes(folder / name) : BytesBelow(folder / name);
    EVERLONG_RETURN_IF_ERROR(more.status());
    bytes += *more;
  }
  return bytes;
}

// Bytes that are worth a second thread: waking one costs as much as copying some hundred kilobytes.
constexpr int64_t kCopyBytesPerThread = int64_t{4} << 20;
// The bytes of a memory in RAM that a thread copies before it looks for more.
constexpr int64_t kCopiedAtOnce = int64_t{1} << 20;

std::string Text(const PageRead& read) {
  return "block " + std::to_string(read.block) + " page " + std::to_string(read.page);
}

Status ValidateRead(const PageRead& read, const PageRow& row) {
  const auto parts = static_cast<int64_t>(row.part_crcs.size());
  if (read.first_part < 0 || read.parts <= 0 || int64_t{read.first_part} + read.parts > parts) {
    return InvalidArgumentError("read of " + Text(read) + ": parts " + std::to_string(read.first_part) + " + " +
                                std::to_string(read.parts) + ", it has " + std::to_string(parts));
  }
  if (static_cast<int64_t>(read.out.size()) != read.parts * row.part_bytes) {
    return InvalidArgumentError("read of " + Text(read) + ": the buffer has " + std::to_string(read.out.size()) +
                                " bytes, " + std::to_string(read.parts) + " parts have " +
                                std::to_string(read.parts * row.part_bytes));
  }
  return OkStatus();
}

// Parts that the RAM tier has, and where they go.
struct Copy {
  HostTier::Bytes from;
  std::span<std::byte> to;
};

void CopyAll(std::span<const Copy> copies) {
  int64_t bytes = 0;
  for (const Copy& copy : copies) bytes += std::ssize(copy.to);
  const int64_t each = std::max<int64_t>(1, bytes / std::max<int64_t>(1, std::ssize(copies)));
  ParallelFor(0, std::ssize(copies), kCopyBytesPerThread / each + 1, [&copies](int64_t first, int64_t last) {
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i) {
      std::memcpy(copies[i].to.data(), copies[i].from.get(), copies[i].to.size());
    }
  });
}

// Note what the RAM tier has of a read, and return the runs of parts that it lacks, as reads of their own.
std::vector<PageRead> TakeFromTier(HostTier& tier, const PageRead& read, const PageRow& row,
                                   std::vector<Copy>& copies) {
  std::vector<HostTier::Bytes> parts = tier.Find(read.block, read.page, read.first_part, read.parts, row);
  std::vector<PageRead> runs;
  const auto size = static_cast<size_t>(row.part_bytes);
  bool in_run = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::span<std::byte> out = read.out.subspan(i * size, size);
    const bool found = parts[i] != nullptr;
    if (found) {
      copies.push_back({std::move(parts[i]), out});
    } else if (in_run) {
      ++runs.back().parts;
      runs.back().out = {runs.back().out.data(), runs.back().out.size() + size};
    } else {
      runs.push_back({read.block, read.page, read.first_part + static_cast<int32_t>(i), 1, out});
    }
    in_run = !found;
  }
  return runs;
}

// Split a read into reads of whole parts, of about `bytes` each.
void Split(const PageRead& read, int64_t part_bytes, int64_t bytes, const std::function<void(const PageRead&)>& take) {
  const auto most = static_cast<int32_t>(std::clamp<int64_t>(bytes / part_bytes, 1, read.parts));
  for (int32_t first = 0; first < read.parts; first += most) {
    const int32_t parts = std::min(most, read.parts - first);
    take({read.block, read.page, read.first_part + first, parts,
          read.out.subspan(static_cast<size_t>(first * part_bytes), static_cast<size_t>(parts * part_bytes))});
  }
}

}  // namespace

// Reads that the segments answer, with a second try for one that fails.
class PageReads final : public ReadJob {
 public:
  struct Miss {
    PageRead read;
    std::shared_ptr<const PageRow> row;
  };
  PageReads(const StoreState& store, std::vector<Miss> misses, int64_t erasures)
      : ReadJob(misses.size()),
        store_(store),
        misses_(std::move(misses)),
        erasures_(erasures),
        failures_(misses_.size()) {}

  Status Wait() {
    const std::scoped_lock answering(answer_mutex_);  // one thread finds the answer, the others get the same
    if (answer_) return *answer_;
    Finish();
    answer_.emplace();
    for (size_t i = 0; i < misses_.size() && answer_->ok(); ++i) {
      if (!failures_[i].ok()) *answer_ = OrOutOfMemory([&] { return Again(misses_[i]); });
    }
    return *answer_;
  }

 protected:
  void Run(size_t i) override {
    failures_[i] = OrOutOfMemory([&] { return store_.ReadParts(misses_[i].read, *misses_[i].row, erasures_); });
  }

 private:
  // Try once more. Since the rows and the file were looked up, somebody may have forgotten the block, or a writer
  // beside this reader may have replaced the segment's file.
  Status Again(const Miss& miss) const {
    if (store_.files() != nullptr) store_.files()->Reopen();
    store_.catalog().DropKnown();
    const int64_t erasures = store_.Erasures();
    const PageKey key{miss.read.block, miss.read.page};
    EVERLONG_ASSIGN_OR_RETURN(const auto rows, store_.catalog().Locate({&key, 1}));
    // A record never moves while a row names it, so the page was coded anew.
    if (rows[0]->segment != miss.row->segment || rows[0]->offset != miss.row->offset) {
      return BusyError(Text(miss.read) + " was coded anew while it was read: read it again");
    }
    EVERLONG_RETURN_IF_ERROR(ValidateRead(miss.read, *rows[0]));
    return store_.ReadParts(miss.read, *rows[0], erasures);
  }

  const StoreState& store_;
  const std::vector<Miss> misses_;
  const int64_t erasures_;  // of the RAM tier, before the rows were looked up
  std::vector<Status> failures_;
  std::mutex answer_mutex_;
  std::optional<Status> answer_;
};

namespace {

// The handle that a caller holds: a job, or why there is none. The job lives on while a thread looks at it. Destroying
// the handle waits.
class WaitingReads final : public PendingReads {
 public:
  explicit WaitingReads(Result<std::shared_ptr<PageReads>> reads) : reads_(std::move(reads)) {}
  ~WaitingReads() override {
    if (reads_.ok()) (*reads_)->GiveUp();
  }
  Status Wait() override { return reads_.ok() ? (*reads_)->Wait() : reads_.status(); }

 private:
  const Result<std::shared_ptr<PageReads>> reads_;
};

}  // namespace

std::unique_ptr<PendingReads> MemoryStore::StartReadPages(std::span<const PageRead> reads) const {
  int64_t newest = 0;
  for (const PageRead& read : reads) newest = std::max(newest, read.block);
  state_->WaitForBlock(newest);
  return state_->StartReadCommitted(reads);
}

std::unique_ptr<PendingReads> StoreState::StartReadCommitted(std::span<const PageRead> reads) const {
  const auto start = [&]() -> Result<std::unique_ptr<PendingReads>> {
    std::vector<PageKey> keys;
    keys.reserve(reads.size());
    for (const PageRead& read : reads) keys.push_back({read.block, read.page});
    const int64_t erasures = Erasures();
    EVERLONG_ASSIGN_OR_RETURN(const auto rows, rooms_.catalog->Locate(keys));
    for (size_t i = 0; i < reads.size(); ++i) EVERLONG_RETURN_IF_ERROR(ValidateRead(reads[i], *rows[i]));
    const bool in_ram = rooms_.files == nullptr;
    int64_t wanted = 0;
    for (const PageRead& read : reads) wanted += std::ssize(read.out);
    const size_t helpers = in_ram ? RamHelpers(wanted) : kReadThreads;
    std::vector<Copy> copies;
    std::vector<PageReads::Miss> misses;
    for (size_t i = 0; i < reads.size(); ++i) {
      const auto miss = [&](const PageRead& read) { misses.push_back({read, rows[i]}); };
      if (in_ram && helpers > 0) {
        Split(reads[i], rows[i]->part_bytes, kCopiedAtOnce, miss);
      } else if (tier_) {
        for (const PageRead& run : TakeFromTier(*tier_, reads[i], *rows[i], copies)) miss(run);
      } else {
        miss(reads[i]);
      }
    }
    auto job = std::make_shared<PageReads>(*this, std::move(misses), erasures);
    auto waiting = std::make_unique<WaitingReads>(job);  // before a thread reads: it waits whatever fails from here on
    // The disk begins before RAM is copied. A single read is done by the thread that waits for it.
    if (helpers > 0 && job->size() > 1) threads_->Start(job, helpers);
    CopyAll(copies);
    return std::unique_ptr<PendingReads>(std::move(waiting));
  };
  Result<std::unique_ptr<PendingReads>> reads_under_way = OrOutOfMemory(start);
  if (!reads_under_way.ok()) return std::make_unique<WaitingReads>(reads_under_way.status());
  return std::move(reads_under_way).value();
}

Result<std::vector<int64_t>> MemoryStore::PageBytes(int64_t block) const {
  EVERLONG_ASSIGN_OR_RETURN(const BlockInfo info, Block(block));
  std::vector<PageKey> keys;
  for (int32_t page = 0; page < info.pages; ++page) keys.push_back({block, page});
  EVERLONG_ASSIGN_OR_RETURN(const auto rows, state_->catalog().Locate(keys));
  std::vector<int64_t> bytes;
  for (const auto& row : rows) bytes.push_back(std::ssize(row->part_crcs) * row->part_bytes);
  return bytes;
}

Status MemoryStore::ReadPages(std::span<const PageRead> reads) const { return StartReadPages(reads)->Wait(); }

Status StoreState::ReadParts(const PageRead& read, const PageRow& row, int64_t erasures) const {
  const auto parts = static_cast<int64_t>(row.part_crcs.size());
  const SegmentSpot spot{row.segment, row.offset + RecordHeaderBytes(parts) + read.first_part * row.part_bytes};
  if (const Status status = rooms_.segments->Read(spot, read.out); !status.ok()) {
    return Under(Text(read), status);
  }
  if (rooms_.files == nullptr) return OkStatus();  // RAM was checked when it was written
  const auto part_bytes = static_cast<size_t>(row.part_bytes);
  for (size_t i = 0; i < static_cast<size_t>(read.parts); ++i) {
    const size_t part = static_cast<size_t>(read.first_part) + i;
    if (Crc32c(read.out.subspan(i * part_bytes, part_bytes)) == row.part_crcs[part]) continue;
    return CorruptError(Text(read) + " part " + std::to_string(part) + ": checksum mismatch in '" +
                        rooms_.segments->Name(spot.segment) + "' at byte " +
                        std::to_string(spot.offset + static_cast<int64_t>(i * part_bytes)) +
                        "; other blocks are readable");
  }
  if (tier_) tier_->Insert(read.block, read.page, read.first_part, row, read.out, erasures);
  return OkStatus();
}

Result<std::vector<BlockInfo>> MemoryStore::Blocks(const BlockFilter& filter) const {
  state_->WaitForQueue();
  return state_->catalog().Blocks(filter);
}

Status MemoryStore::VisitBlocks(const BlockFilter& filter, const BlockVisitor& visit) const {
  state_->WaitForQueue();
  return state_->catalog().VisitBlocks(filter, visit);
}

Result<BlockInfo> MemoryStore::Block(int64_t id) const {
  state_->WaitForBlock(id);
  return state_->catalog().Block(id);
}

Result<std::vector<int32_t>> MemoryStore::TokenIds(int64_t block) const {
  state_->WaitForBlock(block);
  return state_->catalog().TokenIds(block);
}

Result<std::vector<std::byte>> StoreState::ReadRecordPayload(const PageRow& row, const std::string& name) const {
  const auto parts = static_cast<int64_t>(row.part_crcs.size());
  const SegmentSpot spot{row.segment, row.offset + RecordHeaderBytes(parts)};
  EVERLONG_RETURN_IF_ERROR(Under(name, rooms_.segments->Require(spot, parts * row.part_bytes)));
  std::vector<std::byte> payload(static_cast<size_t>(parts * row.part_bytes));
  EVERLONG_RETURN_IF_ERROR(Under(name, rooms_.segments->Read(spot, payload)));
  if (PartChecksums(payload, parts) == row.part_crcs) return payload;
  return CorruptError(name + ": checksum mismatch in '" + rooms_.segments->Name(spot.segment) + "' at byte " +
                      std::to_string(spot.offset) + "; other blocks are readable");
}

Result<StoreStats> MemoryStore::Stats() const {
  state_->WaitForQueue();
  EVERLONG_ASSIGN_OR_RETURN(const CatalogTotals totals, state_->catalog().Totals());
  StoreStats stats;
  stats.blocks = totals.blocks;
  stats.pages = totals.pages;
  stats.tokens = totals.tokens;
  stats.payload_bytes = totals.payload_bytes;
  for (const auto& [name, amount] : totals.tensors) stats.tensor_bytes.emplace(name, amount.bytes);
  stats.graph_nodes = totals.nodes;
  stats.graph_edges = totals.edges;
  stats.index_bytes = state_->index_bytes();
  stats.catalog_bytes = state_->catalog().RamBytes();
  EVERLONG_ASSIGN_OR_RETURN(stats.host_bytes, state_->HostBytes());
  if (!state_->folder()) return stats;
  EVERLONG_ASSIGN_OR_RETURN(const int64_t segment_bytes, state_->segments().Bytes());
  int64_t live = 0;
  for (const auto& [segment, amount] : totals.records) live += amount.bytes;
  stats.dead_bytes = std::max<int64_t>(0, segment_bytes - live);
  EVERLONG_ASSIGN_OR_RETURN(stats.disk_bytes, BytesBelow(*state_->folder()));
  return stats;
}

}  // namespace everlong::store
