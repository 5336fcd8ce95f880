#include "everlong/index/neural_inverted_index.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "best_candidates.h"
#include "best_first.h"
#include "everlong/base/cache_lines.h"
#include "everlong/base/check.h"
#include "everlong/base/element.h"
#include "everlong/base/fair_shared_mutex.h"
#include "everlong/base/parallel_for.h"
#include "everlong/index/index_file.h"
#include "everlong/index/two_means.h"
#include "int8.h"
#include "vector_scan.h"

namespace everlong::index {
namespace {

constexpr std::string_view kMagic = "everlong dnii 1\n";
// Searches wait for a writer no longer than adding these takes.
constexpr size_t kAddedAtOnce = 256;
constexpr size_t kNeighbours = 16;  // lists with members that may go to the halves of a list that is split
constexpr int32_t kGivenUpBelow = 8;
// A term that names more vectors than this says little. A query's terms score at most so many vectors, too.
constexpr size_t kLongestPosting = 4096;
constexpr size_t kMostNamed = 8192;

using Row = int32_t;
constexpr Row kNoRow = -1;

struct List {
  int64_t id = 0;
  std::vector<Row> rows;
  CacheLineVector<std::byte> codes;  // [rows][width] int8: each vector's difference from the centroid
  std::vector<float> scales;         // [rows]
};

// The place of a vector.
struct Place {
  int32_t list = -1;  // its number, not its id
  int32_t slot = 0;
};

// A list's router minus its centroid; 0 where nothing was trained.
struct Learned {
  std::vector<float> vector;  // [width]
  float bias = 0;
};

struct Header {
  NeuralInvertedOptions options;
  int64_t unused = 0;
  int64_t rows = 0;
  int64_t lists = 0;
  int64_t next_list = 0;
  int64_t terms = 0;
};

class Dnii final : public NeuralInvertedIndex {
 public:
  explicit Dnii(const NeuralInvertedOptions& options) : options_(options), width_(PaddedWidth(options.dimension)) {
    EVERLONG_CHECK(options.dimension >= 1 && options.list_vectors >= kLeastListVectors &&
                   options.list_vectors <= kMostListVectors && options.probes >= 1 && options.rescored >= 1);
  }

  // --- VectorIndex

  Status Add(std::span<const int64_t> ids, std::span<const float> vectors) override {
    EVERLONG_RETURN_IF_ERROR(CheckVectors(vectors, std::ssize(ids), options_.dimension, "vectors"));
    const std::scoped_lock writing(writer_);
    try {
      EVERLONG_RETURN_IF_ERROR(CheckNew(ids));
      const std::vector<float> padded = PadVectors(vectors, options_.dimension, options_.metric);
      for (size_t first = 0; first < ids.size(); first += kAddedAtOnce) {
        const size_t count = std::min(kAddedAtOnce, ids.size() - first);
        const std::unique_lock changing(guard_);
        AddSome(ids.subspan(first, count), std::span(padded).subspan(first * Width(), count * Width()));
      }
      return OkStatus();
    } catch (const std::exception& error) {  // out of memory
      return CapacityError(std::string("the index cannot grow: ") + error.what());
    }
  }

  int64_t Remove(std::span<const int64_t> ids) override {
    const std::scoped_lock writing(writer_);
    const std::unique_lock changing(guard_);
    int64_t removed = 0;
    for (const int64_t id : ids) {
      const auto found = row_of_.find(id);
      if (found == row_of_.end()) continue;
      const Row row = found->second;
      row_of_.erase(found);
      ForgetTerms(row);
      const int32_t list = places_[At(row)].list;
      TakeOut(row);
      row_ids_[At(row)] = kNoId;
      free_rows_.push_back(row);
      ++removed;
      if (std::ssize(lists_[At(list)].rows) < options_.list_vectors / kGivenUpBelow && lists_.size() > 1) GiveUp(list);
    }
    return removed;
  }

  Result<std::vector<VectorHits>> Search(std::span<const float> queries, int32_t k,
                                         const IdFilter& filter) const override {
    return Probe(queries, k, filter, {});
  }

  std::vector<float> Vector(int64_t id) const override {
    const std::shared_lock reading(guard_);
    const auto found = row_of_.find(id);
    if (found == row_of_.end()) return {};
    const float* const row = RowData(found->second);
    return {row, row + options_.dimension};
  }

  Status Save(const FilePath& file) const override {
    const std::shared_lock reading(guard_);
    EVERLONG_ASSIGN_OR_RETURN(IndexFileWriter writer, IndexFileWriter::Create(file, kMagic));
    Header header;
    header.options = options_;
    header.rows = std::ssize(row_of_);
    header.lists = std::ssize(lists_);
    header.next_list = next_list_;
    for (const auto& [row, terms] : terms_of_) header.terms += std::ssize(terms) + 2;
    writer.WriteValue(header);
    for (const List& list : lists_) writer.WriteValue(list.id);
    writer.WriteAll(std::span<const float>(centroids_));
    writer.WriteAll(std::span<const float>(routers_));
    writer.WriteAll(std::span<const float>(biases_));
    for (const List& list : lists_) {
      writer.WriteValue(std::ssize(list.rows));
      for (const Row row : list.rows) writer.WriteValue(row_ids_[At(row)]);
      for (const Row row : list.rows) writer.WriteAll(std::span(RowData(row), Width()));
    }
    for (const List& list : lists_) {
      for (const Row row : list.rows) {
        const auto found = terms_of_.find(row);
        if (found == terms_of_.end()) continue;
        writer.WriteValue(row_ids_[At(row)]);
        writer.WriteValue(std::ssize(found->second));
        for (const int32_t term : found->second) writer.WriteValue(int64_t{term});
      }
    }
    return writer.Commit();
  }

  static Result<std::unique_ptr<NeuralInvertedIndex>> Load(const FilePath& file) {
    EVERLONG_ASSIGN_OR_RETURN(IndexFileReader reader, IndexFileReader::Open(file, kMagic));
    Header header;
    EVERLONG_RETURN_IF_ERROR(reader.ReadValue(header));
    const NeuralInvertedOptions& options = header.options;
    const size_t most = reader.left() / sizeof(int64_t);
    if (options.dimension < 1 || options.metric > Metric::kL2 || options.list_vectors < kLeastListVectors ||
        options.list_vectors > kMostListVectors || options.probes < 1 || options.rescored < 1 || header.rows < 0 ||
        header.lists < 0 || header.terms < 0 || header.next_list < 0 || header.next_list > INT64_MAX / 2 ||
        std::cmp_greater(header.rows, most) || std::cmp_greater(header.lists, most) || header.rows > INT32_MAX ||
        (header.lists == 0 && header.rows > 0)) {
      return CorruptError(Quoted(file) + ": header out of range");
    }
    try {
      auto index = std::make_unique<Dnii>(options);
      EVERLONG_RETURN_IF_ERROR(index->Read(reader, header, file));
      return std::unique_ptr<NeuralInvertedIndex>(std::move(index));
    } catch (const std::exception& error) {  // out of memory
      return CapacityError(Quoted(file) + " cannot be loaded: " + error.what());
    }
  }

  int32_t dimension() const override { return options_.dimension; }
  Metric metric() const override { return options_.metric; }
  int64_t size() const override {
    const std::shared_lock reading(guard_);
    return std::ssize(row_of_);
  }
  std::vector<int64_t> ids() const override {
    const std::shared_lock reading(guard_);
    std::vector<int64_t> ids;
    for (const auto& [id, row] : row_of_) ids.push_back(id);
    return ids;
  }
  int64_t bytes() const override {
    const std::shared_lock reading(guard_);
    constexpr size_t kMapEntry = 4 * sizeof(int64_t);  // about, in the usual libraries
    size_t bytes =
        (rows_.capacity() + centroids_.capacity() + routers_.capacity() + biases_.capacity()) * sizeof(float);
    bytes += row_ids_.capacity() * sizeof(int64_t) + places_.capacity() * sizeof(Place) + row_of_.size() * kMapEntry;
    for (const List& list : lists_) {
      bytes += sizeof(List) + list.codes.capacity() + list.rows.capacity() * sizeof(Row) +
               list.scales.capacity() * sizeof(float);
    }
    for (const auto& [row, terms] : terms_of_) bytes += kMapEntry + 2 * terms.capacity() * sizeof(int32_t);
    return static_cast<int64_t>(bytes + rows_of_term_.size() * kMapEntry);
  }

  // --- NeuralInvertedIndex

  Lists lists() const override {
    const std::shared_lock reading(guard_);
    Lists found;
    for (const size_t list : ById()) {
      found.ids.push_back(lists_[list].id);
      const float* const centroid = centroids_.data() + list * Width();
      found.centroids.insert(found.centroids.end(), centroid, centroid + options_.dimension);
      found.sizes.push_back(std::ssize(lists_[list].rows));
    }
    return found;
  }

  std::vector<int64_t> ListsOf(std::span<const int64_t> ids) const override {
    const std::shared_lock reading(guard_);
    std::vector<int64_t> lists;
    for (const int64_t id : ids) {
      const auto found = row_of_.find(id);
      lists.push_back(found == row_of_.end() ? -1 : lists_[At(places_[At(found->second)].list)].id);
    }
    return lists;
  }

  Router router() const override {
    const std::shared_lock reading(guard_);
    Router found;
    for (const size_t list : ById()) {
      found.lists.push_back(lists_[list].id);
      const float* const vector = routers_.data() + list * Width();
      found.vectors.insert(found.vectors.end(), vector, vector + options_.dimension);
      found.biases.push_back(biases_[list]);
    }
    return found;
  }

  Status SetRouter(const Router& router) override {
    EVERLONG_RETURN_IF_ERROR(CheckVectors(router.vectors, std::ssize(router.lists), options_.dimension, "router"));
    EVERLONG_RETURN_IF_ERROR(CheckVectors(router.biases, std::ssize(router.lists), 1, "biases"));
    const std::scoped_lock writing(writer_);
    const std::unique_lock changing(guard_);
    std::unordered_map<int64_t, size_t> numbers;
    for (size_t list = 0; list < lists_.size(); ++list) numbers[lists_[list].id] = list;
    for (const int64_t id : router.lists) {
      if (!numbers.contains(id)) return NotFoundError("there is no list " + std::to_string(id));
    }
    const auto dimension = static_cast<size_t>(options_.dimension);
    for (size_t i = 0; i < router.lists.size(); ++i) {
      const size_t list = numbers[router.lists[i]];
      std::ranges::copy(std::span(router.vectors).subspan(i * dimension, dimension),
                        routers_.begin() + static_cast<std::ptrdiff_t>(list * Width()));
      biases_[list] = router.biases[i];
    }
    return OkStatus();
  }

  Status SetTerms(int64_t id, std::span<const int32_t> terms) override {
    if (terms.size() > kMostTerms) {
      return InvalidArgumentError(std::to_string(terms.size()) + " terms, expected at most " +
                                  std::to_string(kMostTerms));
    }
    const std::scoped_lock writing(writer_);
    const std::unique_lock changing(guard_);
    const auto found = row_of_.find(id);
    if (found == row_of_.end()) return NotFoundError("there is no vector " + std::to_string(id));
    NameBy(found->second, {terms.begin(), terms.end()});
    return OkStatus();
  }

  Result<std::vector<VectorHits>> Probe(std::span<const float> queries, int32_t k, const IdFilter& filter,
                                        const InvertedQuery& query) const override {
    EVERLONG_RETURN_IF_ERROR(CheckSearch(queries, k, options_.dimension));
    const std::vector<float> padded = PadVectors(queries, options_.dimension, options_.metric);
    const int64_t count = std::ssize(padded) / width_;
    if (query.probes < 0) return InvalidArgumentError("probes is " + std::to_string(query.probes) + ", expected >= 0");
    if (!query.terms.empty() && std::ssize(query.terms) != count) {
      return InvalidArgumentError("terms are of " + std::to_string(query.terms.size()) + " queries, expected " +
                                  std::to_string(count));
    }
    const std::shared_lock reading(guard_);
    int64_t allowed = std::ssize(row_of_);
    RowRuns runs;
    const bool known = !filter.all() || allowed <= options_.exact_below;
    if (known) {
      runs = AllowedRuns(row_ids_, filter);
      allowed = runs.rows;
    }
    if (allowed <= options_.exact_below) return ScanRows(Scanned(), runs, padded, k);
    std::vector<VectorHits> hits(static_cast<size_t>(count));
    ParallelFor(0, count, 1, [&](int64_t first, int64_t last) {
      for (int64_t at = first; at < last; ++at) {
        const std::span<const int32_t> terms = query.terms.empty() ? std::span<const int32_t>() : query.terms[At(at)];
        hits[At(at)] =
            ProbeOne(padded.data() + at * width_, k, filter, query.probes > 0 ? query.probes : options_.probes, terms);
      }
    });
    const auto wanted = static_cast<size_t>(std::min<int64_t>(k, allowed));
    for (int64_t at = 0; at < count; ++at) {
      // The lists that were probed may hold fewer than there are.
      if (hits[At(at)].size() >= wanted) continue;
      if (!known && runs.rows == 0) runs = AllowedRuns(row_ids_, filter);
      hits[At(at)] = std::move(ScanRows(Scanned(), runs, std::span(padded).subspan(At(at) * Width(), Width()), k)[0]);
    }
    return hits;
  }

 private:
  template <class Number>
  static size_t At(Number number) {
    return static_cast<size_t>(number);
  }
  [[nodiscard]] size_t Width() const { return static_cast<size_t>(width_); }
  [[nodiscard]] const float* RowData(Row row) const { return rows_.data() + At(row) * Width(); }
  [[nodiscard]] StoredRows OfLists(const CacheLineVector<float>& of) const {
    return {reinterpret_cast<const std::byte*>(of.data()), width_ * int64_t{sizeof(float)}, std::ssize(lists_), width_,
            nullptr};
  }
  [[nodiscard]] ScannedRows Scanned() const {
    ScannedRows rows;
    rows.stored = {reinterpret_cast<const std::byte*>(rows_.data()), width_ * int64_t{sizeof(float)},
                   std::ssize(row_ids_), width_, nullptr};
    rows.ids = row_ids_.data();
    rows.storage = VectorStorage::kFp32;
    rows.metric = options_.metric;
    return rows;
  }
  [[nodiscard]] std::vector<size_t> ById() const {
    std::vector<size_t> order(lists_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::sort(order, {}, [this](size_t list) { return lists_[list].id; });
    return order;
  }

  [[nodiscard]] Status CheckNew(std::span<const int64_t> ids) const {
    std::vector<int64_t> sorted(ids.begin(), ids.end());
    std::ranges::sort(sorted);
    const bool twice = std::ranges::adjacent_find(sorted) != sorted.end();
    for (const int64_t id : ids) {
      if (id < 0) return InvalidArgumentError("id is " + std::to_string(id) + ", expected 0 or more");
      if (row_of_.contains(id)) return AlreadyExistsError("id " + std::to_string(id) + " is in the index");
    }
    if (twice) return AlreadyExistsError("an id is named twice");
    if (row_ids_.size() + ids.size() > INT32_MAX) return CapacityError("an index holds 2^31 - 1 vectors at most");
    return OkStatus();
  }

  // --- lists

  // Return the list nearest to each of vectors [n, width]: the largest x . c - |c|^2 / 2.
  [[nodiscard]] std::vector<int32_t> Nearest(std::span<const float> vectors) const {
    const int64_t count = std::ssize(vectors) / width_;
    std::vector<int32_t> nearest(At(count));
    ParallelFor(0, count, 4, [&](int64_t first, int64_t last) {
      std::vector<float> scores(lists_.size());
      for (int64_t at = first; at < last; ++at) {
        BestVectorKernel().dot[At(VectorStorage::kFp32)](OfLists(centroids_), vectors.data() + at * width_, 1,
                                                         scores.data());
        for (size_t list = 0; list < scores.size(); ++list) scores[list] -= half_squares_[list];
        nearest[At(at)] = static_cast<int32_t>(std::ranges::max_element(scores) - scores.begin());
      }
    });
    return nearest;
  }

  void AddSome(std::span<const int64_t> ids, std::span<const float> vectors) {
    if (lists_.empty()) NewList(vectors.first(Width()), {std::vector<float>(Width()), 0});
    const std::vector<int32_t> nearest = Nearest(vectors);
    for (size_t i = 0; i < ids.size(); ++i) {
      Row row = kNoRow;
      if (free_rows_.empty()) {
        row = static_cast<Row>(row_ids_.size());
        rows_.resize(rows_.size() + Width());
        row_ids_.push_back(kNoId);
        places_.emplace_back();
      } else {
        row = free_rows_.back();
        free_rows_.pop_back();
      }
      std::memcpy(rows_.data() + At(row) * Width(), vectors.data() + i * Width(), Width() * sizeof(float));
      row_ids_[At(row)] = ids[i];
      row_of_[ids[i]] = row;
      PutIn(row, nearest[i]);
    }
    SplitFullOnes(nearest);
  }

  // Add a list around a centroid [width]. Its router is that of the list it comes from, moved as the centroid.
  int32_t NewList(std::span<const float> centroid, const Learned& learned) {
    const auto list = static_cast<int32_t>(lists_.size());
    lists_.emplace_back();
    lists_.back().id = next_list_++;
    centroids_.insert(centroids_.end(), centroid.begin(), centroid.end());
    double square = 0;
    for (const float value : centroid) square += double{value} * value;
    half_squares_.push_back(static_cast<float>(square / 2));
    // With kL2, minus the squared distance, without the query's own part: 2 q . c - |c|^2.
    const float times = options_.metric == Metric::kL2 ? 2.0F : 1.0F;
    const float base = options_.metric == Metric::kL2 ? static_cast<float>(-square) : 0.0F;
    for (size_t i = 0; i < Width(); ++i) routers_.push_back(times * centroid[i] + learned.vector[i]);
    biases_.push_back(base + learned.bias);
    return list;
  }

  [[nodiscard]] Learned LearnedOf(int32_t list) const {
    const float times = options_.metric == Metric::kL2 ? 2.0F : 1.0F;
    Learned learned{std::vector<float>(Width()), 0};
    for (size_t i = 0; i < Width(); ++i) {
      learned.vector[i] = routers_[At(list) * Width() + i] - times * centroids_[At(list) * Width() + i];
    }
    const float base = options_.metric == Metric::kL2 ? -2 * half_squares_[At(list)] : 0.0F;
    learned.bias = biases_[At(list)] - base;
    return learned;
  }

  // Drop a list. The last list takes its number.
  void DropList(int32_t list) {
    const size_t last = lists_.size() - 1;
    if (At(list) != last) {
      lists_[At(list)] = std::move(lists_[last]);
      for (const Row row : lists_[At(list)].rows) places_[At(row)].list = list;
      for (CacheLineVector<float>* of : {&centroids_, &routers_}) {
        std::memcpy(of->data() + At(list) * Width(), of->data() + last * Width(), Width() * sizeof(float));
      }
      half_squares_[At(list)] = half_squares_[last];
      biases_[At(list)] = biases_[last];
    }
    lists_.pop_back();
    centroids_.resize(last * Width());
    routers_.resize(last * Width());
    half_squares_.pop_back();
    biases_.pop_back();
  }

  void PutIn(Row row, int32_t number) {
    List& list = lists_[At(number)];
    places_[At(row)] = {number, static_cast<int32_t>(list.rows.size())};
    list.rows.push_back(row);
    const float* const vector = RowData(row);
    const float* const centroid = centroids_.data() + At(number) * Width();
    float largest = 0;
    for (size_t i = 0; i < Width(); ++i) largest = std::max(largest, std::abs(vector[i] - centroid[i]));
    const float scale = GroupScale(largest, kInt8Max);
    const float inverse = 1 / scale;
    list.scales.push_back(scale);
    const size_t first = list.codes.size();
    list.codes.resize(first + Width());
    for (size_t i = 0; i < Width(); ++i) {
      list.codes[first + i] = static_cast<std::byte>(FloatToInt8((vector[i] - centroid[i]) * inverse));
    }
  }

  // Take a vector out of its list. The last member takes its slot.
  void TakeOut(Row row) {
    const Place place = places_[At(row)];
    List& list = lists_[At(place.list)];
    const size_t last = list.rows.size() - 1;
    const size_t slot = At(place.slot);
    if (slot != last) {
      list.rows[slot] = list.rows[last];
      list.scales[slot] = list.scales[last];
      std::memcpy(list.codes.data() + slot * Width(), list.codes.data() + last * Width(), Width());
      places_[At(list.rows[slot])].slot = place.slot;
    }
    list.rows.pop_back();
    list.scales.pop_back();
    list.codes.resize(last * Width());
  }

  [[nodiscard]] bool IsFull(int32_t list) const {
    return std::cmp_greater(lists_[At(list)].rows.size(), 2 * int64_t{options_.list_vectors});
  }

  [[nodiscard]] bool HasRoom(int32_t list) const {
    return std::cmp_less(lists_[At(list)].rows.size(), 2 * int64_t{options_.list_vectors});
  }

  void SplitFullOnes(std::span<const int32_t> filled) {
    std::vector<int64_t> full;  // ids: numbers change
    for (const int32_t list : filled) {
      if (IsFull(list)) full.push_back(lists_[At(list)].id);
    }
    std::ranges::sort(full);
    full.erase(std::unique(full.begin(), full.end()), full.end());
    while (!full.empty()) {
      const int64_t id = full.back();
      full.pop_back();
      const auto list = static_cast<int32_t>(std::ranges::find(lists_, id, &List::id) - lists_.begin());
      if (!IsFull(list)) continue;
      for (const int64_t half : Split(list)) full.push_back(half);
    }
  }

  // Return the ids of the two halves. Each is smaller, and no other list becomes full: splitting ends.
  std::array<int64_t, 2> Split(int32_t list) {
    const std::vector<Row> members = lists_[At(list)].rows;
    WeightedPoints points;
    points.dimension = static_cast<int32_t>(width_);
    for (const Row row : members) points.points.insert(points.points.end(), RowData(row), RowData(row) + Width());
    points.weights.assign(members.size(), 1.0);
    const std::vector<bool> right = TwoMeans(points, static_cast<uint64_t>(lists_[At(list)].id), true);
    const Learned learned = LearnedOf(list);
    const std::vector<int32_t> beside = ListsBeside(list);
    const size_t most = members.size() - members.size() / 8;  // of one half

    int32_t halves[2];
    for (const bool side : {false, true}) {
      std::vector<double> mean(Width(), 0.0);
      double count = 0;
      for (size_t i = 0; i < members.size(); ++i) {
        if (right[i] != side) continue;
        count += 1;
        for (size_t j = 0; j < Width(); ++j) mean[j] += RowData(members[i])[j];
      }
      std::vector<float> centroid(Width());
      for (size_t j = 0; j < Width(); ++j) centroid[j] = static_cast<float>(mean[j] / std::max(count, 1.0));
      halves[side ? 1 : 0] = NewList(centroid, learned);
    }
    for (size_t i = 0; i < members.size(); ++i) {
      TakeOut(members[i]);
      const int32_t own = halves[right[i] ? 1 : 0];
      const int32_t other = halves[right[i] ? 0 : 1];
      const bool may_cross = lists_[At(other)].rows.size() < most;
      PutIn(members[i], NearestOf(members[i], own, may_cross ? other : own, beside));
    }
    for (const int32_t other : beside) {
      const std::vector<Row> theirs = lists_[At(other)].rows;
      for (const Row row : theirs) {
        const float own = NearnessTo(row, other);
        const float nearness[2] = {NearnessTo(row, halves[0]), NearnessTo(row, halves[1])};
        const int best = nearness[1] > nearness[0] ? 1 : 0;
        if (!(nearness[best] > own) || !HasRoom(halves[best])) continue;
        TakeOut(row);
        PutIn(row, halves[best]);
      }
    }
    const std::array<int64_t, 2> ids{lists_[At(halves[0])].id, lists_[At(halves[1])].id};
    DropList(list);
    return ids;
  }

  [[nodiscard]] float InnerProduct(const float* a, const float* b) const {
    return -BestVectorKernel().negative_dot(a, b, &width_);
  }

  // Return x . c - |c|^2 / 2: larger is nearer.
  [[nodiscard]] float NearnessTo(Row row, int32_t list) const {
    return InnerProduct(RowData(row), centroids_.data() + At(list) * Width()) - half_squares_[At(list)];
  }

  // Return `own`, `other` or one of those beside that has room; `own` where none is nearer.
  [[nodiscard]] int32_t NearestOf(Row row, int32_t own, int32_t other, std::span<const int32_t> beside) const {
    int32_t best = own;
    float nearness = NearnessTo(row, own);
    const auto hear = [&](int32_t list) {
      const float found = NearnessTo(row, list);
      if (found > nearness) {
        nearness = found;
        best = list;
      }
    };
    hear(other);
    for (const int32_t list : beside) {
      if (HasRoom(list)) hear(list);
    }
    return best;
  }

  // Return the nearest other lists.
  [[nodiscard]] std::vector<int32_t> ListsBeside(int32_t list) const {
    std::vector<float> scores(lists_.size());
    BestVectorKernel().dot[At(VectorStorage::kFp32)](OfLists(centroids_), centroids_.data() + At(list) * Width(), 1,
                                                     scores.data());
    std::vector<int32_t> order;
    for (size_t other = 0; other < lists_.size(); ++other) {
      scores[other] -= half_squares_[other];
      if (At(list) != other) order.push_back(static_cast<int32_t>(other));
    }
    const auto kept = static_cast<std::ptrdiff_t>(std::min(kNeighbours, order.size()));
    std::ranges::partial_sort(order, order.begin() + kept, [&](int32_t a, int32_t b) {
      return scores[At(a)] != scores[At(b)] ? scores[At(a)] > scores[At(b)] : a < b;
    });
    order.resize(At(kept));
    return order;
  }

  // Dissolve a list. Its members go to the nearest of the other lists.
  void GiveUp(int32_t list) {
    const std::vector<Row> members = lists_[At(list)].rows;
    const std::vector<int32_t> beside = ListsBeside(list);
    std::vector<int64_t> filled;
    for (const Row row : members) {
      const int32_t to = NearestOf(row, beside[0], beside[0], beside);
      TakeOut(row);
      PutIn(row, to);
      filled.push_back(lists_[At(to)].id);
    }
    DropList(list);
    std::vector<int32_t> numbers;
    for (const int64_t id : filled) {
      numbers.push_back(static_cast<int32_t>(std::ranges::find(lists_, id, &List::id) - lists_.begin()));
    }
    SplitFullOnes(numbers);
  }

  // --- terms

  void NameBy(Row row, std::vector<int32_t> terms) {
    ForgetTerms(row);
    std::ranges::sort(terms);
    terms.erase(std::unique(terms.begin(), terms.end()), terms.end());
    if (terms.empty()) return;
    for (const int32_t term : terms) rows_of_term_[term].push_back(row);
    terms_of_[row] = std::move(terms);
  }

  void ForgetTerms(Row row) {
    const auto found = terms_of_.find(row);
    if (found == terms_of_.end()) return;
    for (const int32_t term : found->second) {
      const auto posting = rows_of_term_.find(term);
      std::erase(posting->second, row);
      if (posting->second.empty()) rows_of_term_.erase(posting);
    }
    terms_of_.erase(found);
  }

  // Return the rows that the rarest of the terms name, ascending.
  [[nodiscard]] std::vector<Row> Named(std::span<const int32_t> terms) const {
    std::vector<const std::vector<Row>*> postings;
    for (const int32_t term : terms) {
      const auto found = rows_of_term_.find(term);
      if (found != rows_of_term_.end() && found->second.size() <= kLongestPosting) postings.push_back(&found->second);
    }
    std::ranges::sort(postings, {}, [](const auto* rows) { return rows->size(); });
    std::vector<Row> named;
    for (const std::vector<Row>* const rows : postings) {
      if (named.size() + rows->size() > kMostNamed) break;
      named.insert(named.end(), rows->begin(), rows->end());
    }
    std::ranges::sort(named);
    named.erase(std::unique(named.begin(), named.end()), named.end());
    return named;
  }

  // --- search

  [[nodiscard]] VectorHits ProbeOne(const float* query, int32_t k, const IdFilter& filter, int32_t probes,
                                    std::span<const int32_t> terms) const {
    const VectorKernel& kernel = BestVectorKernel();
    const bool is_l2 = options_.metric == Metric::kL2;
    std::vector<float> scores(lists_.size());
    kernel.dot[At(VectorStorage::kFp32)](OfLists(routers_), query, 1, scores.data());
    for (size_t list = 0; list < scores.size(); ++list) scores[list] += biases_[list];
    std::vector<int32_t> order(lists_.size());
    std::iota(order.begin(), order.end(), 0);
    const auto probed = static_cast<std::ptrdiff_t>(std::min(At(probes), order.size()));
    std::ranges::partial_sort(order, order.begin() + probed, [&](int32_t a, int32_t b) {
      return scores[At(a)] != scores[At(b)] ? scores[At(a)] > scores[At(b)] : a < b;
    });

    BestCandidates best(std::max(At(options_.rescored), 4 * At(k)));
    std::vector<float> rest(Width());  // the query minus a list's centroid
    std::vector<float> of_list;
    for (const int32_t number : std::span(order).first(At(probed))) {
      const List& list = lists_[At(number)];
      if (list.rows.empty()) continue;
      const StoredRows codes = {list.codes.data(), width_, std::ssize(list.rows), width_, list.scales.data()};
      const float* const centroid = centroids_.data() + At(number) * Width();
      of_list.resize(list.rows.size());
      float base = 0;
      if (is_l2) {
        for (size_t i = 0; i < Width(); ++i) rest[i] = query[i] - centroid[i];
        kernel.distance[At(VectorStorage::kInt8)](codes, rest.data(), 1, of_list.data());
      } else {
        base = InnerProduct(query, centroid);
        kernel.dot[At(VectorStorage::kInt8)](codes, query, 1, of_list.data());
      }
      float threshold = best.Threshold();
      for (size_t slot = 0; slot < list.rows.size(); ++slot) {
        const float score = base + of_list[slot];
        if (score < threshold) continue;
        const int64_t id = row_ids_[At(list.rows[slot])];
        if (!filter.Allows(id)) continue;
        best.Offer({id, score, list.rows[slot]});
        threshold = best.Threshold();
      }
    }
    const ScannedRows rows = Scanned();
    VectorHits hits;
    std::vector<Row> scored;
    for (const Candidate& candidate : best.all()) scored.push_back(candidate.row);
    const std::vector<float> exact = ExactScores(rows, scored, query);
    for (size_t at = 0; at < exact.size(); ++at) hits.push_back({best.all()[at].id, exact[at]});
    if (!terms.empty()) {
      std::ranges::sort(scored);
      for (const Row row : Named(terms)) {
        const int64_t id = row_ids_[At(row)];
        if (std::ranges::binary_search(scored, row) || !filter.Allows(id)) continue;
        hits.push_back({id, ExactScore(rows, row, query)});
      }
    }
    KeepBestFirst(hits, At(k), [](const VectorHit& hit) { return hit.id; });
    return hits;
  }

  // --- files

  Status Read(IndexFileReader& reader, const Header& header, const FilePath& file) {
    const auto count = At(header.lists);
    const auto wrong = [&file] { return CorruptError(Quoted(file) + ": its lists are invalid"); };
    if (count > 0 && reader.left() / count < 2 * Width() * sizeof(float)) return reader.Truncated();
    std::vector<int64_t> ids(count);
    EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(ids)));
    centroids_.resize(count * Width());
    routers_.resize(count * Width());
    biases_.resize(count);
    EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span<float>(centroids_)));
    EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span<float>(routers_)));
    EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span<float>(biases_)));
    for (const std::span<const float> of :
         {std::span<const float>(centroids_), std::span<const float>(routers_), std::span<const float>(biases_)}) {
      if (!std::ranges::all_of(of, [](float value) { return std::isfinite(value); })) return wrong();
    }
    next_list_ = header.next_list;
    lists_.resize(count);
    for (size_t list = 0; list < count; ++list) {
      lists_[list].id = ids[list];
      if (ids[list] < 0 || ids[list] >= next_list_) return wrong();
      double square = 0;
      for (size_t i = 0; i < Width(); ++i) {
        const float value = centroids_[list * Width() + i];
        square += double{value} * value;
      }
      half_squares_.push_back(static_cast<float>(square / 2));
    }
    std::ranges::sort(ids);
    if (std::ranges::adjacent_find(ids) != ids.end()) return wrong();
    if (reader.left() / (Width() * sizeof(float)) < At(header.rows)) return reader.Truncated();
    rows_.reserve(At(header.rows) * Width());
    for (size_t list = 0; list < count; ++list) {
      int64_t members = 0;
      EVERLONG_RETURN_IF_ERROR(reader.ReadValue(members));
      if (members < 0 || members > header.rows - std::ssize(row_of_)) return wrong();
      const size_t first = row_ids_.size();
      row_ids_.resize(first + At(members));
      rows_.resize(row_ids_.size() * Width());
      places_.resize(row_ids_.size());
      EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(row_ids_).subspan(first)));
      const std::span<float> vectors = std::span<float>(rows_).subspan(first * Width());
      EVERLONG_RETURN_IF_ERROR(reader.ReadAll(vectors));
      if (!std::ranges::all_of(vectors, [](float value) { return std::abs(value) <= kLargestElement; })) return wrong();
      for (size_t row = first; row < row_ids_.size(); ++row) {
        if (row_ids_[row] < 0 || !row_of_.try_emplace(row_ids_[row], static_cast<Row>(row)).second) return wrong();
        PutIn(static_cast<Row>(row), static_cast<int32_t>(list));
      }
    }
    if (std::ssize(row_of_) != header.rows) return wrong();
    if (reader.left() != At(header.terms) * sizeof(int64_t)) return reader.Truncated();
    std::vector<int64_t> terms(At(header.terms));
    EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(terms)));
    for (size_t at = 0; at < terms.size();) {
      if (at + 2 > terms.size()) return wrong();
      const auto found = row_of_.find(terms[at]);
      const int64_t own = terms[at + 1];
      at += 2;
      if (found == row_of_.end() || own < 1 || At(own) > kMostTerms || At(own) > terms.size() - at) return wrong();
      std::vector<int32_t> named;
      for (const int64_t term : std::span(terms).subspan(at, At(own))) named.push_back(static_cast<int32_t>(term));
      NameBy(found->second, std::move(named));
      at += At(own);
    }
    return OkStatus();
  }

  NeuralInvertedOptions options_;
  int64_t width_;
  std::mutex writer_;  // one change at a time; taken before `guard_`
  mutable FairSharedMutex guard_;
  CacheLineVector<float> rows_;   // [rows][width]
  std::vector<int64_t> row_ids_;  // [rows]; kNoId where a vector was removed
  std::vector<Place> places_;     // [rows]
  std::vector<Row> free_rows_;
  std::unordered_map<int64_t, Row> row_of_;
  std::vector<List> lists_;
  CacheLineVector<float> centroids_;  // [lists][width]
  std::vector<float> half_squares_;   // [lists], of the centroids
  CacheLineVector<float> routers_;    // [lists][width]
  std::vector<float> biases_;         // [lists]
  int64_t next_list_ = 0;
  std::unordered_map<int32_t, std::vector<Row>> rows_of_term_;
  std::unordered_map<Row, std::vector<int32_t>> terms_of_;
};

}  // namespace

std::unique_ptr<NeuralInvertedIndex> MakeNeuralInvertedIndex(const NeuralInvertedOptions& options) {
  return std::make_unique<Dnii>(options);
}

Result<std::unique_ptr<NeuralInvertedIndex>> LoadNeuralInvertedIndex(const FilePath& file) { return Dnii::Load(file); }

}  // namespace everlong::index
