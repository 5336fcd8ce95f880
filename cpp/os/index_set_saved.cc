// Parts of the index in a folder's index/: save them, load them, drop them where they do not fit.
#include <algorithm>
#include <string>
#include <utility>

#include "index_set.h"

namespace everlong::os {

using index::BlockEntry;
using index::IndexPart;
using index::Part;
using index::PartKind;

std::vector<CoveredBlock> IndexSet::CoveredBlocks() const {
  std::vector<CoveredBlock> covered;
  covered.reserve(static_cast<size_t>(table_.live_blocks()));
  for (int32_t number = 0; number < table_.blocks(); ++number) {
    const BlockEntry& block = table_.block(number);
    if (block.forgotten) continue;
    covered.push_back({block.id, block.stream, block.span.begin, block.span.end, block.sink_tokens, block.created_at,
                       block.token_crc});
  }
  return covered;
}

std::optional<SavedIndex> IndexSet::Saved(std::string_view name) const {
  const std::optional<FilePath> folder = store_.folder();
  if (!folder) return std::nullopt;
  return SavedIndex(*folder / store::kIndexFolder, std::string(name));
}

void IndexSet::Say(std::string_view name, const Status& why) const {
  std::string message = Name() + ": the saved index \"";
  message.append(name).append("\" cannot be used and is rebuilt (").append(why.message()).append(")");
  AddMessage(std::move(message));
}

Result<bool> IndexSet::LoadSaved(const PartKind& kind, Part& part) {
  const std::optional<SavedIndex> saved = kind.saved ? Saved(kind.name) : std::nullopt;
  if (!saved) return true;
  const auto may_be_whole = [&kind](const Status& status) {
    return kind.from_caller && (status.code() == StatusCode::kIoError || status.code() == StatusCode::kCapacity);
  };
  Result<std::optional<Coverage>> read = saved->Read(part.settings(), CoveredBlocks());
  if (may_be_whole(read.status())) return read.status();
  if (!read.ok()) {
    Say(kind.name, read.status());
    return true;
  }
  if (!read->has_value()) return true;
  if ((*read)->first_version && !kind.from_caller) {
    Say(kind.name, CorruptError("an earlier release saved it, without what tells its blocks from another memory's"));
    return true;
  }
  const Coverage& coverage = **read;
  std::vector<index::SavedBlock> blocks;
  blocks.reserve(coverage.blocks.size());
  int32_t here = 0;  // both lists are by id
  for (const CoveredBlock& block : coverage.blocks) {
    while (here < table_.blocks() && table_.block(here).id < block.id) ++here;
    const bool known = here < table_.blocks() && table_.block(here).id == block.id && !table_.block(here).forgotten;
    blocks.push_back({block.id, block.end - block.begin, known ? table_.block(here).first_page : -1});
  }
  Status loaded = part.Load(saved->file(), blocks, coverage.gaps);
  // Check that this file is the one that the list is about.
  if (loaded.ok()) loaded = saved->CheckIs(coverage.checksum);
  if (may_be_whole(loaded)) return loaded;
  if (!loaded.ok()) {
    Say(kind.name, loaded);
    return false;
  }
  if (std::ranges::any_of(blocks, [](const index::SavedBlock& block) { return block.first_page < 0; })) {
    unsaved_.emplace(kind.name);
  }
  return true;
}

void IndexSet::MarkUnsaved() {
  ForEach([this](const PartKind& kind, const Part& /*part*/) {
    if (kind.saved) unsaved_.emplace(kind.name);
  });
}

Status IndexSet::SavePart(const PartKind& kind, const Part& part) const {
  std::vector<CoveredBlock> covered = CoveredBlocks();
  std::erase_if(covered, [&](const CoveredBlock& block) { return !part.Has(*table_.Find(block.id)); });
  return Saved(kind.name)->Write(part.settings(), covered,
                                 [&part](const index::IndexFile& file) { return part.Save(file); });
}

Status IndexSet::Writer::Save() {
  if (set_->store_.read_only() || !set_->store_.folder()) return OkStatus();
  // Each save has a name of its own, so nothing else ever replaces what a crash left.
  for (const IndexPart part : set_->parts_) {
    if (index::KindOf(part).saved) set_->Saved(NameOf(part))->RemoveUnfinished();
  }
  Status saved;
  set_->ForEach([&](const PartKind& kind, const Part& part) {
    if (!saved.ok() || !set_->unsaved_.contains(kind.name)) return;
    saved = set_->SavePart(kind, part);
    if (saved.ok()) set_->unsaved_.erase(std::string(kind.name));
  });
  return saved;
}

void IndexSet::Writer::CarrySaved(const FilePath& folder) const {
  for (const IndexPart part : set_->parts_) {
    const std::optional<SavedIndex> saved = index::KindOf(part).saved ? set_->Saved(NameOf(part)) : std::nullopt;
    if (saved) saved->CopyTo(folder / store::kIndexFolder);
  }
}

Result<bool> IndexSet::KeepSaved(const PartKind& kind, const SavedIndex& saved) {
  const std::unique_ptr<Part> part =
      kind.from_settings == nullptr ? nullptr : kind.from_settings(context_, saved.Settings());
  if (part == nullptr) return false;
  EVERLONG_ASSIGN_OR_RETURN(const bool loaded, LoadSaved(kind, *part));
  if (!loaded) return false;
  unsaved_.erase(std::string(kind.name));
  return SaveGiven(kind, *part);
}

Result<bool> IndexSet::SaveGiven(const PartKind& kind, const Part& part) const {
  bool empty = true;
  for (int32_t number = 0; number < table_.blocks() && empty; ++number) {
    empty = table_.block(number).forgotten || !part.Has(table_.block(number));
  }
  if (empty) return false;
  EVERLONG_RETURN_IF_ERROR(SavePart(kind, part));
  return true;
}

Status IndexSet::Writer::RemoveSavedOfForgotten() {
  const std::vector<CoveredBlock> covered = set_->CoveredBlocks();
  Status kept;
  for (const IndexPart part : set_->parts_) {
    const PartKind& kind = index::KindOf(part);
    const std::optional<SavedIndex> saved = kind.saved ? set_->Saved(kind.name) : std::nullopt;
    if (!saved) continue;
    saved->RemoveUnfinished();
    if (saved->HoldsOnly(covered)) continue;
    if (kind.from_caller) {
      const Part* const there = set_->slots_[part.number].part.get();
      const Result<bool> written = there != nullptr ? set_->SaveGiven(kind, *there) : set_->KeepSaved(kind, *saved);
      if (written.ok() && *written && there != nullptr) set_->unsaved_.erase(std::string(kind.name));
      if (written.ok() && *written) continue;
      if (!written.ok()) {
        kept = {written.status().code(), set_->Name() + ": the saved index \"" + std::string(kind.name) +
                                             "\" may still hold what was forgotten: " + written.status().message()};
        continue;
      }
    }
    saved->Remove();
    set_->MarkUnsaved();
  }
  return kept;
}

}  // namespace everlong::os
