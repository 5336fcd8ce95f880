// Any bytes as a saved index, or as the list beside one: refused with a reason, or an index that answers with what it
// has, gives some of it up and takes more.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "everlong/base/check.h"
#include "everlong/base/crc32c.h"
#include "everlong/index/block_table.h"
#include "everlong/index/heads.h"
#include "everlong/index/neural_inverted_index.h"
#include "everlong/index/page_filter.h"
#include "everlong/index/part.h"
#include "everlong/index/token_statistics.h"
#include "everlong/index/vector_index.h"
#include "heads_index.h"
#include "lexical_index.h"
#include "page_vectors.h"
#include "saved_indexes.h"

namespace {

using everlong::Result;
using everlong::Status;
using everlong::index::HeadsIndex;
using everlong::index::VectorHits;
using everlong::index::VectorIndex;

// Numbers from -1.5 to 1.5; no two rows of a few are alike.
std::vector<float> Numbers(size_t count) {
  std::vector<float> numbers(count);
  for (size_t i = 0; i < count; ++i) numbers[i] = static_cast<float>(i * 7 % 13) / 4 - 1.5F;
  return numbers;
}

// --- vectors

// A query of more numbers would be larger than any of these files.
constexpr int32_t kMostDimension = 4096;

void CheckAnswers(const VectorIndex& index) {
  const std::vector<int64_t> listed = index.ids();
  const std::set<int64_t> ids(listed.begin(), listed.end());
  EVERLONG_CHECK(ids.size() == listed.size() && index.size() == std::ssize(listed));
  EVERLONG_CHECK(ids.empty() || *ids.begin() >= 0);
  constexpr size_t kQueries = 2;
  const std::vector<float> queries = Numbers(kQueries * static_cast<size_t>(index.dimension()));
  const everlong::index::IdFilter every;
  const everlong::index::IdFilter even([](int64_t id) { return id % 2 == 0; });
  for (const auto* const filter : {&every, &even}) {
    const auto allowed = std::ranges::count_if(ids, [filter](int64_t id) { return filter->Allows(id); });
    for (const int32_t k : {1, 3, 1000}) {
      const Result<std::vector<VectorHits>> found = index.Search(queries, k, *filter);
      EVERLONG_CHECK(found.ok() && found->size() == kQueries);
      for (const VectorHits& hits : *found) {
        EVERLONG_CHECK(std::ssize(hits) == std::min<std::ptrdiff_t>(k, allowed));
        std::set<int64_t> named;
        for (const auto& hit : hits) {
          EVERLONG_CHECK(ids.contains(hit.id) && filter->Allows(hit.id) && named.insert(hit.id).second);
        }
      }
    }
  }
}

template <class Index>
void CheckVectors(Result<std::unique_ptr<Index>> loaded) {
  if (!loaded.ok() || (*loaded)->dimension() > kMostDimension) return;
  VectorIndex& index = **loaded;
  CheckAnswers(index);
  const std::vector<int64_t> ids = index.ids();
  const auto half = std::span(ids).first(ids.size() / 2);
  EVERLONG_CHECK(index.Remove(half) == std::ssize(half));
  CheckAnswers(index);
  // Where the links of a graph are not what a graph has, no vector may find its place.
  std::vector<int64_t> more;
  for (int64_t id = 0; more.size() < half.size() + 3; ++id) {
    if (std::ranges::find(ids, id) == ids.end()) more.push_back(id);
  }
  const Status added = index.Add(more, Numbers(more.size() * static_cast<size_t>(index.dimension())));
  EVERLONG_CHECK(added.ok() || added.code() == everlong::StatusCode::kCapacity);
  CheckAnswers(index);
}

constexpr int32_t kTerms[] = {2, 7};

void CheckPageVectors(const std::filesystem::path& file, everlong::index::VectorSearch search) {
  const everlong::index::PageVectorOptions options{"an encoder", 5, search};  // as those of the corpus
  Result<everlong::index::PageVectors> vectors = everlong::index::PageVectors::Load(options, file);
  if (!vectors.ok()) return;
  const std::vector<int64_t> blocks = vectors->Blocks();
  everlong::index::BlockTable table(1);
  for (const int64_t id : blocks) {
    everlong::index::NewBlock block;
    block.id = id;
    block.span = {0, 1 + id % 64};  // pages, of which some vectors have others
    if (id > 0) table.Append(block);
  }
  const auto every = everlong::index::PageFilter::All(table.pages());
  const auto found = vectors->Search(Numbers(5), kTerms, 4, table, every);
  EVERLONG_CHECK(found.ok() && found->size() <= 4);
  for (const auto& page : *found) EVERLONG_CHECK(vectors->Has(page.block) && page.page >= 0);
  for (const int64_t block : blocks) vectors->Remove(block);
  EVERLONG_CHECK(vectors->Search(Numbers(5), kTerms, 4, table, every)->empty());
}

// --- heads

constexpr int32_t kHeadDim = 8;
const std::vector<everlong::index::RetrievalHead> kHeads = {{1, 3, 1}, {0, 0, 0}, {1, 2, 1}};  // the corpus's
constexpr size_t kAtPages = 8;  // in the header, which follows the line that names the kind
constexpr size_t kMostPages = 4096;

// How many pages a file says that it has; an opener knows it from the list beside the file.
size_t PagesOf(std::span<const uint8_t> file) {
  const auto line = static_cast<size_t>(std::ranges::find(file, '\n') - file.begin());
  uint64_t pages = 0;
  if (line + 1 + kAtPages + sizeof pages > file.size()) return 0;
  std::memcpy(&pages, file.data() + line + 1 + kAtPages, sizeof pages);
  return std::min<uint64_t>(pages, kMostPages);
}

void CheckAnswers(const HeadsIndex& index) {
  const std::vector<float> weights = {1.0F, 0.25F};
  const std::vector<float> queries = Numbers(weights.size() * kHeads.size() * kHeadDim);
  const auto every = everlong::index::PageFilter::All(index.pages());
  everlong::index::PageFilter even;
  for (int32_t page = 0; page < index.pages(); page += 2) even.Add({page, page + 1});
  for (const everlong::index::PageFilter* const filter : {&every, &std::as_const(even)}) {
    const auto found = index.Scored(queries, weights, *filter);
    if (!found.ok()) continue;  // keys so long that their scores would be no numbers
    std::set<int32_t> named;
    for (const auto& hit : *found) {
      EVERLONG_CHECK(filter->Allows(hit.page) && hit.score > 0 && named.insert(hit.page).second);
    }
  }
}

void CheckHeads(const std::filesystem::path& file, size_t pages) {
  // Without every fifth page, whose number another has or nobody.
  std::vector<int32_t> ordinals(pages);
  int32_t next = 0;
  for (size_t page = 0; page < pages; ++page) {
    const bool kept = page % 5 != 4;
    ordinals[page] = kept ? next : -1;
    next += kept || page % 2 == 0 ? 1 : 0;
  }
  for (const auto keys : everlong::index::kKeyStorages) {
    for (const int32_t coarse_from : {1, static_cast<int32_t>(pages) + 1, everlong::index::kCoarseFrom}) {
      everlong::index::HeadsOptions options;
      options.coarse_from = coarse_from;
      options.keys = keys;
      auto index = std::make_unique<HeadsIndex>(kHeads, kHeadDim, options);
      if (!index->Load(file, ordinals).ok()) break;
      CheckAnswers(*index);
      constexpr int32_t kTokens = 3;
      const std::vector<float> page = Numbers(index->key_heads().size() * kTokens * kHeadDim);
      for (int i = 0; i < 2; ++i) EVERLONG_CHECK(index->Add(page, kTokens, 1).ok());
      CheckAnswers(*index);
      for (int32_t gone = 0; gone < index->pages(); gone += 3) index->Forget(gone);
      CheckAnswers(*index);
    }
  }
}

// --- words

// Of blocks of one page; as long as the corpus's, whose lengths an opener knows from the list beside the file.
void CheckLexical(const std::filesystem::path& file, uint64_t pages, bool all) {
  constexpr int32_t kPageTokens = 4;
  everlong::index::BlockTable table(kPageTokens);
  const auto append = [&table] {
    const int64_t begin = int64_t{table.pages()} * kPageTokens;
    table.Append({.id = table.blocks() + 1, .span = {begin, begin + kPageTokens}, .source = {}, .tags = {}});
  };
  std::vector<everlong::index::SavedPage> saved;
  for (uint64_t page = 0; page < pages; ++page) {
    append();
    saved.push_back({kPageTokens, !all && page % 5 == 4 ? -1 : static_cast<int32_t>(page)});
  }
  everlong::index::TokenStatistics statistics;
  everlong::index::LexicalIndex index(table, statistics);
  if (!index.Load(file, saved).ok()) return;
  index.CountInto(statistics);
  const std::vector<int32_t> ids = {0, 1, 2, 3, 5, 8, 300};
  const auto every = everlong::index::PageFilter::All(index.pages());
  const auto found = index.Search(ids, 1000, every);
  EVERLONG_CHECK(found.ok() && found->pages.size() <= found->groups.size());
  for (const auto& hit : found->groups) EVERLONG_CHECK(every.Allows(hit.page) && hit.score > 0);
  EVERLONG_CHECK(index.Search(ids, 10, everlong::index::PageFilter({{index.pages() / 2, index.pages()}})).ok());
  for (int32_t page = 0; page < index.pages(); page += 3) index.Remove(page, ids);
  append();
  EVERLONG_CHECK(index.Add(table.pages() - 1, std::vector<int32_t>{1, 2, 3, 5}).ok());
  statistics.AddPage(std::vector<int32_t>{1, 2, 3, 5});
  EVERLONG_CHECK(!index.Search(ids, 10, everlong::index::PageFilter::All(table.pages()))->pages.empty());
}

void CheckLexical(const std::filesystem::path& file, std::span<const uint8_t> bytes) {
  // A table for a file of another kind would take most of the time.
  constexpr std::string_view kBegins = "everlong lexical ";
  if (!std::ranges::equal(bytes.first(std::min(bytes.size(), kBegins.size())), std::as_bytes(std::span(kBegins)), {},
                          [](uint8_t byte) { return std::byte{byte}; })) {
    return;
  }
  const auto line = static_cast<size_t>(std::ranges::find(bytes, '\n') - bytes.begin());
  uint64_t pages = 0;
  if (line + 1 + sizeof pages > bytes.size()) return;
  std::memcpy(&pages, bytes.data() + line + 1, sizeof pages);
  pages = std::min<uint64_t>(pages, kMostPages);
  // With every fifth page gone, which is counted out; and with all of them, when nobody reads the postings first.
  for (const bool all : {false, true}) CheckLexical(file, pages, all);
}

// --- the list of what an index covers

// An index's folder, which goes with the process.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("everlong-index-fuzzer-" + std::to_string(getpid()))) {
    std::filesystem::create_directory(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

void WriteFile(const std::filesystem::path& file, std::span<const uint8_t> bytes) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  EVERLONG_CHECK(out.good());
}

void CheckList(std::span<const uint8_t> list) {
  static const Folder folder;
  constexpr std::string_view kMagic = "everlong index blocks 2\n";
  constexpr std::string_view kFirstMagic = "everlong index blocks 1\n";
  constexpr size_t kHeader = 16;  // the checksum of the index comes first, the length of the settings next
  if (list.size() < kMagic.size() + kHeader) return;
  const std::string_view magic(reinterpret_cast<const char*>(list.data()), kMagic.size());
  if (magic != kMagic && magic != kFirstMagic) return;
  const auto header = list.subspan(kMagic.size());
  const std::filesystem::path index = folder.path() / "heads";
  std::filesystem::remove(folder.path() / "heads.blocks");
  if (magic == kFirstMagic) {  // a file of its own beside the index
    WriteFile(index, header.first(sizeof(uint32_t)));
    WriteFile(folder.path() / "heads.blocks", list);
  } else {
    auto writer = everlong::index::IndexFileWriter::Create({index, std::as_bytes(list)}, "");
    EVERLONG_CHECK(writer.ok() && writer->Commit().ok());
  }
  uint32_t settings_bytes = 0;
  std::memcpy(&settings_bytes, header.data() + sizeof(uint32_t), sizeof settings_bytes);
  std::string settings;
  if (settings_bytes <= header.size() - kHeader) {
    const auto bytes = header.subspan(kHeader, settings_bytes);
    settings.assign(bytes.begin(), bytes.end());
  }
  // The corpus has them.
  const std::vector<everlong::os::CoveredBlock> here = {{1, 0, 0, 6, 0, 12.5, 7}, {2, 0, 6, 12, 0, 12.5, 8}};
  const everlong::os::SavedIndex saved(folder.path(), "heads");
  const auto coverage = saved.Read(settings, here);
  const bool holds_only = saved.HoldsOnly(here);
  if (!coverage.ok() || !coverage->has_value()) return;
  int64_t last = 0;
  bool all_here = true;
  for (const auto& block : (*coverage)->blocks) {
    EVERLONG_CHECK(block.id > last && block.begin >= 0 && block.end > block.begin);
    last = block.id;
    all_here = all_here && std::ranges::any_of(here, [&block](const auto& one) { return one.Is(block); });
  }
  EVERLONG_CHECK(!holds_only || all_here);
}

// --- files

void Check(std::span<const uint8_t> file) {
  static const int memory = ::memfd_create("fuzzed", 0);
  EVERLONG_CHECK(memory >= 0 && ::ftruncate(memory, 0) == 0);
  EVERLONG_CHECK(::pwrite(memory, file.data(), file.size(), 0) == std::ssize(file));
  const std::string path = "/proc/self/fd/" + std::to_string(memory);
  CheckVectors(everlong::index::LoadFlatIndex(path));
  CheckVectors(everlong::index::LoadHnswIndex(path));
  CheckVectors(everlong::index::LoadNeuralInvertedIndex(path));
  using everlong::index::VectorSearch;
  for (const auto search : {VectorSearch::kFlat, VectorSearch::kHnsw, VectorSearch::kDnii}) {
    CheckPageVectors(path, search);
  }
  CheckHeads(path, PagesOf(file));
  CheckLexical(path, file);
  CheckList(file);
}

}  // namespace

namespace {

// Put the checksum of what is before the codes and keys of heads, the lists of words, or the vectors, where it belongs.
void ChecksumSoFar(std::vector<uint8_t>& file) {
  const auto line = static_cast<size_t>(std::ranges::find(file, '\n') - file.begin()) + 1;
  const std::string_view begin(reinterpret_cast<const char*>(file.data()), std::min(line, file.size()));
  size_t at = line;
  if (begin.starts_with("everlong heads ")) {
    if (line + 24 > file.size()) return;
    const everlong::index::HeadsIndex shape(kHeads, kHeadDim);
    const size_t key_heads = shape.key_heads().size();
    const bool has_codes = file[line + 16] != 0;
    const size_t axes = key_heads * static_cast<size_t>(kHeadDim + 2) *
                        static_cast<size_t>(everlong::index::CoarseKeys::DimsOf(kHeadDim)) * sizeof(float);
    at += 24 + kHeads.size() * 12 + key_heads * 8 + PagesOf(file) * 8 + (has_codes ? axes : 0);
  } else if (begin.starts_with("everlong lexical ")) {
    std::array<uint64_t, 4> header = {};  // pages, token ids, postings, bytes of a count
    if (line + sizeof header > file.size()) return;
    std::memcpy(header.data(), file.data() + line, sizeof header);
    if (header[0] > file.size() || header[1] > file.size()) return;
    const auto aligned = [](size_t place, size_t to) { return (place + to - 1) / to * to; };
    at = aligned(aligned(line + sizeof header, 4) + 4 * (header[0] + header[1]), 8) + 8 * header[1];
  } else if (!begin.starts_with("everlong meaning ")) {
    return;
  }
  const uint32_t crc = everlong::Crc32c(std::as_bytes(std::span(file).first(std::min(at, file.size()))));
  if (at + sizeof crc <= file.size()) std::memcpy(file.data() + at, &crc, sizeof crc);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> file(data, data + size);
  Check(file);
  // And with the checksums that it should have, which no fuzzer guesses.
  uint32_t crc = 0;
  if (file.size() < sizeof crc) return 0;
  ChecksumSoFar(file);
  const std::span<uint8_t> last = std::span(file).last(sizeof crc);
  crc = everlong::Crc32c(std::as_bytes(std::span(file).first(file.size() - sizeof crc)));
  std::memcpy(last.data(), &crc, sizeof crc);
  Check(file);
  return 0;
}
