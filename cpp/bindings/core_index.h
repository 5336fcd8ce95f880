// Vector indexes as Python holds them.
#pragma once

#include <memory>
#include <utility>

#include "core_held.h"
#include "everlong/index/neural_inverted_index.h"
#include "everlong/index/vector_index.h"

namespace everlong::bindings {

class IndexHandle : public Held<index::VectorIndex> {
 public:
  explicit IndexHandle(std::shared_ptr<index::VectorIndex> index) : Held(std::move(index), "the index") {}
  [[nodiscard]] int32_t dimension() const { return Share()->dimension(); }
};

// Its index has lists.
class ListsHandle : public IndexHandle {
 public:
  explicit ListsHandle(std::shared_ptr<index::NeuralInvertedIndex> index) : IndexHandle(std::move(index)) {}

  // Do what Call does with the index as what it is.
  template <class Work>
  auto CallLists(const Work& work) const {
    return Call([&](index::VectorIndex& index) { return work(static_cast<index::NeuralInvertedIndex&>(index)); });
  }
};

}  // namespace everlong::bindings
