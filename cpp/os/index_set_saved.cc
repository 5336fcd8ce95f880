// Parts of the index in a folder's index/: save them, load them, drop them where they do not fit.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "everlong/base/crc32c.h"
#include "index_set.h"

namespace everlong::os {

using index::BlockEntry;
using index::IndexPart;
using index::Part;
using index::PartKind;

namespace {

// A close writes what is new, and older segments into the same file, up to so many bytes. So a close costs no more than
// this, however much there is, and a memory of millions of tokens has some hundred files.
constexpr int64_t kMostMerged = int64_t{32} << 20;

}  // namespace

index::BlockRun IndexSet::Numbers(BlockIds ids) const {
  return {table_.NumberBehind(ids.first - 1), table_.NumberBehind(ids.last)};
}

bool IndexSet::HasBlocks(BlockIds ids) const {
  const auto [first, last] = Numbers(ids);
  for (int32_t number = first; number < last; ++number) {
    if (IsHere(table_.block(number))) return true;
  }
  return false;
}

Status IndexSet::LookForGone() {
  std::set<int64_t> here;
  EVERLONG_RETURN_IF_ERROR(store_.VisitBlocks({}, [&here](const store::BlockInfo& info) {
    here.insert(here.end(), info.id);
    return true;
  }));
  for (int32_t number = 0; number < table_.blocks(); ++number) {
    const BlockEntry& block = table_.block(number);
    if (!block.forgotten && !here.contains(block.id)) gone_.insert(block.id);
  }
  return OkStatus();
}

Result<std::vector<CoveredBlock>> IndexSet::CoveredBlocks(BlockIds ids, std::span<const std::string> tensors) const {
  std::map<int64_t, uint32_t> checksums;
  if (!tensors.empty()) {
    EVERLONG_ASSIGN_OR_RETURN(checksums, store_.TensorChecksums(ids.first, ids.last, tensors));
  }
  const index::BlockRun numbers = Numbers(ids);
  std::vector<CoveredBlock> covered;
  for (int32_t number = numbers.first; number < numbers.last; ++number) {
    const BlockEntry& block = table_.block(number);
    if (!IsHere(block)) continue;
    uint32_t crc = block.token_crc;
    if (const auto of_tensors = checksums.find(block.id); of_tensors != checksums.end()) {
      crc = Crc32c(std::as_bytes(std::span(&of_tensors->second, 1)), crc);
    }
    covered.push_back(
        {block.id, block.stream, block.span.begin, block.span.end, block.sink_tokens, block.created_at, crc});
  }
  return covered;
}

std::optional<SavedIndex> IndexSet::Saved(std::string_view name, BlockIds ids) const {
  const std::optional<FilePath> folder = store_.folder();
  if (!folder) return std::nullopt;
  return SavedIndex(*folder / store::kIndexFolder, SegmentName(name, ids));
}

std::vector<BlockIds> IndexSet::Files(const PartKind& kind) const {
  const std::optional<FilePath> folder = store_.folder();
  if (!folder || !kind.saved) return {};
  std::vector<BlockIds> files{{}};
  if (!kind.in_segments) return files;
  std::ranges::copy(LaterSegments(*folder / store::kIndexFolder, kind.name), std::back_inserter(files));
  return files;
}

void IndexSet::Say(std::string_view name, const Status& why) const {
  std::string message = Name() + ": the saved index \"";
  message.append(name).append("\" cannot be used and is rebuilt (").append(why.message()).append(")");
  AddMessage(std::move(message));
}

Result<IndexSet::Loaded> IndexSet::LoadSaved(const PartKind& kind, Part& part, size_t& most, std::vector<Status>& wrong,
                                             bool& moved) {
  std::vector<Segment> loaded;
  for (const BlockIds ids : Files(kind)) {
    if (loaded.size() == most) break;
    if (!loaded.empty() && ids.first <= loaded.back().ids.last) continue;  // a larger one took its place
    const bool is_later = !loaded.empty();
    moved = is_later && HasBlocks({loaded.back().ids.last + 1, ids.first - 1});
    if (moved) break;
    EVERLONG_ASSIGN_OR_RETURN(const Loaded so_far, LoadSegment(kind, part, ids, loaded, wrong));
    moved = is_later && so_far == Loaded::kNothing && wrong.empty();
    if (so_far == Loaded::kNothing) break;
    if (so_far == Loaded::kSpoilt) {
      most = loaded.size();
      return Loaded::kSpoilt;
    }
  }
  const Loaded all = loaded.empty() ? Loaded::kNothing : Loaded::kYes;
  segments_.insert_or_assign(std::string(kind.name), std::move(loaded));
  return all;
}

Result<IndexSet::Loaded> IndexSet::LoadSegment(const PartKind& kind, Part& part, BlockIds ids,
                                               std::vector<Segment>& loaded, std::vector<Status>& wrong) {
  const SavedIndex saved = *Saved(kind.name, ids);
  const auto may_be_whole = [&kind](const Status& status) {
    return kind.from_caller && (status.code() == StatusCode::kIoError || status.code() == StatusCode::kCapacity);
  };
  const bool is_first = loaded.empty();
  const int64_t before = is_first ? 0 : loaded.back().ids.last;
  const std::vector<std::string> tensors = part.needs().tensor_names;
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<CoveredBlock> here,
                            CoveredBlocks({before + 1, is_first ? INT64_MAX : ids.last}, tensors));
  std::vector<CoveredBlock> known = here;
  if (!tensors.empty()) {
    // A block may have other tensors than the file is about, and the file is of this memory all the same.
    for (CoveredBlock& block : known) block.crc = -1;
  }
  Result<std::optional<Coverage>> read = saved.Read(part.settings(), known);
  if (may_be_whole(read.status())) return read.status();
  if (!is_first && read.status().code() == StatusCode::kNotFound) return Loaded::kNothing;  // merged meanwhile
  if (!read.ok()) {
    wrong.push_back(read.status());
    return Loaded::kNothing;
  }
  if (!read->has_value()) return Loaded::kNothing;
  Coverage& coverage = **read;
  if (coverage.first_version && !kind.from_caller) {
    wrong.push_back(CorruptError("an earlier release saved it, without what tells its blocks from another memory's"));
    return Loaded::kNothing;
  }
  const int64_t last = coverage.blocks.empty() ? before : coverage.blocks.back().id;
  if (is_first) {
    ids = {1, last};
  } else if (last > ids.last || (last > before && coverage.blocks.front().id < ids.first)) {
    wrong.push_back(CorruptError(index::Quoted(saved.file()) + " has blocks of another segment"));
    return Loaded::kNothing;
  } else if (!here.empty() && here.back().id > last) {
    coverage.gaps = true;
  }
  std::vector<index::SavedBlock> blocks;
  blocks.reserve(coverage.blocks.size());
  bool is_outdated = false;
  auto now = here.begin();  // both lists are by id
  for (const CoveredBlock& block : coverage.blocks) {
    while (now != here.end() && now->id < block.id) ++now;
    const bool is_here = now != here.end() && now->Is(block);
    blocks.push_back({block.id, block.end - block.begin, is_here ? table_.Find(block.id)->first_page : -1});
    is_outdated = is_outdated || !is_here;
  }
  Status taken = part.Load(saved.file(), blocks, coverage.gaps);
  // Check that this file is the one that the list is about.
  if (taken.ok()) taken = saved.CheckIs(coverage.checksum);
  if (may_be_whole(taken)) return taken;
  if (!taken.ok()) {
    wrong.push_back(taken);
    return Loaded::kSpoilt;
  }
  if (is_outdated) unsaved_.emplace(kind.name);
  loaded.push_back({ids, last, StampOf(saved.file()).size, is_outdated});
  return Loaded::kYes;
}

void IndexSet::MarkUnsaved() {
  ForEach([this](const PartKind& kind, const Part& /*part*/) {
    if (kind.saved) unsaved_.emplace(kind.name);
  });
}

Status IndexSet::SaveSegment(const PartKind& kind, const Part& part, Segment& segment) const {
  EVERLONG_ASSIGN_OR_RETURN(std::vector<CoveredBlock> covered, CoveredBlocks(segment.ids, part.needs().tensor_names));
  std::erase_if(covered, [&](const CoveredBlock& block) { return !part.Has(*table_.Find(block.id)); });
  const SavedIndex saved = *Saved(kind.name, segment.ids);
  EVERLONG_RETURN_IF_ERROR(saved.Write(
      part.settings(), covered, [&](const index::IndexFile& file) { return part.Save(file, Numbers(segment.ids)); }));
  segment.newest = segment.ids.last;
  segment.bytes = StampOf(saved.file()).size;
  segment.is_outdated = false;
  return OkStatus();
}

Status IndexSet::SavePart(const PartKind& kind, const Part& part) {
  if (!kind.in_segments) {
    Segment whole{{1, INT64_MAX}};
    return SaveSegment(kind, part, whole);
  }
  std::vector<Segment>& segments = segments_[std::string(kind.name)];
  int64_t left = kMostMerged;
  for (Segment& segment : segments) {
    // A compaction brings larger ones up to date.
    if (!segment.is_outdated || segment.bytes > left) continue;
    left -= segment.bytes;
    EVERLONG_RETURN_IF_ERROR(SaveSegment(kind, part, segment));
  }
  const int64_t newest = table_.blocks() == 0 ? 0 : table_.block(table_.blocks() - 1).id;
  // One whose name is about blocks that came since, as only a hostile one is, is written anew.
  while (!segments.empty() && newest > segments.back().newest && newest <= segments.back().ids.last) {
    segments.pop_back();
  }
  Segment added{{segments.empty() ? 1 : segments.back().ids.last + 1, newest}};
  if (segments.empty() || newest >= added.ids.first) {
    const auto pages_of = [this](BlockIds ids) {
      const auto [first, last] = Numbers(ids);
      return first == last ? 0 : table_.block(last - 1).pages().last - table_.block(first).first_page;
    };
    // Each page is written again only when twice as many pages are newer.
    size_t kept = segments.size();
    for (; kept > 0; --kept) {
      const Segment& older = segments[kept - 1];
      if (older.bytes > left || pages_of(older.ids) > 2 * pages_of(added.ids)) break;
      left -= older.bytes;
      added.ids.first = older.ids.first;
    }
    EVERLONG_RETURN_IF_ERROR(SaveSegment(kind, part, added));
    segments.resize(kept);
    segments.push_back(added);
  }
  for (const BlockIds ids : Files(kind)) {
    if (FindSegment(kind, ids) == segments.end()) Saved(kind.name, ids)->Remove();
  }
  return OkStatus();
}

std::vector<IndexSet::Segment>::iterator IndexSet::FindSegment(const PartKind& kind, BlockIds ids) {
  std::vector<Segment>& segments = segments_[std::string(kind.name)];
  const auto first = [](const Segment& segment) { return segment.ids.first; };
  const auto found = std::ranges::lower_bound(segments, ids.first, {}, first);
  const bool is_it = found != segments.end() && found->ids.first == ids.first &&
                     (ids.first == 1 || found->ids.last == ids.last);  // the first file's name does not say its last
  return is_it ? found : segments.end();
}

void IndexSet::NoteChanged(std::string_view name, int64_t block) {
  const auto segments = segments_.find(name);
  if (segments == segments_.end()) return;
  const auto found =
      std::ranges::lower_bound(segments->second, block, {}, [](const Segment& of) { return of.ids.last; });
  if (found != segments->second.end()) found->is_outdated = true;
}

Status IndexSet::Writer::Save() {
  if (set_->store_.read_only() || !set_->store_.folder()) return OkStatus();
  // Each save has a name of its own, so nothing else ever replaces what a crash left.
  for (const IndexPart part : set_->parts_) {
    if (index::KindOf(part).saved) set_->Saved(NameOf(part))->RemoveUnfinished();
  }
  for (const IndexPart part : set_->parts_) {
    if (set_->part(part) != nullptr && set_->unsaved_.contains(NameOf(part))) EVERLONG_RETURN_IF_ERROR(SavePart(part));
  }
  return OkStatus();
}

Status IndexSet::Writer::SavePart(IndexPart part) {
  const PartKind& kind = index::KindOf(part);
  Status saved = set_->SavePart(kind, *set_->part(part));
  if (saved.code() == StatusCode::kCorrupt) {
    set_->Say(kind.name, saved);
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<DamagedFile> damaged, set_->DamagedOf(kind));
    std::vector<BlockIds> files = IdsOf(damaged);
    // What was read and what is on the disk may differ.
    if (files.empty()) files = set_->Files(kind);
    EVERLONG_RETURN_IF_ERROR(MakeAnew(part, files));
    saved = set_->SavePart(kind, *set_->part(part));
  }
  EVERLONG_RETURN_IF_ERROR(saved);
  set_->unsaved_.erase(std::string(kind.name));
  return OkStatus();
}

Result<std::vector<IndexSet::DamagedFile>> IndexSet::DamagedOf(const PartKind& kind) const {
  std::vector<DamagedFile> damaged;
  for (const BlockIds ids : Files(kind)) {
    Status checked = index::CheckIndexFile(Saved(kind.name, ids)->file());
    if (checked.ok() || checked.code() == StatusCode::kNotFound) continue;
    if (checked.code() != StatusCode::kCorrupt) return checked;
    damaged.push_back({ids, std::move(checked)});
  }
  return damaged;
}

std::vector<BlockIds> IndexSet::IdsOf(std::span<const DamagedFile> damaged) {
  std::vector<BlockIds> ids;
  std::ranges::transform(damaged, std::back_inserter(ids), &DamagedFile::ids);
  return ids;
}

Result<std::vector<store::Damage>> IndexSet::VerifySaved() const {
  std::vector<store::Damage> all;
  for (const IndexPart part : parts_) {
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<DamagedFile> damaged, DamagedOf(index::KindOf(part)));
    for (const DamagedFile& file : damaged) {
      all.push_back({0, "the saved index " + SegmentName(NameOf(part), file.ids) + ": " + file.why.message()});
    }
  }
  return all;
}

Status IndexSet::Writer::MakeAnew(IndexPart part, std::span<const BlockIds> damaged) {
  const PartKind& kind = index::KindOf(part);
  for (const BlockIds ids : damaged) set_->Saved(kind.name, ids)->Remove();
  set_->segments_.erase(std::string(kind.name));
  if (set_->part(part) == nullptr) return OkStatus();
  set_->unsaved_.emplace(kind.name);
  if (kind.from_caller) return OkStatus();
  return Replace(part, Make(set_->slots_[part.number].make));
}

Status IndexSet::Writer::RepairSaved() {
  for (const IndexPart part : set_->parts_) {
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<DamagedFile> damaged, set_->DamagedOf(index::KindOf(part)));
    if (!damaged.empty()) EVERLONG_RETURN_IF_ERROR(MakeAnew(part, IdsOf(damaged)));
  }
  return OkStatus();
}

void IndexSet::Writer::CarrySaved(const FilePath& folder) const {
  for (const IndexPart part : set_->parts_) {
    const PartKind& kind = index::KindOf(part);
    for (const BlockIds ids : set_->Files(kind)) set_->Saved(kind.name, ids)->CopyTo(folder / store::kIndexFolder);
  }
}

Result<bool> IndexSet::KeepSaved(const PartKind& kind) {
  const std::unique_ptr<Part> part =
      kind.from_settings == nullptr ? nullptr : kind.from_settings(context_, Saved(kind.name)->Settings());
  if (part == nullptr) return false;
  size_t most = SIZE_MAX;
  std::vector<Status> wrong;
  bool moved = false;
  EVERLONG_ASSIGN_OR_RETURN(const Loaded loaded, LoadSaved(kind, *part, most, wrong, moved));
  for (const Status& why : wrong) Say(kind.name, why);
  if (loaded == Loaded::kSpoilt) return false;
  unsaved_.erase(std::string(kind.name));
  return SaveGiven(kind, *part);
}

Result<bool> IndexSet::SaveGiven(const PartKind& kind, const Part& part) {
  bool empty = true;
  for (int32_t number = 0; number < table_.blocks() && empty; ++number) {
    empty = table_.block(number).forgotten || !part.Has(table_.block(number));
  }
  if (empty) return false;
  EVERLONG_RETURN_IF_ERROR(SavePart(kind, part));
  return true;
}

Status IndexSet::RemoveForgotten(IndexPart of) {
  const PartKind& kind = index::KindOf(of);
  const Part* const there = slots_[of.number].part.get();
  const std::vector<BlockIds> files = Files(kind);
  if (files.empty()) return OkStatus();
  Saved(kind.name)->RemoveUnfinished();  // of all of them
  std::vector<std::string> tensors;
  if (there != nullptr) {
    tensors = there->needs().tensor_names;
  } else if (kind.tensors_of != nullptr) {
    tensors = kind.tensors_of(Saved(kind.name)->Settings());
  }
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<CoveredBlock> covered, CoveredBlocks({1, INT64_MAX}, tensors));
  for (const BlockIds ids : files) {
    const SavedIndex saved = *Saved(kind.name, ids);
    std::vector<Segment>& segments = segments_[std::string(kind.name)];
    auto segment = FindSegment(kind, ids);
    if (saved.HoldsOnly(covered) && (segment == segments.end() || !segment->is_outdated)) continue;
    if (kind.from_caller) {
      const Result<bool> written = there != nullptr ? SaveGiven(kind, *there) : KeepSaved(kind);
      if (written.ok() && *written && there != nullptr) unsaved_.erase(std::string(kind.name));
      if (written.ok() && *written) continue;
      if (!written.ok()) {
        return {written.status().code(), Name() + ": the saved index \"" + std::string(kind.name) +
                                             "\" may still hold what was forgotten: " + written.status().message()};
      }
    }
    segment = FindSegment(kind, ids);  // what was tried above may have loaded others in their place
    if (kind.in_segments && there != nullptr && segment != segments.end() && SaveSegment(kind, *there, *segment).ok()) {
      continue;
    }
    saved.Remove();
    segments.erase(segment, segments.end());  // those behind it are not loaded without it
    MarkUnsaved();
  }
  return OkStatus();
}

Status IndexSet::Writer::RemoveSavedOfForgotten() {
  Status kept;
  for (const IndexPart part : set_->parts_) {
    const Status removed = set_->RemoveForgotten(part);
    if (!removed.ok()) kept = removed;
  }
  return kept;
}

}  // namespace everlong::os
