// The indexes of a memory in its folder's index/: saved, taken up again, given up where they do not fit.
#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "memory_state.h"

namespace everlong::os {
namespace {

using index::HeadsIndex;

std::string HeadsSettings(const std::vector<index::RetrievalHead>& heads, int32_t head_dim, index::KeyStorage keys) {
  std::string settings = std::to_string(head_dim);
  for (const index::RetrievalHead& head : heads) {
    settings +=
        " " + std::to_string(head.layer) + "." + std::to_string(head.query_head) + "." + std::to_string(head.kv_head);
  }
  if (keys != index::KeyStorage::kBf16) settings.append(" ").append(NameOf(keys));
  return settings;
}

// What was loaded, if it was the index that `coverage` is about.
template <class T>
Result<T> Covered(Result<T> loaded, const SavedIndex& saved, const Coverage& coverage) {
  if (loaded.ok()) EVERLONG_RETURN_IF_ERROR(saved.CheckIs(coverage.checksum));
  return loaded;
}

}  // namespace

std::vector<CoveredBlock> Memory::State::CoveredBlocks() const {
  std::vector<CoveredBlock> covered;
  for (const ListedBlock& listed : ListBlocks()) {
    if (listed.forgotten) continue;
    const BlockPages& block = blocks.at(listed.id);
    int64_t sinks = 0;
    for (int32_t page = block.first; page < block.first + block.count; ++page) sinks += directory.at(page).sink_tokens;
    covered.push_back({listed.id, block.stream, block.span.begin, block.span.end, sinks, block.created_at});
  }
  return covered;
}

std::optional<SavedIndex> Memory::State::Saved(const std::string& name) const {
  const std::optional<std::filesystem::path> folder = store->folder();
  if (!folder) return std::nullopt;
  return SavedIndex(*folder / store::kIndexFolder, name);
}

void Memory::State::Say(const std::string& name, const Status& why) {
  const std::scoped_lock saying(message_guard);
  messages.push_back(Name() + ": the saved index \"" + name + "\" cannot be used and is made anew (" + why.message() +
                     ")");
}

std::optional<Coverage> Memory::State::CoverageOf(const std::string& name, const std::string& settings) {
  const std::optional<SavedIndex> saved = Saved(name);
  if (!saved) return std::nullopt;
  Result<std::optional<Coverage>> coverage = saved->Read(settings, CoveredBlocks());
  if (coverage.ok()) return std::move(coverage).value();
  Say(name, coverage.status());
  return std::nullopt;
}

std::optional<Memory::State::SavedHeads> Memory::State::LoadHeads(const std::vector<index::RetrievalHead>& of,
                                                                  index::HeadsOptions options) {
  // Ordinals of pages that were forgotten since the memory was opened stay taken; a saved index knows none of those.
  const std::vector<ListedBlock> listed = ListBlocks();
  if (std::ranges::any_of(listed, &ListedBlock::forgotten)) return std::nullopt;
  const std::optional<Coverage> coverage = CoverageOf(kHeadsFile, HeadsSettings(of, layout.head_dim, options.keys));
  if (!coverage) return std::nullopt;
  if (coverage->gaps) {
    Say(kHeadsFile, CorruptError("it lacks blocks of this memory"));
    return std::nullopt;
  }
  // Of a block that is forgotten nobody else knows how long it was: no index holds more tokens than it has bytes.
  std::error_code error;
  const SavedIndex saved = *Saved(kHeadsFile);
  const std::uintmax_t bytes = std::filesystem::file_size(saved.file(), error);
  std::uintmax_t left = error ? 0 : bytes;
  std::vector<uint8_t> kept;  // by page
  for (size_t i = 0; i < coverage->blocks.size(); ++i) {
    const CoveredBlock& block = coverage->blocks[i];
    if (std::cmp_greater(block.end - block.begin, left)) {
      Say(kHeadsFile, CorruptError("its list says more than it holds"));
      return std::nullopt;
    }
    left -= static_cast<std::uintmax_t>(block.end - block.begin);
    kept.insert(kept.end(), static_cast<size_t>(layout.PageCount(block.end - block.begin)), coverage->kept[i]);
  }
  Result<HeadsIndex> loaded =
      Covered(HeadsIndex::Load(saved.file(), of, layout.head_dim, kept, options), saved, *coverage);
  if (!loaded.ok()) {
    Say(kHeadsFile, loaded.status());
    return std::nullopt;
  }
  const auto blocks_kept = static_cast<size_t>(std::ranges::count(coverage->kept, uint8_t{1}));
  if (blocks_kept != coverage->blocks.size()) unsaved.insert(kHeadsFile);
  return SavedHeads{std::move(loaded).value(), blocks_kept};
}

std::unique_ptr<index::VectorIndex> Memory::State::LoadBlockIndex(index::IndexPart kind) {
  const char* const name = kind == index::IndexPart::kHnsw ? kHnswFile : kMeanPoolFile;
  const int32_t dimension = layout.kv_heads * layout.head_dim;
  const std::optional<Coverage> coverage = CoverageOf(name, std::to_string(dimension));
  if (!coverage) return nullptr;
  const SavedIndex saved = *Saved(name);
  auto loaded =
      Covered(kind == index::IndexPart::kHnsw ? index::LoadHnswIndex(saved.file()) : index::LoadFlatIndex(saved.file()),
              saved, *coverage);
  if (loaded.ok() && (*loaded)->dimension() != dimension) loaded = CorruptError("it holds vectors of another size");
  if (!loaded.ok()) {
    Say(name, loaded.status());
    return nullptr;
  }
  for (const int64_t id : (*loaded)->ids()) {
    if (!blocks.contains(id) && (*loaded)->Remove({&id, 1}) > 0) unsaved.insert(name);
  }
  return std::move(loaded).value();
}

PageVectors Memory::State::LoadPageVectors(const PageVectorOptions& options) {
  PageVectors none(options);
  const std::optional<Coverage> coverage = CoverageOf(kPageVectorsFile, none.Settings());
  if (!coverage) return none;
  const SavedIndex saved = *Saved(kPageVectorsFile);
  Result<PageVectors> loaded = Covered(PageVectors::Load(options, saved.file()), saved, *coverage);
  if (!loaded.ok()) {
    Say(kPageVectorsFile, loaded.status());
    return none;
  }
  for (const int64_t block : loaded->Blocks()) {
    if (blocks.contains(block)) continue;
    loaded->Remove(block);
    unsaved.insert(kPageVectorsFile);
  }
  return std::move(loaded).value();
}

void Memory::State::MarkUnsaved() {
  if (heads) unsaved.insert(kHeadsFile);
  if (mean_pool != nullptr) unsaved.insert(kMeanPoolFile);
  if (hnsw != nullptr) unsaved.insert(kHnswFile);
  if (page_vectors) unsaved.insert(kPageVectorsFile);
}

Status Memory::State::SaveIndexes() {
  if (store->read_only() || !store->folder()) return OkStatus();
  // Each save has a name of its own, so nothing else ever takes the place of what a crash left.
  for (const char* const name : kSavedIndexes) Saved(name)->RemoveUnfinished();
  const std::vector<CoveredBlock> covered = CoveredBlocks();
  const auto save = [&](const char* name, const std::string& settings, const auto& write) {
    if (!unsaved.contains(name)) return OkStatus();
    EVERLONG_RETURN_IF_ERROR(Saved(name)->Write(settings, covered, write));
    unsaved.erase(name);
    return OkStatus();
  };
  if (heads) {
    std::vector<int32_t> pages;
    for (int32_t page = 0; page < directory.size(); ++page) {
      if (!directory.at(page).forgotten) pages.push_back(page);
    }
    EVERLONG_RETURN_IF_ERROR(save(kHeadsFile, HeadsSettings(heads->heads(), layout.head_dim, heads->options().keys),
                                  [&](const std::filesystem::path& file) { return heads->Save(file, pages); }));
  }
  const std::string dimension = std::to_string(layout.kv_heads * layout.head_dim);
  if (mean_pool != nullptr) {
    EVERLONG_RETURN_IF_ERROR(
        save(kMeanPoolFile, dimension, [&](const std::filesystem::path& file) { return mean_pool->Save(file); }));
  }
  if (hnsw != nullptr) {
    EVERLONG_RETURN_IF_ERROR(
        save(kHnswFile, dimension, [&](const std::filesystem::path& file) { return hnsw->Save(file); }));
  }
  if (page_vectors && unsaved.contains(kPageVectorsFile)) {
    EVERLONG_RETURN_IF_ERROR(SavePageVectors(*page_vectors));
    unsaved.erase(kPageVectorsFile);
  }
  return OkStatus();
}

Status Memory::State::SavePageVectors(const PageVectors& vectors) const {
  std::vector<CoveredBlock> with_vectors = CoveredBlocks();
  std::erase_if(with_vectors, [&](const CoveredBlock& block) { return !vectors.Has(block.id); });
  return Saved(kPageVectorsFile)->Write(vectors.Settings(), with_vectors, [&](const std::filesystem::path& file) {
    return vectors.Save(file);
  });
}

void Memory::State::CarrySavedIndexes(const std::filesystem::path& folder) const {
  for (const char* const name : kSavedIndexes) {
    if (const std::optional<SavedIndex> saved = Saved(name)) saved->CopyTo(folder / store::kIndexFolder);
  }
}

bool Memory::State::KeepSavedPageVectors(const SavedIndex& saved) {
  const std::optional<PageVectorOptions> options = PageVectors::ParseSettings(saved.Settings());
  if (!options) return false;
  const PageVectors kept = LoadPageVectors(*options);
  unsaved.erase(kPageVectorsFile);
  return !kept.Blocks().empty() && SavePageVectors(kept).ok();
}

void Memory::State::RemoveSavedIndexesOfForgotten() {
  const std::vector<CoveredBlock> covered = CoveredBlocks();
  for (const char* const name : kSavedIndexes) {
    const std::optional<SavedIndex> saved = Saved(name);
    if (!saved) continue;
    saved->RemoveUnfinished();
    if (saved->HoldsOnly(covered)) continue;
    if (name == kPageVectorsFile && !page_vectors && KeepSavedPageVectors(*saved)) continue;
    saved->Remove();
    MarkUnsaved();
  }
}

}  // namespace everlong::os
