#include "page_vectors.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <utility>

namespace everlong::index {
namespace {

// A vector's id names its block, its page in the block and its number in the page.
constexpr int64_t kPagesOfBlock = int64_t{1} << 24;
static_assert(kLargestVectorBlock <= INT64_MAX / (kPagesOfBlock * kMaxPageVectors));

int64_t IdOf(int64_t block, int32_t page, int32_t number) {
  return (block * kPagesOfBlock + page) * kMaxPageVectors + number;
}
int64_t BlockOf(int64_t id) { return id / kMaxPageVectors / kPagesOfBlock; }
int32_t PageOf(int64_t id) { return static_cast<int32_t>(id / kMaxPageVectors % kPagesOfBlock); }

std::unique_ptr<VectorIndex> MakeIndex(const PageVectorOptions& options) {
  switch (options.search) {
    case VectorSearch::kFlat:
      break;
    case VectorSearch::kHnsw:
      return MakeHnswIndex({.dimension = options.dimension});
    case VectorSearch::kDnii:
      return MakeNeuralInvertedIndex({.dimension = options.dimension});
  }
  return MakeFlatIndex({.dimension = options.dimension});
}

Result<std::shared_ptr<VectorIndex>> LoadIndex(VectorSearch search, const FilePath& file) {
  if (search == VectorSearch::kDnii) {
    EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<NeuralInvertedIndex> loaded, LoadNeuralInvertedIndex(file));
    return std::shared_ptr<VectorIndex>(std::move(loaded));
  }
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<VectorIndex> loaded,
                            search == VectorSearch::kHnsw ? LoadHnswIndex(file) : LoadFlatIndex(file));
  return std::shared_ptr<VectorIndex>(std::move(loaded));
}

std::string SettingsOf(const PageVectorOptions& options) {
  return options.encoder + "\n" + std::to_string(options.dimension) + " " +
         kVectorSearchNames[static_cast<size_t>(options.search)];
}

}  // namespace

PageVectors::PageVectors(PageVectorOptions options) : options_(std::move(options)), index_(MakeIndex(options_)) {}

Result<PageVectors> PageVectors::Load(PageVectorOptions options, const FilePath& file) {
  EVERLONG_ASSIGN_OR_RETURN(std::shared_ptr<VectorIndex> loaded, LoadIndex(options.search, file));
  if (loaded->dimension() != options.dimension || loaded->metric() != Metric::kCosine) {
    return CorruptError("'" + file.string() + "' holds vectors of another kind");
  }
  PageVectors vectors(std::move(options));
  for (const int64_t id : loaded->ids()) {
    vectors.ids_[BlockOf(id)].push_back(id);
    *vectors.most_a_page_ = std::max(vectors.most_a_page_->load(), static_cast<int32_t>(id % kMaxPageVectors) + 1);
  }
  vectors.index_ = std::move(loaded);
  return vectors;
}

std::string PageVectors::Settings() const { return SettingsOf(options_); }

std::optional<PageVectorOptions> PageVectors::ParseSettings(const std::string& settings) {
  const size_t end = settings.rfind('\n');
  if (end == std::string::npos) return std::nullopt;
  PageVectorOptions options{.encoder = settings.substr(0, end)};
  const char* const first = settings.data() + end + 1;
  const char* const last = settings.data() + settings.size();
  const auto [rest, error] = std::from_chars(first, last, options.dimension);
  const std::string_view named(rest, last);
  for (const VectorSearch search : {VectorSearch::kHnsw, VectorSearch::kDnii}) {
    if (named.ends_with(kVectorSearchNames[static_cast<size_t>(search)])) options.search = search;
  }
  if (error != std::errc() || options.dimension < 1 || SettingsOf(options) != settings) return std::nullopt;
  return options;
}

std::vector<int64_t> PageVectors::Blocks() const {
  std::vector<int64_t> blocks;
  for (const auto& [block, ids] : ids_) blocks.push_back(block);
  return blocks;
}

Status PageVectors::Add(int64_t block, int32_t block_pages, std::span<const int32_t> pages,
                        std::span<const float> vectors, std::span<const std::vector<int32_t>> terms) {
  if (!terms.empty() && terms.size() != pages.size()) {
    return InvalidArgumentError("terms are of " + std::to_string(terms.size()) + " vectors, expected " +
                                std::to_string(pages.size()));
  }
  if (Has(block)) return AlreadyExistsError("block " + std::to_string(block) + " has vectors");
  std::vector<int64_t> ids;
  ids.reserve(pages.size());
  int32_t number = 0;
  int32_t most = *most_a_page_;
  for (size_t i = 0; i < pages.size(); ++i) {
    number = i > 0 && pages[i] == pages[i - 1] ? number + 1 : 0;
    if (pages[i] < 0 || pages[i] >= block_pages || number >= kMaxPageVectors || (i > 0 && pages[i] < pages[i - 1])) {
      return InvalidArgumentError("page " + std::to_string(pages[i]) + " of vector " + std::to_string(i) +
                                  ", expected 0 to " + std::to_string(block_pages - 1) + ", ascending, at most " +
                                  std::to_string(kMaxPageVectors) + " times each");
    }
    most = std::max(most, number + 1);
    ids.push_back(IdOf(block, pages[i], number));
  }
  *most_a_page_ = most;
  EVERLONG_RETURN_IF_ERROR(index_->Add(ids, vectors));
  if (const std::shared_ptr<NeuralInvertedIndex> by_terms = lists(); by_terms != nullptr) {
    for (size_t i = 0; i < terms.size(); ++i) {
      const Status set = by_terms->SetTerms(ids[i], std::span(terms[i]).first(std::min(terms[i].size(), kMostTerms)));
      EVERLONG_CHECK(set.ok());  // the vector was added just now
    }
  }
  const std::scoped_lock lock(*ids_guard_);
  ids_.emplace(block, std::move(ids));
  return OkStatus();
}

void PageVectors::Remove(int64_t block) {
  const auto found = ids_.find(block);
  if (found == ids_.end()) return;
  index_->Remove(found->second);
  const std::scoped_lock lock(*ids_guard_);
  ids_.erase(found);
}

std::vector<float> PageVectors::Mean(int64_t block) const {
  std::vector<int64_t> ids;
  {
    const std::scoped_lock lock(*ids_guard_);
    const auto found = ids_.find(block);
    if (found != ids_.end()) ids = found->second;
  }
  std::vector<float> mean;
  for (const int64_t id : ids) {
    const std::vector<float> vector = index_->Vector(id);
    mean.resize(std::max(mean.size(), vector.size()), 0.0F);
    for (size_t i = 0; i < vector.size(); ++i) mean[i] += vector[i] / static_cast<float>(ids.size());
  }
  return mean;
}

IdFilter PageVectors::IdsOf(const BlockTable& table, const PageFilter& pages) const {
  const int32_t most = most_a_page_->load();
  if (int64_t{pages.Count()} * most > index_->size() / static_cast<int64_t>(IdFilter::kFewest)) {
    return IdFilter([&table, &pages](int64_t id) {
      const BlockEntry* const block = table.Find(BlockOf(id));
      return block != nullptr && PageOf(id) < block->page_count && pages.Allows(block->first_page + PageOf(id));
    });
  }
  std::vector<int64_t> ids;
  for (const PageRun& run : pages.runs()) {
    for (int32_t ordinal = run.first; ordinal < run.last;) {
      const BlockEntry& block = table.BlockOfPage(ordinal);
      for (; ordinal < std::min(run.last, block.pages().last); ++ordinal) {
        for (int32_t number = 0; number < most; ++number) {
          ids.push_back(IdOf(block.id, ordinal - block.first_page, number));
        }
      }
    }
  }
  return IdFilter::Few(std::move(ids));
}

Result<std::vector<PageVectors::Found>> PageVectors::Search(std::span<const float> query,
                                                            std::span<const int32_t> terms, int32_t count,
                                                            const BlockTable& table, const PageFilter& pages) const {
  if (std::ssize(query) != options_.dimension) {
    return InvalidArgumentError("page_query has " + std::to_string(query.size()) + " numbers, expected " +
                                std::to_string(options_.dimension));
  }
  const IdFilter allowed = IdsOf(table, pages);
  // So many that even pages with all their vectors among the best make `count` pages.
  const auto wanted = static_cast<int32_t>(std::min<int64_t>(int64_t{count} * most_a_page_->load(), INT32_MAX));
  const std::shared_ptr<NeuralInvertedIndex> by_terms = terms.empty() ? nullptr : lists();
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<VectorHits> hits,
                            by_terms == nullptr
                                ? index_->Search(query, wanted, allowed)
                                : by_terms->Probe(query, wanted, allowed, {.terms = {{terms.begin(), terms.end()}}}));
  std::vector<Found> found;
  std::unordered_set<int64_t> named;  // pages, by the common part of their vectors' ids
  for (const VectorHit& hit : hits[0]) {
    if (std::ssize(found) == count) break;
    if (named.insert(hit.id / kMaxPageVectors).second) found.push_back({BlockOf(hit.id), PageOf(hit.id), hit.score});
  }
  return found;
}

}  // namespace everlong::index
