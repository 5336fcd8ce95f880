#include "saved_indexes.h"

#include <algorithm>
#include <string_view>
#include <system_error>
#include <utility>

#include "everlong/base/file.h"
#include "everlong/index/index_file.h"

namespace everlong::os {
namespace {

constexpr std::string_view kMagic = "everlong index blocks 1\n";

struct Header {
  uint32_t checksum = 0;  // of the index, where the list is a file of its own
  uint32_t settings_bytes = 0;
  int64_t blocks = 0;
};

}  // namespace

std::vector<std::byte> SavedIndex::ListBytes(const std::string& settings, std::span<const CoveredBlock> blocks) {
  const Header header{0, static_cast<uint32_t>(settings.size()), std::ssize(blocks)};
  std::vector<std::byte> bytes;
  const auto add = [&bytes](std::span<const std::byte> more) { bytes.insert(bytes.end(), more.begin(), more.end()); };
  add(std::as_bytes(std::span(kMagic)));
  add(std::as_bytes(std::span(&header, 1)));
  add(std::as_bytes(std::span(settings)));
  add(std::as_bytes(blocks));
  return bytes;
}

Status SavedIndex::RemoveOlderList() const {
  const Result<std::optional<index::Appendix>> own = index::ReadAppendix(file_);
  return own.ok() && own->has_value() ? RemoveFile(list_) : OkStatus();
}

Result<std::optional<SavedIndex::List>> SavedIndex::ReadList() const {
  Result<std::optional<index::Appendix>> own = index::ReadAppendix(file_);
  if (own.status().code() == StatusCode::kNotFound && !Exists(list_)) return std::optional<List>();
  EVERLONG_RETURN_IF_ERROR(own.status());
  const bool carried = own->has_value();
  EVERLONG_ASSIGN_OR_RETURN(
      index::IndexFileReader reader,
      carried ? index::IndexFileReader::OfAppendix(file_, **own, kMagic) : index::IndexFileReader::Open(list_, kMagic));
  Header header;
  EVERLONG_RETURN_IF_ERROR(reader.ReadValue(header));
  if (header.settings_bytes > reader.left()) return reader.Truncated();
  List list{std::string(header.settings_bytes, '\0'), carried ? (*own)->checksum : header.checksum, {}};
  EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(list.settings)));
  if (reader.left() % sizeof(CoveredBlock) != 0 ||
      !std::cmp_equal(header.blocks, reader.left() / sizeof(CoveredBlock))) {
    return reader.Truncated();
  }
  list.blocks.resize(static_cast<size_t>(header.blocks));
  EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(list.blocks)));
  return std::optional(std::move(list));
}

Result<std::optional<Coverage>> SavedIndex::Read(const std::string& settings,
                                                 std::span<const CoveredBlock> blocks) const {
  EVERLONG_ASSIGN_OR_RETURN(std::optional<List> list, ReadList());
  if (!list || list->settings != settings) return std::optional<Coverage>();
  EVERLONG_RETURN_IF_ERROR(CheckIs(list->checksum));

  Coverage coverage;
  coverage.checksum = list->checksum;
  coverage.blocks = std::move(list->blocks);
  int64_t last = 0;
  auto here = blocks.begin();  // the first that is not below the last covered block
  for (const CoveredBlock& block : coverage.blocks) {
    for (; here != blocks.end() && here->id < block.id; ++here) coverage.gaps = true;
    const bool known = here != blocks.end() && here->id == block.id;
    if (block.id <= last || block.begin < 0 || block.end <= block.begin || (known && *here != block)) {
      return CorruptError(index::Quoted(file_) + ": block " + std::to_string(block.id) + " is not of this memory");
    }
    last = block.id;
    if (known) ++here;
  }
  return std::optional(std::move(coverage));
}

Status SavedIndex::CheckIs(uint32_t checksum) const {
  EVERLONG_ASSIGN_OR_RETURN(const uint32_t found, index::ChecksumOf(file_));
  if (found == checksum) return OkStatus();
  return CorruptError(index::Quoted(file_) + " does not match its list of blocks");
}

bool SavedIndex::HoldsOnly(std::span<const CoveredBlock> blocks) const {
  const Result<std::optional<List>> list = ReadList();
  if (!list.ok() || !list->has_value()) return false;
  // The list may be of an older pair. If a crash came between the index and its list, it says nothing about this index.
  const Result<uint32_t> checksum = index::ChecksumOf(file_);
  return checksum.ok() && *checksum == (*list)->checksum &&
         std::ranges::all_of((*list)->blocks, [blocks](const CoveredBlock& covered) {
           const auto found = std::ranges::lower_bound(blocks, covered.id, {}, &CoveredBlock::id);
           return found != blocks.end() && *found == covered;
         });
}

std::string SavedIndex::Settings() const {
  const Result<std::optional<List>> list = ReadList();
  return list.ok() && list->has_value() ? (*list)->settings : std::string();
}

void SavedIndex::CopyTo(const FilePath& folder) const {
  if (!Exists(file_)) return;
  const SavedIndex copy(folder, file_.filename());
  // Somebody else's.
  if (Exists(copy.list_) || Exists(copy.file_)) return;
  Status copied = MakeFolder(folder);
  if (copied.ok()) copied = CloneFile(file_, copy.file_, false);
  if (copied.ok() && Exists(list_)) copied = CloneFile(list_, copy.list_, false);
  if (!copied.ok()) copy.Remove();
}

void SavedIndex::RemoveUnfinished() const {
  for (const FilePath& file : {file_, list_}) index::RemoveUnfinished(file);
  static_cast<void>(RemoveOlderList());
}

void SavedIndex::Remove() const {
  RemoveUnfinished();
  static_cast<void>(RemoveFile(list_));
  static_cast<void>(RemoveFile(file_));
}

}  // namespace everlong::os
