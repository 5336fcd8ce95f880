#include "everlong/os/index.h"

#include <string>
#include <utility>

#include "at_least.h"
#include "everlong/index/part_kinds.h"
#include "everlong/index/words.h"
#include "memory_state.h"

namespace everlong::os {
namespace {

Status CheckHeads(std::span<const index::RetrievalHead> heads, const kv::PayloadLayout& layout) {
  for (const index::RetrievalHead& head : heads) {
    if (head.layer < 0 || head.layer >= layout.layers || head.kv_head < 0 || head.kv_head >= layout.kv_heads ||
        head.query_head < 0) {
      return InvalidArgumentError("retrieval head is (layer " + std::to_string(head.layer) + ", query_head " +
                                  std::to_string(head.query_head) + ", kv_head " + std::to_string(head.kv_head) +
                                  "), expected a layer below " + std::to_string(layout.layers) +
                                  " and a kv_head below " + std::to_string(layout.kv_heads));
    }
  }
  return OkStatus();
}

}  // namespace

static_assert(store::kLargestBlockId <= index::kLargestVectorBlock);
static_assert(index::kMostPackBytes + 9 <= store::kMaxTensorName);  // MeaningTensor, SentenceTensor, PassageTensor

Status Indexes::SetRetrievalHeads(std::vector<index::RetrievalHead> heads, index::HeadsOptions options) {
  EVERLONG_ASSIGN_OR_RETURN(auto writer, state_.index.TakeSoundTurn());
  EVERLONG_RETURN_IF_ERROR(CheckHeads(heads, state_.layout));
  IndexSet::Make make;
  if (!heads.empty()) {
    make = [heads, options = std::move(options)](const index::PartContext& context) {
      return index::MakeHeadsPart(context, heads, options);
    };
  }
  EVERLONG_RETURN_IF_ERROR(writer.Replace(index::IndexPart::kHeads, make));
  state_.heads.Set(std::move(heads));
  return OkStatus();
}

std::vector<index::RetrievalHead> Indexes::retrieval_heads() const { return state_.heads.Get(); }

index::DeviceUse Indexes::device_use(index::IndexPart part) const {
  const auto reading = state_.index.Read();
  const index::Part* const there = state_.index.part(part);
  return there == nullptr ? index::DeviceUse{} : there->device_use();
}

Status Indexes::SetWords(std::shared_ptr<const index::WordTable> words) {
  EVERLONG_ASSIGN_OR_RETURN(auto writer, state_.index.TakeSoundTurn());
  const std::shared_ptr<const index::WordTable> there = state_.words.Get();
  if (there == words || (there != nullptr && words != nullptr && *there == *words)) return OkStatus();
  IndexSet::Make make;
  if (words != nullptr) {
    make = [words](const index::PartContext& context) -> Result<std::unique_ptr<index::Part>> {
      return index::MakeWordsPart(context, words);
    };
  }
  EVERLONG_RETURN_IF_ERROR(writer.Replace(index::IndexPart::kWords, make));
  state_.words.Set(std::move(words));
  return OkStatus();
}

std::shared_ptr<const index::WordTable> Indexes::words() const { return state_.words.Get(); }

Status Indexes::SetPageVectors(const PageVectorOptions& options) {
  EVERLONG_RETURN_IF_ERROR(AtLeast("dimension", options.dimension, 1));
  EVERLONG_ASSIGN_OR_RETURN(auto writer, state_.index.TakeSoundTurn());
  if (state_.page_vectors == options) return OkStatus();
  EVERLONG_RETURN_IF_ERROR(writer.Replace(index::IndexPart::kEmbedding, [options](const index::PartContext& context) {
    return index::MakeEmbeddingPart(context, options);
  }));
  state_.page_vectors = options;
  return OkStatus();
}

std::shared_ptr<index::NeuralInvertedIndex> Indexes::page_lists() const {
  const auto reading = state_.index.Read();
  return state_.index.lists(index::IndexPart::kEmbedding);
}

Status Indexes::SetPageRouter(const index::NeuralInvertedIndex::Router& router) {
  EVERLONG_ASSIGN_OR_RETURN(auto writer, state_.index.TakeSoundTurn());
  return writer.SetRouter(index::IndexPart::kEmbedding, router);
}

Status Indexes::AddPageVectors(int64_t block, std::span<const int32_t> pages, std::span<const float> vectors,
                               std::span<const std::vector<int32_t>> terms) {
  EVERLONG_ASSIGN_OR_RETURN(auto writer, state_.index.TakeSoundTurn());
  if (!state_.page_vectors) return InvalidArgumentError("vectors are given, expected none: this memory has no encoder");
  return writer.AddVectors(index::IndexPart::kEmbedding, block, pages, vectors, terms);
}

std::vector<PageRef> Indexes::PagesWithoutVectors() const {
  const auto reading = state_.index.Read();
  std::vector<PageRef> pages;
  for (const index::BlockEntry* const block : state_.index.Without(index::IndexPart::kEmbedding)) {
    AddPagesOf(state_.index.table(), *block, pages);
  }
  return pages;
}

Status Indexes::SetMeaning(const std::optional<MeaningOptions>& options, index::IndexPart part) {
  if (!state_.meaning.contains(part.number)) {
    std::string known;
    for (const auto& [number, options] : state_.meaning) {
      known += (known.empty() ? "" : " or ") + std::string(index::NameOf({number}));
    }
    return InvalidArgumentError("part is " + std::string(NameOf(part)) + ", expected " + known);
  }
  if (options) EVERLONG_RETURN_IF_ERROR(Validate(*options));
  EVERLONG_ASSIGN_OR_RETURN(auto writer, state_.index.TakeSoundTurn());
  if (meaning(part) == options) return OkStatus();
  IndexSet::Make make;
  if (options) {
    make = [options = *options, part](const index::PartContext& context) {
      return index::MakeMeaningPart(context, options, part);
    };
  }
  EVERLONG_RETURN_IF_ERROR(writer.Replace(part, make));
  state_.meaning.at(part.number).Set(options);
  return OkStatus();
}

std::optional<MeaningOptions> Indexes::meaning(index::IndexPart part) const {
  const auto found = state_.meaning.find(part.number);
  return found == state_.meaning.end() ? std::nullopt : found->second.Get();
}

std::vector<int64_t> Indexes::BlocksWithout(index::IndexPart part) const {
  const auto reading = state_.index.Read();
  std::vector<int64_t> ids;
  for (const index::BlockEntry* const block : state_.index.Without(part)) ids.push_back(block->id);
  return ids;
}

Status Indexes::Save() {
  EVERLONG_ASSIGN_OR_RETURN(auto writer, state_.index.TakeSoundTurn());
  if (!state_.store->read_only()) EVERLONG_RETURN_IF_ERROR(state_.store->CheckWritable());
  EVERLONG_RETURN_IF_ERROR(state_.Flush(writer));
  // Nothing changes during this turn, and searches go on.
  return writer.Save();
}

std::vector<std::string> Indexes::TakeMessages() { return state_.index.TakeMessages(); }

}  // namespace everlong::os
