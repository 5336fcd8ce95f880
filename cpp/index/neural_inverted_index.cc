#include "everlong/index/neural_inverted_index.h"

#include <algorithm>
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
#include "everlong/base/check.h"
#include "everlong/base/fair_shared_mutex.h"
#include "everlong/base/parallel_for.h"
#include "everlong/index/index_file.h"
#include "inverted_lists.h"
#include "list_centres.h"
#include "term_rows.h"
#include "vector_scan.h"

namespace everlong::index {
namespace {

constexpr std::string_view kMagic = "everlong dnii 1\n";
// Searches wait for a writer no longer than adding these takes.
constexpr size_t kAddedAtOnce = 256;

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
  explicit Dnii(const NeuralInvertedOptions& options)
      : options_(options), width_(PaddedWidth(options.dimension)), lists_(options) {
    EVERLONG_CHECK(options.dimension >= 1 && options.list_vectors >= kLeastListVectors &&
                   options.list_vectors <= kMostListVectors && options.probes >= 1 && options.rescored >= 1);
  }

  // --- VectorIndex

  Status Add(std::span<const int64_t> ids, std::span<const float> vectors) override {
    EVERLONG_RETURN_IF_ERROR(CheckVectors(vectors, std::ssize(ids), options_.dimension, "vectors"));
    const std::scoped_lock writing(writer_);
    try {
      EVERLONG_RETURN_IF_ERROR(CheckNewIds(ids, [this](int64_t id) { return lists_.Find(id) != kNoRow; }));
      if (At(lists_.Scanned().stored.count) + ids.size() > INT32_MAX) {
        return CapacityError("an index holds 2^31 - 1 vectors at most");
      }
      const std::vector<float> padded = PadVectors(vectors, options_.dimension, options_.metric);
      for (size_t first = 0; first < ids.size(); first += kAddedAtOnce) {
        const size_t count = std::min(kAddedAtOnce, ids.size() - first);
        const std::unique_lock changing(guard_);
        lists_.Add(ids.subspan(first, count), std::span(padded).subspan(first * At(width_), count * At(width_)));
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
      const VectorRow row = lists_.Find(id);
      if (row == kNoRow) continue;
      terms_.Forget(row);
      lists_.Remove(row);
      ++removed;
    }
    return removed;
  }

  Result<std::vector<VectorHits>> Search(std::span<const float> queries, int32_t k,
                                         const IdFilter& filter) const override {
    return Probe(queries, k, filter, {});
  }

  std::vector<float> Vector(int64_t id) const override {
    const std::shared_lock reading(guard_);
    const VectorRow row = lists_.Find(id);
    if (row == kNoRow) return {};
    return {lists_.vector(row), lists_.vector(row) + options_.dimension};
  }

  Status Save(const IndexFile& file) const override {
    const std::shared_lock reading(guard_);
    EVERLONG_ASSIGN_OR_RETURN(IndexFileWriter writer, IndexFileWriter::Create(file, kMagic));
    Header header;
    header.options = options_;
    header.rows = std::ssize(lists_.row_of());
    header.lists = std::ssize(lists_.lists());
    header.next_list = lists_.next_list();
    header.terms = terms_.words();
    writer.WriteValue(header);
    lists_.Write(writer);
    terms_.Write(writer, lists_);
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
      return reader.Corrupt("header out of range");
    }
    try {
      auto index = std::make_unique<Dnii>(options);
      EVERLONG_RETURN_IF_ERROR(index->lists_.Read(reader, At(header.lists), header.rows, header.next_list));
      EVERLONG_RETURN_IF_ERROR(index->terms_.Read(reader, index->lists_, header.terms));
      return std::unique_ptr<NeuralInvertedIndex>(std::move(index));
    } catch (const std::exception& error) {  // out of memory
      return CapacityError(Quoted(file) + " cannot be loaded: " + error.what());
    }
  }

  int32_t dimension() const override { return options_.dimension; }
  Metric metric() const override { return options_.metric; }
  int64_t size() const override {
    const std::shared_lock reading(guard_);
    return std::ssize(lists_.row_of());
  }
  std::vector<int64_t> ids() const override {
    const std::shared_lock reading(guard_);
    std::vector<int64_t> ids;
    for (const auto& [id, row] : lists_.row_of()) ids.push_back(id);
    return ids;
  }
  int64_t bytes() const override {
    const std::shared_lock reading(guard_);
    return static_cast<int64_t>(lists_.bytes() + terms_.bytes());
  }

  // --- NeuralInvertedIndex

  Lists lists() const override {
    const std::shared_lock reading(guard_);
    Lists found;
    for (const size_t list : ById()) {
      found.ids.push_back(lists_.lists()[list].id);
      const float* const centroid = lists_.centres().centroid(list);
      found.centroids.insert(found.centroids.end(), centroid, centroid + options_.dimension);
      found.sizes.push_back(std::ssize(lists_.lists()[list].rows));
    }
    return found;
  }

  std::vector<int64_t> ListsOf(std::span<const int64_t> ids) const override {
    const std::shared_lock reading(guard_);
    std::vector<int64_t> lists;
    for (const int64_t id : ids) {
      const VectorRow row = lists_.Find(id);
      lists.push_back(row == kNoRow ? -1 : lists_.ListOf(row).id);
    }
    return lists;
  }

  Router router() const override {
    const std::shared_lock reading(guard_);
    Router found;
    for (const size_t list : ById()) {
      found.lists.push_back(lists_.lists()[list].id);
      const float* const vector = lists_.centres().router(list);
      found.vectors.insert(found.vectors.end(), vector, vector + options_.dimension);
      found.biases.push_back(lists_.centres().bias(list));
    }
    return found;
  }

  Status SetRouter(const Router& router) override {
    EVERLONG_RETURN_IF_ERROR(CheckVectors(router.vectors, std::ssize(router.lists), options_.dimension, "router"));
    EVERLONG_RETURN_IF_ERROR(CheckVectors(router.biases, std::ssize(router.lists), 1, "biases"));
    const std::scoped_lock writing(writer_);
    const std::unique_lock changing(guard_);
    std::unordered_map<int64_t, size_t> numbers;
    for (size_t list = 0; list < lists_.lists().size(); ++list) numbers[lists_.lists()[list].id] = list;
    for (const int64_t id : router.lists) {
      if (!numbers.contains(id)) return NotFoundError("there is no list " + std::to_string(id));
    }
    const auto dimension = static_cast<size_t>(options_.dimension);
    for (size_t i = 0; i < router.lists.size(); ++i) {
      lists_.centres().SetRouter(numbers[router.lists[i]], std::span(router.vectors).subspan(i * dimension, dimension),
                                 router.biases[i]);
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
    const VectorRow row = lists_.Find(id);
    if (row == kNoRow) return NotFoundError("there is no vector " + std::to_string(id));
    terms_.Name(row, {terms.begin(), terms.end()});
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
    const int32_t probes = query.probes > 0 ? query.probes : options_.probes;
    const std::shared_lock reading(guard_);
    const auto search = [&](std::span<VectorHits> hits) {
      ParallelFor(0, count, 1, [&](int64_t first, int64_t last) {
        for (int64_t at = first; at < last; ++at) {
          const std::span<const int32_t> terms = query.terms.empty() ? std::span<const int32_t>() : query.terms[At(at)];
          hits[At(at)] = ProbeOne(padded.data() + at * width_, k, filter, probes, terms);
        }
      });
      return OkStatus();
    };
    return SearchOrScan(
        {lists_.Scanned(), std::ssize(lists_.row_of()), options_.exact_below}, filter, padded, k,
        [this](int64_t allowed) { return allowed <= options_.exact_below; }, search);
  }

 private:
  // Return the numbers of the lists in the order of their ids.
  [[nodiscard]] std::vector<size_t> ById() const {
    std::vector<size_t> order(lists_.lists().size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::sort(order, {}, [this](size_t list) { return lists_.lists()[list].id; });
    return order;
  }

  [[nodiscard]] VectorHits ProbeOne(const float* query, int32_t k, const IdFilter& filter, int32_t probes,
                                    std::span<const int32_t> terms) const {
    const BestCandidates best = BestOfLists(query, BestLists(lists_.centres().Routed(query), At(probes)),
                                            std::max(At(options_.rescored), 4 * At(k)), filter);
    const ScannedRows rows = lists_.Scanned();
    VectorHits hits;
    std::vector<VectorRow> scored;
    for (const Candidate& candidate : best.all()) scored.push_back(candidate.row);
    const std::vector<float> exact = ExactScores(rows, scored, query);
    for (size_t at = 0; at < exact.size(); ++at) hits.push_back({best.all()[at].id, exact[at]});
    if (!terms.empty()) {
      std::ranges::sort(scored);
      for (const VectorRow row : terms_.Named(terms)) {
        const int64_t id = lists_.id(row);
        if (std::ranges::binary_search(scored, row) || !filter.Allows(id)) continue;
        hits.push_back({id, ExactScore(rows, row, query)});
      }
    }
    KeepBestFirst(hits, At(k), [](const VectorHit& hit) { return hit.id; });
    return hits;
  }

  // Return the best of the lists' allowed members by their int8 codes.
  [[nodiscard]] BestCandidates BestOfLists(const float* query, std::span<const int32_t> lists, size_t capacity,
                                           const IdFilter& filter) const {
    constexpr auto kInt8 = static_cast<size_t>(VectorStorage::kInt8);
    const VectorKernel& kernel = BestVectorKernel();
    BestCandidates best(capacity);
    std::vector<float> rest(At(width_));  // the query minus a list's centroid
    std::vector<float> of_list;
    for (const int32_t number : lists) {
      const InvertedLists::List& list = lists_.lists()[At(number)];
      if (list.rows.empty()) continue;
      const StoredRows codes = {list.codes.data(), width_, std::ssize(list.rows), width_, list.scales.data()};
      const float* const centroid = lists_.centres().centroid(At(number));
      of_list.resize(list.rows.size());
      float base = 0;
      if (options_.metric == Metric::kL2) {
        for (size_t i = 0; i < rest.size(); ++i) rest[i] = query[i] - centroid[i];
        kernel.distance[kInt8](codes, rest.data(), 1, of_list.data());
      } else {
        base = -kernel.negative_dot(query, centroid, &width_);
        kernel.dot[kInt8](codes, query, 1, of_list.data());
      }
      float threshold = best.Threshold();
      for (size_t slot = 0; slot < list.rows.size(); ++slot) {
        const float score = base + of_list[slot];
        if (score < threshold) continue;
        const int64_t id = lists_.id(list.rows[slot]);
        if (!filter.Allows(id)) continue;
        best.Offer({id, score, list.rows[slot]});
        threshold = best.Threshold();
      }
    }
    return best;
  }

  NeuralInvertedOptions options_;
  int64_t width_;
  std::mutex writer_;  // one change at a time; taken before `guard_`
  mutable FairSharedMutex guard_;
  InvertedLists lists_;
  TermRows terms_;
};

}  // namespace

std::unique_ptr<NeuralInvertedIndex> MakeNeuralInvertedIndex(const NeuralInvertedOptions& options) {
  return std::make_unique<Dnii>(options);
}

Result<std::unique_ptr<NeuralInvertedIndex>> LoadNeuralInvertedIndex(const FilePath& file) { return Dnii::Load(file); }

}  // namespace everlong::index
