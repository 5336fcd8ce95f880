#include "saved_indexes.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>

#include "everlong/base/file.h"
#include "everlong/index/index_file.h"
#include "everlong/index/page_vectors.h"

namespace everlong::os {
namespace {

constexpr std::string_view kMagic = "everlong index blocks 2\n";
constexpr std::string_view kFirstMagic = "everlong index blocks 1\n";

// A block in a list of the first version.
struct FirstCoveredBlock {
  int64_t id = 0;
  int64_t stream = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t sink_tokens = 0;
  double created_at = 0;
};

struct Header {
  uint32_t checksum = 0;  // of the index, where the list is a file of its own
  uint32_t settings_bytes = 0;
  int64_t blocks = 0;
};

Result<std::vector<CoveredBlock>> ReadBlocks(index::IndexFileReader& reader, int64_t count, bool first_version) {
  const size_t each = first_version ? sizeof(FirstCoveredBlock) : sizeof(CoveredBlock);
  if (reader.left() % each != 0 || !std::cmp_equal(count, reader.left() / each)) return reader.Truncated();
  std::vector<CoveredBlock> blocks(static_cast<size_t>(count));
  if (!first_version) {
    EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(blocks)));
    const auto is_checksum = [](const CoveredBlock& block) { return block.crc >= 0 && block.crc <= UINT32_MAX; };
    if (!std::ranges::all_of(blocks, is_checksum)) return reader.Corrupt("a checksum is out of range");
    return blocks;
  }
  for (CoveredBlock& block : blocks) {
    FirstCoveredBlock first;
    EVERLONG_RETURN_IF_ERROR(reader.ReadValue(first));
    block = {first.id, first.stream, first.begin, first.end, first.sink_tokens, first.created_at, -1};
  }
  return blocks;
}

}  // namespace

bool CoveredBlock::Is(const CoveredBlock& other) const {
  return id == other.id && stream == other.stream && begin == other.begin && end == other.end &&
         sink_tokens == other.sink_tokens && created_at == other.created_at &&
         (crc == other.crc || crc < 0 || other.crc < 0);
}

std::string SegmentName(std::string_view name, BlockIds ids) {
  std::string file(name);
  if (ids.first <= 1) return file;
  return file.append(".").append(std::to_string(ids.first)).append("-").append(std::to_string(ids.last));
}

std::vector<BlockIds> LaterSegments(const FilePath& folder, std::string_view name) {
  std::vector<BlockIds> segments;
  const Result<std::vector<std::string>> names = NamesIn(folder);
  if (!names.ok()) return segments;  // what cannot be listed is made anew
  for (const std::string& file : *names) {
    if (!file.starts_with(name) || file.size() == name.size()) continue;
    const char* const end = file.data() + file.size();
    BlockIds ids;
    const auto first = std::from_chars(std::min(file.data() + name.size() + 1, end), end, ids.first);
    const auto last = std::from_chars(std::min(first.ptr + 1, end), end, ids.last);
    if (last.ec == std::errc() && ids.first > 1 && ids.last >= ids.first && ids.last <= index::kLargestVectorBlock &&
        SegmentName(name, ids) == file) {
      segments.push_back(ids);
    }
  }
  std::ranges::sort(segments, [](const BlockIds& one, const BlockIds& other) {
    return one.first != other.first ? one.first < other.first : one.last > other.last;
  });
  return segments;
}

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
  const std::span<const std::byte> first = std::as_bytes(std::span(kFirstMagic));
  const bool is_first = !carried || ((*own)->bytes.size() >= first.size() &&
                                     std::ranges::equal(std::span((*own)->bytes).first(first.size()), first));
  const std::string_view magic = is_first ? kFirstMagic : kMagic;
  EVERLONG_ASSIGN_OR_RETURN(index::IndexFileReader reader, carried
                                                               ? index::IndexFileReader::OfAppendix(file_, **own, magic)
                                                               : index::IndexFileReader::Open(list_, magic));
  Header header;
  EVERLONG_RETURN_IF_ERROR(reader.ReadValue(header));
  if (header.settings_bytes > reader.left()) return reader.Truncated();
  List list{std::string(header.settings_bytes, '\0'), carried ? (*own)->checksum : header.checksum, {}, is_first};
  EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(list.settings)));
  EVERLONG_ASSIGN_OR_RETURN(list.blocks, ReadBlocks(reader, header.blocks, is_first));
  return std::optional(std::move(list));
}

Result<std::optional<Coverage>> SavedIndex::Read(const std::string& settings,
                                                 std::span<const CoveredBlock> blocks) const {
  EVERLONG_ASSIGN_OR_RETURN(std::optional<List> list, ReadList());
  if (!list || list->settings != settings) return std::optional<Coverage>();
  EVERLONG_RETURN_IF_ERROR(CheckIs(list->checksum));

  Coverage coverage;
  coverage.checksum = list->checksum;
  coverage.first_version = list->first_version;
  coverage.blocks = std::move(list->blocks);
  int64_t last = 0;
  auto here = blocks.begin();  // the first that is not below the last covered block
  for (const CoveredBlock& block : coverage.blocks) {
    for (; here != blocks.end() && here->id < block.id; ++here) coverage.gaps = true;
    const bool known = here != blocks.end() && here->id == block.id;
    if (block.id <= last || block.id > index::kLargestVectorBlock || block.begin < 0 || block.end <= block.begin ||
        (known && !here->Is(block))) {
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
           return found != blocks.end() && found->Is(covered);
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
  // The fork is a memory already: a crash must not leave it half a file.
  const auto clone = [](const FilePath& from, const FilePath& to, bool may_link) -> Status {
    const FilePath unfinished = index::TemporaryOf(to);
    EVERLONG_RETURN_IF_ERROR(CloneFile(from, unfinished, may_link));
    return RenameFile(unfinished, to);
  };
  Status copied = MakeFolder(folder);
  if (copied.ok()) copied = clone(file_, copy.file_, true);  // nobody writes into one
  if (copied.ok() && Exists(list_)) copied = clone(list_, copy.list_, false);
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
