#include "everlong/index/part.h"

#include <fcntl.h>

#include <algorithm>
#include <string>

#include "everlong/base/check.h"
#include "everlong/base/file.h"

namespace everlong::index {
namespace {

std::string LengthText(int64_t length) { return length < 0 ? "any" : std::to_string(length); }

}  // namespace

std::span<const float> BlockKeys::Page(int32_t page, std::span<const KeyHead> wanted, std::vector<float>& room) const {
  const std::vector<float>& keys = pages_[static_cast<size_t>(page)];
  if (std::ranges::equal(wanted, std::span(heads_).first(std::min(wanted.size(), heads_.size())))) {
    return std::span(keys).first(keys.size() / std::max<size_t>(heads_.size(), 1) * wanted.size());
  }
  const size_t size = keys.size() / heads_.size();  // of a head
  room.clear();
  for (const KeyHead& head : wanted) {
    const auto found = std::ranges::find(heads_, head);
    EVERLONG_CHECK(found != heads_.end());
    const auto of_head = std::span(keys).subspan(static_cast<size_t>(found - heads_.begin()) * size, size);
    room.insert(room.end(), of_head.begin(), of_head.end());
  }
  return room;
}

std::span<const float> Query::Input(std::string_view name) const {
  const auto found = inputs.find(name);
  return found == inputs.end() ? std::span<const float>() : found->second.numbers;
}

Status Query::CheckShape(std::string_view name, std::vector<int64_t> expected, std::string_view letters) const {
  const auto found = inputs.find(name);
  if (found == inputs.end() || found->second.shape.empty()) return OkStatus();
  const std::vector<int64_t>& shape = found->second.shape;
  for (size_t at = 0; at < std::min(shape.size(), expected.size()); ++at) {
    if (expected[at] < 0) expected[at] = shape[at];
  }
  if (shape == expected) return OkStatus();
  const auto text = [](const std::vector<int64_t>& lengths) {
    std::string listed;
    for (const int64_t length : lengths) listed += (listed.empty() ? "" : ", ") + LengthText(length);
    return "[" + listed + "]";
  };
  return InvalidArgumentError(std::string(name) + ": shape " + text(shape) + ", expected " + std::string(letters) +
                              " = " + text(expected));
}

Result<std::vector<SavedPage>> PagesOfSaved(const FilePath& file, std::span<const SavedBlock> blocks,
                                            int32_t page_tokens) {
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd opened, OpenFile(file, O_RDONLY));
  EVERLONG_ASSIGN_OR_RETURN(int64_t left, FileSize(opened, file));
  EVERLONG_RETURN_IF_ERROR(RequireOnDisk(opened, file, 0, left));
  std::vector<SavedPage> saved;
  saved.reserve(blocks.size());
  for (const SavedBlock& block : blocks) {
    const int64_t pages = (block.tokens - 1) / page_tokens + 1;
    if (pages > left) return CorruptError("its list names more pages than it has bytes");
    left -= pages;
    for (int64_t page = 0; page < pages; ++page) {
      const auto tokens = static_cast<int32_t>(std::min<int64_t>(page_tokens, block.tokens - page * page_tokens));
      saved.push_back({tokens, block.first_page < 0 ? -1 : block.first_page + static_cast<int32_t>(page)});
    }
  }
  return saved;
}

}  // namespace everlong::index
