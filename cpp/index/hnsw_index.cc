// The HNSW index: hierarchical navigable small worlds (Malkov and Yashunin, 2018). Only this file includes hnswlib.
#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <queue>
#include <random>
#include <shared_mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

// hnswlib's prefetching reads one link past the end of a full list, so every list that it allocates gets room for one
// more. The standard headers that declare malloc are included above.
constexpr size_t kSpareLink = sizeof(unsigned);
#define malloc(size) malloc((size) + kSpareLink)
#include <hnswlib/hnswlib.h>
#undef malloc

#include "best_first.h"
#include "everlong/base/cache_lines.h"
#include "everlong/base/fair_shared_mutex.h"
#include "everlong/base/huge_pages.h"
#include "everlong/base/parallel_for.h"
#include "everlong/index/index_file.h"
#include "everlong/index/vector_index.h"
#include "vector_scan.h"

namespace everlong::index {
namespace {

constexpr std::string_view kMagic = "everlong hnsw 2\n";
constexpr size_t kFirstCapacity = 1024;
constexpr size_t kFirstBytes = size_t{64} << 20;  // of fewer rows, where these are so large
constexpr size_t kRebuiltAtOnce = 128;
// Of a writer whom searches wait for, or longer, until each thread has added its vector. Many short turns would cost
// more than what is added in them.
constexpr std::chrono::milliseconds kTurn{1};
constexpr unsigned kSeed = 20090117;

// hnswlib's distances by our kernels. Its own are chosen at compile time, ours at run time.
class KernelSpace final : public hnswlib::SpaceInterface<float> {
 public:
  KernelSpace(int64_t width, Metric metric) : width_(width), is_l2_(metric == Metric::kL2) {}
  size_t get_data_size() override { return static_cast<size_t>(width_) * sizeof(float); }
  hnswlib::DISTFUNC<float> get_dist_func() override {
    return is_l2_ ? BestVectorKernel().squared_distance : BestVectorKernel().negative_dot;
  }
  void* get_dist_func_param() override { return &width_; }

 private:
  int64_t width_;
  bool is_l2_;
};

class FilterFunctor final : public hnswlib::BaseFilterFunctor {
 public:
  explicit FilterFunctor(const IdFilter& filter) : filter_(filter) {}
  bool operator()(hnswlib::labeltype id) override { return filter_.Allows(static_cast<int64_t>(id)); }

 private:
  const IdFilter& filter_;
};

// Call body(i) for all of [0, count), or until one returns false. Return how many were called; they are the first ones.
// A free thread takes the next, because they take different times.
template <class Body>
int64_t ForEachTaken(int64_t count, const Body& body) {
  std::atomic<int64_t> next = 0;
  std::atomic<bool> goes_on = true;
  ParallelFor(0, count, 1, [&](int64_t, int64_t) {
    for (int64_t i = 0; goes_on && (i = next.fetch_add(1)) < count;) {
      if (!body(i)) goes_on = false;
    }
  });
  return std::min(next.load(), count);
}

// hnswlib's value instead of a level where there are no rows.
constexpr int32_t kNoLevel = -1;
constexpr auto kNoRow = static_cast<hnswlib::tableint>(-1);

struct Header {
  HnswOptions options;
  int32_t max_level = kNoLevel;
  uint32_t entry_row = kNoRow;
  int64_t count = 0;
};

// Return the fewest bytes of a row of the lowest level.
size_t LeastRowBytes(const HnswOptions& options) {
  return static_cast<size_t>(PaddedWidth(options.dimension)) * sizeof(float) +
         2 * static_cast<size_t>(options.links) * sizeof(hnswlib::tableint);
}

// There is room for at least one row, because hnswlib cannot begin with none.
size_t CapacityFor(const HnswOptions& options, size_t count) {
  return std::max(count, std::clamp<size_t>(kFirstBytes / LeastRowBytes(options), 1, kFirstCapacity));
}

class HnswIndex final : public VectorIndex {
 public:
  // Make an index with room for `count` vectors, and at least for some.
  explicit HnswIndex(const HnswOptions& options, size_t count = 0)
      : options_(options),
        width_(PaddedWidth(options.dimension)),
        space_(width_, options.metric),
        graph_(&space_, CapacityFor(options, count), static_cast<size_t>(options.links),
               static_cast<size_t>(options.ef_construction), kSeed) {
    EVERLONG_CHECK(options.dimension >= 1 && options.links >= 2 && options.links <= kMostHnswLinks &&
                   options.ef_construction >= 1 && options.ef >= 1);
    graph_.setEf(static_cast<size_t>(options.ef));
    AlignRows();
    AdviseHugePages(graph_.data_level0_memory_, RowBytes(graph_.max_elements_));
    graph_.label_lookup_.reserve(graph_.max_elements_);
    row_ids_.reserve(graph_.max_elements_);
  }

  Status Add(std::span<const int64_t> ids, std::span<const float> vectors) override {
    EVERLONG_RETURN_IF_ERROR(CheckVectors(vectors, std::ssize(ids), options_.dimension, "vectors"));
    const std::scoped_lock writing(writer_);
    EVERLONG_RETURN_IF_ERROR(
        CheckNewIds(ids, [this](int64_t id) { return graph_.label_lookup_.contains(static_cast<size_t>(id)); }));
    return AddAll(ids, PadVectors(vectors, options_.dimension, options_.metric));
  }

  int64_t Remove(std::span<const int64_t> ids) override {
    const std::scoped_lock writing(writer_);
    const std::unique_lock changing(guard_);
    int64_t removed = 0;
    for (const int64_t id : ids) {
      const auto found = graph_.label_lookup_.find(static_cast<hnswlib::labeltype>(id));
      if (found == graph_.label_lookup_.end()) continue;
      const hnswlib::tableint row = found->second;
      graph_.markDeletedInternal(row);
      graph_.label_lookup_.erase(found);
      row_ids_[row] = kNoId;
      free_rows_.push_back(row);
      ++removed;
    }
    return removed;
  }

  Result<std::vector<VectorHits>> Search(std::span<const float> queries, int32_t k,
                                         const IdFilter& filter) const override {
    EVERLONG_RETURN_IF_ERROR(CheckSearch(queries, k, options_.dimension));
    const std::vector<float> padded = PadVectors(queries, options_.dimension, options_.metric);
    const std::shared_lock reading(guard_);
    const ScannedRows rows = Rows();
    FilterFunctor functor(filter);
    const auto search = [&](std::span<VectorHits> hits) -> Status {
      std::atomic<bool> failed = false;
      ForEachTaken(std::ssize(hits), [&](int64_t query) {
        try {
          hits[static_cast<size_t>(query)] =
              SearchGraph(rows, padded.data() + query * width_, k, filter.all() ? nullptr : &functor);
        } catch (const std::exception&) {
          failed = true;
        }
        return true;
      });
      return failed ? CapacityError("no memory for a search") : OkStatus();
    };
    return SearchOrScan(
        {rows, Live(), options_.exact_below}, filter, padded, k,
        [this](int64_t allowed) { return ScanIsCheaper(allowed); }, search);
  }

  std::vector<float> Vector(int64_t id) const override {
    const std::shared_lock reading(guard_);
    const auto found = graph_.label_lookup_.find(static_cast<hnswlib::labeltype>(id));
    if (found == graph_.label_lookup_.end()) return {};
    std::vector<float> vector(static_cast<size_t>(options_.dimension));
    std::memcpy(vector.data(), graph_.getDataByInternalId(found->second), vector.size() * sizeof(float));
    return vector;
  }

  Status Save(const IndexFile& file) const override {
    const std::shared_lock reading(guard_);
    if (free_rows_.empty()) return SaveRows(file);
    // A removed row stays as it was until it is used again. None of it may get into a file.
    EVERLONG_ASSIGN_OR_RETURN(const std::unique_ptr<HnswIndex> live, BuildOfLive());
    return live->SaveRows(file);
  }

  static Result<std::unique_ptr<VectorIndex>> Load(const FilePath& file) {
    EVERLONG_ASSIGN_OR_RETURN(IndexFileReader reader, IndexFileReader::Open(file, kMagic));
    Header header;
    EVERLONG_RETURN_IF_ERROR(reader.ReadValue(header));
    const HnswOptions& options = header.options;
    if (options.dimension < 1 || options.metric > Metric::kL2 || options.links < 2 || options.links > kMostHnswLinks ||
        options.ef_construction < 1 || options.ef < 1 || header.count < 0 ||
        std::cmp_greater(header.count, reader.left() / sizeof(float)) ||
        (header.count > 0 ? header.entry_row >= header.count || header.max_level < 0
                          : header.entry_row != kNoRow || header.max_level != kNoLevel)) {
      return reader.Corrupt("header out of range");
    }
    const auto count = static_cast<size_t>(header.count);
    // Allocate no more than the file can hold, except the room of an empty index.
    const size_t least_row = LeastRowBytes(options);
    if (count > reader.left() / least_row) return reader.Truncated();
    if (count == 0 && least_row > kFirstBytes) {
      return CapacityError(Quoted(file) + ": has vectors of " + std::to_string(options.dimension) + " numbers");
    }
    std::unique_ptr<HnswIndex> index;
    try {
      index = std::make_unique<HnswIndex>(options, count);
    } catch (const std::exception& error) {  // out of memory
      return CapacityError(Quoted(file) + ": " + error.what());
    }
    EVERLONG_RETURN_IF_ERROR(index->Read(reader, header));
    return std::unique_ptr<VectorIndex>(std::move(index));
  }

  int32_t dimension() const override { return options_.dimension; }
  Metric metric() const override { return options_.metric; }
  int64_t size() const override {
    const std::shared_lock reading(guard_);
    return Live();
  }
  std::vector<int64_t> ids() const override {
    const std::shared_lock reading(guard_);
    std::vector<int64_t> live;
    std::ranges::copy_if(row_ids_, std::back_inserter(live), [](int64_t id) { return id != kNoId; });
    return live;
  }
  int64_t bytes() const override {
    const std::shared_lock reading(guard_);
    constexpr size_t kMapEntry = 4 * sizeof(int64_t);  // about, in the usual libraries
    const size_t bytes = graph_.max_elements_ * (graph_.size_data_per_element_ + sizeof(char*) + sizeof(int) +
                                                 sizeof(std::mutex) + sizeof(hnswlib::vl_type)) +
                         row_ids_.capacity() * sizeof(int64_t) + graph_.label_lookup_.size() * kMapEntry + link_bytes_;
    return static_cast<int64_t>(bytes);
  }

 private:
  using Graph = hnswlib::HierarchicalNSW<float>;

  [[nodiscard]] int64_t Live() const { return std::ssize(row_ids_) - std::ssize(free_rows_); }
  [[nodiscard]] size_t LinkBytes(size_t row) const {
    return static_cast<size_t>(graph_.element_levels_[row]) * graph_.size_links_per_element_;
  }

  // Lay out rows of hnswlib's lowest level as links, id, then the vector, before there are any. If the allocator places
  // a large array as glibc does, kHeader bytes behind a page's beginning, the vector begins a cache line. Right behind
  // the links, where hnswlib puts it, every load would span two lines.
  void AlignRows() {
    constexpr size_t kHeader = 16;
    const auto up_to = [](size_t bytes, size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; };
    graph_.label_offset_ = up_to(graph_.size_links_level0_, sizeof(hnswlib::labeltype));
    graph_.offsetData_ = up_to(graph_.label_offset_ + sizeof(hnswlib::labeltype) + kHeader, kCacheLine) - kHeader;
    graph_.size_data_per_element_ = up_to(graph_.offsetData_ + graph_.data_size_, kCacheLine);
    graph_.resizeIndex(graph_.max_elements_);
  }

  [[nodiscard]] int64_t RowBytes(size_t rows) const {
    return static_cast<int64_t>(rows * graph_.size_data_per_element_);
  }

  // Make room for `capacity` rows. What has them is copied while searches go on: only this thread changes it. They wait
  // for a change of pointers alone, and what was there before is freed behind their backs.
  void Grow(size_t capacity) {
    const size_t count = graph_.cur_element_count;
    const auto allocated = [](size_t bytes) {  // hnswlib frees it
      std::unique_ptr<char, decltype(&std::free)> room(static_cast<char*>(std::malloc(bytes)), &std::free);
      if (room == nullptr) throw std::bad_alloc();
      return room;
    };
    auto rows = allocated(static_cast<size_t>(RowBytes(capacity)));
    AdviseHugePages(rows.get(), RowBytes(capacity));  // they are read in no order
    std::memcpy(rows.get(), graph_.data_level0_memory_, static_cast<size_t>(RowBytes(count)));
    auto links = allocated(capacity * sizeof(char*));
    std::memcpy(links.get(), graph_.linkLists_, count * sizeof(char*));
    std::vector<int> levels(capacity);
    std::copy_n(graph_.element_levels_.begin(), count, levels.begin());
    std::vector<int64_t> ids;
    ids.reserve(capacity);
    ids.assign(row_ids_.begin(), row_ids_.end());
    auto rows_of_ids = decltype(graph_.label_lookup_)(capacity);
    rows_of_ids.insert(graph_.label_lookup_.begin(), graph_.label_lookup_.end());
    std::vector<std::mutex> locks(capacity);
    auto visited = std::make_unique<hnswlib::VisitedListPool>(1, static_cast<int>(capacity));

    const std::unique_lock changing(guard_);  // gone before what it is declared behind
    char* const old_rows = std::exchange(graph_.data_level0_memory_, rows.release());
    rows.reset(old_rows);
    auto** const old_links = std::exchange(graph_.linkLists_, reinterpret_cast<char**>(links.release()));
    links.reset(reinterpret_cast<char*>(old_links));
    graph_.element_levels_.swap(levels);
    row_ids_.swap(ids);
    graph_.label_lookup_.swap(rows_of_ids);
    graph_.link_list_locks_.swap(locks);
    graph_.visited_list_pool_.swap(visited);
    graph_.max_elements_ = capacity;
  }

  [[nodiscard]] ScannedRows Rows() const {
    ScannedRows rows;
    rows.stored = {reinterpret_cast<const std::byte*>(graph_.data_level0_memory_) + graph_.offsetData_,
                   static_cast<int64_t>(graph_.size_data_per_element_), std::ssize(row_ids_), width_, nullptr};
    rows.ids = row_ids_.data();
    rows.row_of = [this](int64_t id) {
      const auto found = graph_.label_lookup_.find(static_cast<hnswlib::labeltype>(id));
      return found == graph_.label_lookup_.end() ? -1 : static_cast<int32_t>(found->second);
    };
    rows.metric = options_.metric;
    return rows;
  }

  // To meet ef allowed nodes, the graph looks at about ef / (allowed / rows) nodes of 2 * links neighbours each.
  [[nodiscard]] bool ScanIsCheaper(int64_t allowed) const {
    const double visited = 2.0 * options_.links * options_.ef * static_cast<double>(row_ids_.size());
    return allowed <= options_.exact_below || static_cast<double>(allowed) * static_cast<double>(allowed) <= visited;
  }

  // Add padded vectors, a few at a time where searches wait. One thread at a time may call it.
  Status AddAll(std::span<const int64_t> ids, std::span<const float> vectors) {
    try {
      const size_t rows = graph_.cur_element_count + ids.size() - std::min(ids.size(), free_rows_.size());
      if (rows > graph_.max_elements_) Grow(std::max(2 * graph_.max_elements_, rows));
      for (size_t added = 0; added < ids.size();) {
        const std::unique_lock changing(guard_);
        const float* const left = vectors.data() + added * static_cast<size_t>(width_);
        added += free_rows_.empty() ? AddRows(ids.subspan(added), left) : ReuseRow(ids[added], left);
      }
    } catch (const std::exception& error) {  // out of memory
      return CapacityError(std::string("the graph cannot grow: ") + error.what());
    }
    return OkStatus();
  }

  // Add one vector into the row of a removed one. Return 1.
  size_t ReuseRow(int64_t id, const float* vector) {
    const hnswlib::tableint row = free_rows_.back();
    free_rows_.pop_back();
    const auto label = static_cast<hnswlib::labeltype>(id);
    graph_.setExternalLabel(row, label);
    graph_.label_lookup_[label] = row;
    row_ids_[row] = id;
    graph_.addPoint(vector, label);  // it finds the row deleted, and reuses it
    return 1;
  }

  // Add vectors as new rows, for which there is room, until a turn is over and somebody waits for the next. Return how
  // many.
  size_t AddRows(std::span<const int64_t> ids, const float* vectors) {
    const size_t count = graph_.cur_element_count;
    const auto turn_over = std::chrono::steady_clock::now() + kTurn;
    std::atomic<bool> failed = false;
    const int64_t added = ForEachTaken(std::ssize(ids), [&](int64_t i) {
      try {
        graph_.addPoint(vectors + i * width_, static_cast<hnswlib::labeltype>(ids[static_cast<size_t>(i)]));
      } catch (const std::exception&) {
        failed = true;
      }
      return !failed && !(guard_.awaited() && std::chrono::steady_clock::now() >= turn_over);
    });
    for (size_t row = count; row < graph_.cur_element_count; ++row) {
      row_ids_.push_back(static_cast<int64_t>(graph_.getExternalLabel(static_cast<hnswlib::tableint>(row))));
      link_bytes_ += LinkBytes(row);
    }
    if (failed) throw std::bad_alloc();
    return static_cast<size_t>(added);
  }

  Status SaveRows(const IndexFile& file) const {
    EVERLONG_ASSIGN_OR_RETURN(IndexFileWriter writer, IndexFileWriter::Create(file, kMagic));
    const size_t count = graph_.cur_element_count;
    writer.WriteValue(Header{options_, graph_.maxlevel_, graph_.enterpoint_node_, static_cast<int64_t>(count)});
    writer.WriteAll(std::span<const int>(graph_.element_levels_).first(count));
    writer.WriteAll(std::span<const char>(graph_.data_level0_memory_, count * graph_.size_data_per_element_));
    for (size_t row = 0; row < count; ++row) {
      if (graph_.element_levels_[row] > 0)
        writer.WriteAll(std::span<const char>(graph_.linkLists_[row], LinkBytes(row)));
    }
    return writer.Commit();
  }

  // Read what SaveRows wrote behind the header, into an index with room for it.
  Status Read(IndexFileReader& reader, const Header& header) {
    const auto count = static_cast<size_t>(header.count);
    if (count > reader.left() / graph_.size_data_per_element_) return reader.Truncated();
    EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span<int>(graph_.element_levels_).first(count)));
    EVERLONG_RETURN_IF_ERROR(
        reader.ReadAll(std::span<char>(graph_.data_level0_memory_, count * graph_.size_data_per_element_)));
    for (size_t row = 0; row < count; ++row) EVERLONG_RETURN_IF_ERROR(ReadLinks(reader, header, row));
    if (reader.left() != 0) return reader.Corrupt("it has bytes behind its end");
    graph_.maxlevel_ = header.max_level;
    graph_.enterpoint_node_ = header.entry_row;
    return TakeLinks() ? OkStatus() : reader.Corrupt("a link leads to no row");
  }

  // Read a row's links above the lowest level, and take the row in.
  Status ReadLinks(IndexFileReader& reader, const Header& header, size_t row) {
    const auto number = static_cast<hnswlib::tableint>(row);
    const int level = graph_.element_levels_[row];
    const auto id = static_cast<int64_t>(graph_.getExternalLabel(number));
    const bool deleted = graph_.isMarkedDeleted(number);
    // A row counts as the graph's own once all of it is there, so that the destructor frees what was allocated.
    graph_.element_levels_[row] = 0;
    graph_.cur_element_count = row + 1;
    if (level < 0 || level > header.max_level || id < 0) return reader.Corrupt("a row out of range");
    if (level > 0) {
      const size_t bytes = static_cast<size_t>(level) * graph_.size_links_per_element_;
      if (bytes > reader.left()) return reader.Truncated();
      graph_.linkLists_[row] = static_cast<char*>(std::malloc(bytes + kSpareLink));  // hnswlib frees it
      EVERLONG_CHECK(graph_.linkLists_[row] != nullptr);
      graph_.element_levels_[row] = level;
      link_bytes_ += bytes;
      EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span<char>(graph_.linkLists_[row], bytes)));
    }
    row_ids_.push_back(deleted ? kNoId : id);
    if (deleted) {
      free_rows_.push_back(number);
      graph_.num_deleted_ += 1;
    } else if (!graph_.label_lookup_.emplace(static_cast<size_t>(id), number).second) {
      return reader.Corrupt("an id is there twice");
    }
    return OkStatus();
  }

  // Return the same vectors in a graph without removed rows.
  [[nodiscard]] Result<std::unique_ptr<HnswIndex>> BuildOfLive() const {
    try {
      auto live = std::make_unique<HnswIndex>(options_, static_cast<size_t>(Live()));
      std::vector<int64_t> ids;
      std::vector<float> vectors;
      const auto add = [&] {
        EVERLONG_RETURN_IF_ERROR(live->AddAll(ids, vectors));
        ids.clear();
        vectors.clear();
        return OkStatus();
      };
      for (size_t row = 0; row < row_ids_.size(); ++row) {
        if (row_ids_[row] == kNoId) continue;
        const auto* const vector =
            reinterpret_cast<const float*>(graph_.getDataByInternalId(static_cast<hnswlib::tableint>(row)));
        ids.push_back(row_ids_[row]);
        vectors.insert(vectors.end(), vector, vector + width_);
        if (ids.size() == kRebuiltAtOnce) EVERLONG_RETURN_IF_ERROR(add());
      }
      EVERLONG_RETURN_IF_ERROR(add());
      return live;
    } catch (const std::exception& error) {  // out of memory
      return CapacityError(std::string("the graph cannot be rebuilt: ") + error.what());
    }
  }

  VectorHits SearchGraph(const ScannedRows& rows, const float* query, int32_t k, FilterFunctor* filter) const {
    auto nearest = graph_.searchKnn(query, static_cast<size_t>(k), filter);
    VectorHits hits;
    hits.reserve(nearest.size());
    for (; !nearest.empty(); nearest.pop()) {
      const hnswlib::tableint row = graph_.label_lookup_.at(nearest.top().second);
      hits.push_back({static_cast<int64_t>(nearest.top().second), ExactScore(rows, row, query)});
    }
    KeepBestFirst(hits, static_cast<size_t>(k), [](const VectorHit& hit) { return hit.id; });
    return hits;
  }

  // Return whether every link of the graph leads to a row, on a level that the row has. hnswlib prefetches the row of
  // the next link, also behind the last one. That becomes row 0, whatever a file says.
  [[nodiscard]] bool TakeLinks() {
    const size_t count = graph_.cur_element_count;
    for (size_t row = 0; row < count; ++row) {
      for (int level = 0; level <= graph_.element_levels_[row]; ++level) {
        auto* const list = graph_.get_linklist_at_level(static_cast<hnswlib::tableint>(row), level);
        const size_t size = graph_.getListCount(list);
        if (size > (level == 0 ? graph_.maxM0_ : graph_.maxM_)) return false;
        for (size_t i = 1; i <= size; ++i) {
          if (list[i] >= count || graph_.element_levels_[list[i]] < level) return false;
        }
        const size_t bytes = level == 0 ? graph_.label_offset_ : graph_.size_links_per_element_;
        std::ranges::fill(std::span(list, bytes / sizeof(hnswlib::linklistsizeint)).subspan(1 + size), 0U);
      }
    }
    return count == 0 || graph_.element_levels_[graph_.enterpoint_node_] == graph_.maxlevel_;
  }

  HnswOptions options_;
  int64_t width_;
  KernelSpace space_;
  std::mutex writer_;  // one change at a time; taken before `guard_`
  mutable FairSharedMutex guard_;
  Graph graph_;                               // its labels are ids; label_lookup_ holds only the live ones
  std::vector<int64_t> row_ids_;              // [rows of the graph]; kNoId where a vector was removed
  std::vector<hnswlib::tableint> free_rows_;  // of removed vectors
  size_t link_bytes_ = 0;                     // of the rows' links above the lowest level
};

}  // namespace

std::unique_ptr<VectorIndex> MakeHnswIndex(const HnswOptions& options) { return std::make_unique<HnswIndex>(options); }

Result<std::unique_ptr<VectorIndex>> LoadHnswIndex(const FilePath& file) { return HnswIndex::Load(file); }

}  // namespace everlong::index
