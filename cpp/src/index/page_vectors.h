// What is behind the part "embedding": vectors of pages that somebody else computes, and the search over them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "everlong/base/file_path.h"
#include "everlong/base/status.h"
#include "everlong/index/neural_inverted_index.h"
#include "everlong/index/page_vectors.h"
#include "everlong/index/vector_index.h"

namespace everlong::index {

// One thread at a time adds and removes, searches run beside it; all else is asked by that thread, but for Has and
// Mean, which are thread-safe.
class PageVectors {
 public:
  explicit PageVectors(PageVectorOptions options);
  // What Save wrote with the same options. As LoadFlatIndex; kCorrupt when the vectors are of another size.
  static Result<PageVectors> Load(PageVectorOptions options, const FilePath& file);
  [[nodiscard]] Status Save(const FilePath& file) const { return index_->Save(file); }

  [[nodiscard]] const PageVectorOptions& options() const { return options_; }
  // As Part::AddVectors, at most kMaxPageVectors a page; `block_pages`: how many pages the block has. kAlreadyExists
  // for a block that has vectors.
  Status Add(int64_t block, int32_t block_pages, std::span<const int32_t> pages, std::span<const float> vectors,
             std::span<const std::vector<int32_t>> terms = {});
  // Nothing happens for a block without vectors.
  void Remove(int64_t block);
  // What vectors of other options cannot be used for, as one text.
  [[nodiscard]] std::string Settings() const;
  // The options of such a text; none when it is not one.
  [[nodiscard]] static std::optional<PageVectorOptions> ParseSettings(const std::string& settings);
  // Those that have vectors, ascending.
  [[nodiscard]] std::vector<int64_t> Blocks() const;
  [[nodiscard]] bool Has(int64_t block) const {
    const std::scoped_lock lock(*ids_guard_);
    return ids_.contains(block);
  }
  [[nodiscard]] int64_t bytes() const { return index_->bytes(); }  // of host memory, about
  // What the vectors are searched by, where that has lists; thread-safe by itself.
  [[nodiscard]] std::shared_ptr<NeuralInvertedIndex> lists() const {
    return std::dynamic_pointer_cast<NeuralInvertedIndex>(index_);
  }

  // The mean of a block's vectors, each of unit length; empty for a block without.
  [[nodiscard]] std::vector<float> Mean(int64_t block) const;

  struct Found {
    int64_t block = 0;
    int32_t page = 0;  // within the block
    float score = 0;   // cosine of the page's best vector
  };
  using Allows = std::function<bool(int64_t block, int32_t page)>;
  // The `count` best pages, best first; what rare ones of the `terms` name is scored, too, where there are lists.
  // `allows` is called from several threads.
  [[nodiscard]] Result<std::vector<Found>> Search(std::span<const float> query, std::span<const int32_t> terms,
                                                  int32_t count, const Allows& allows) const;

 private:
  PageVectorOptions options_;
  std::shared_ptr<VectorIndex> index_;
  // Behind pointers: these move.
  std::unique_ptr<std::mutex> ids_guard_ = std::make_unique<std::mutex>();
  std::map<int64_t, std::vector<int64_t>> ids_;  // block -> of its vectors
  std::unique_ptr<std::atomic<int32_t>> most_a_page_ = std::make_unique<std::atomic<int32_t>>(1);  // vectors
};

}  // namespace everlong::index
