// The index of the part "embedding": vectors of pages that the caller computes, and the search over them.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "everlong/base/file_path.h"
#include "everlong/base/status.h"
#include "everlong/index/block_table.h"
#include "everlong/index/index_file.h"
#include "everlong/index/neural_inverted_index.h"
#include "everlong/index/page_filter.h"
#include "everlong/index/page_vectors.h"
#include "everlong/index/vector_index.h"

namespace everlong::index {

// One thread at a time makes all calls. Searches run beside it. Has and Mean are thread-safe.
class PageVectors {
 public:
  explicit PageVectors(PageVectorOptions options);
  // Load what Save wrote with the same options. Errors as LoadFlatIndex; kCorrupt when the vectors have another size.
  static Result<PageVectors> Load(PageVectorOptions options, const FilePath& file);
  [[nodiscard]] Status Save(const IndexFile& file) const { return index_->Save(file); }

  [[nodiscard]] const PageVectorOptions& options() const { return options_; }
  // Add vectors, as Part::AddVectors, at most kMaxPageVectors a page. `block_pages` is how many pages the block has.
  // kAlreadyExists for a block that has vectors.
  Status Add(int64_t block, int32_t block_pages, std::span<const int32_t> pages, std::span<const float> vectors,
             std::span<const std::vector<int32_t>> terms = {});
  // Remove the vectors of a block. Nothing happens for a block without vectors.
  void Remove(int64_t block);
  // Return the settings as one text. Vectors of other settings cannot be used.
  [[nodiscard]] std::string Settings() const;
  // Return the options of such a text; none when it is not one.
  [[nodiscard]] static std::optional<PageVectorOptions> ParseSettings(const std::string& settings);
  // Return the blocks that have vectors, ascending.
  [[nodiscard]] std::vector<int64_t> Blocks() const;
  [[nodiscard]] bool Has(int64_t block) const {
    const std::scoped_lock lock(*ids_guard_);
    return ids_.contains(block);
  }
  [[nodiscard]] int64_t bytes() const { return index_->bytes(); }  // of host memory, about
  // Return the index of the vectors, if it has lists. It is thread-safe by itself.
  [[nodiscard]] std::shared_ptr<NeuralInvertedIndex> lists() const {
    return std::dynamic_pointer_cast<NeuralInvertedIndex>(index_);
  }

  // Return the mean of a block's vectors, each of unit length; empty for a block without.
  [[nodiscard]] std::vector<float> Mean(int64_t block) const;

  struct Found {
    int64_t block = 0;
    int32_t page = 0;  // within the block
    float score = 0;   // cosine of the page's best vector
  };
  // Return the `count` best of some pages, best first. Where there are lists, vectors that rare ones of the `terms`
  // name are scored too.
  [[nodiscard]] Result<std::vector<Found>> Search(std::span<const float> query, std::span<const int32_t> terms,
                                                  int32_t count, const BlockTable& table,
                                                  const PageFilter& pages) const;

 private:
  // Return the ids of the vectors that these pages may have.
  [[nodiscard]] IdFilter IdsOf(const BlockTable& table, const PageFilter& pages) const;

  PageVectorOptions options_;
  std::shared_ptr<VectorIndex> index_;
  // Behind pointers, because these move.
  std::unique_ptr<std::mutex> ids_guard_ = std::make_unique<std::mutex>();
  std::map<int64_t, std::vector<int64_t>> ids_;  // block -> of its vectors
  std::unique_ptr<std::atomic<int32_t>> most_a_page_ = std::make_unique<std::atomic<int32_t>>(1);  // vectors
};

}  // namespace everlong::index
