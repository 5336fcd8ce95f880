// What parts of the index need from a block's payload: taken from the draft, or read from the store again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/index/block_table.h"
#include "everlong/index/part.h"
#include "everlong/kv/payload.h"
#include "everlong/store/memory_store.h"
#include "payloads.h"

namespace everlong::os {

struct DecodedBlock {
  std::vector<int32_t> token_ids;  // only from the store
  index::BlockKeys keys;
  std::vector<float> key_sum;
  std::vector<store::Tensor> tensors;            // only from the store
  std::vector<index::BlockTensor> tensor_views;  // of these, or of the draft's
};

// Return a tensor as parts see it. It refers to `tensor`: a store::Tensor or store::TensorView.
template <class T>
index::BlockTensor ViewOf(const T& tensor) {
  return {tensor.name, tensor.dtype, tensor.shape, tensor.bytes};
}

// Return a block as parts take it. It refers to `decoded`.
index::BlockInput InputOf(const index::BlockEntry& block, int32_t page_tokens, const DecodedBlock& decoded);

// Decode the keys of one block, each layer of them once.
DecodedBlock DecodePayload(const kv::PayloadLayout& layout, std::span<const std::byte> payload, int64_t tokens,
                           const index::PartNeeds& needs);

// Return whether a read failed because the writer beside this reader has forgotten the block meanwhile.
bool ForgottenByWriter(const store::MemoryStore& store, const Status& status);

class BlockReader {
 public:
  BlockReader(const store::MemoryStore& store, const kv::PayloadLayout& layout, const Payloads& payloads)
      : store_(store), layout_(layout), payloads_(payloads) {}

  // Call visit for blocks in their order, many of them in one read. Blocks that a writer beside this reader has
  // forgotten are left out. So is a damaged tensor: `damaged` gets what is wrong with it.
  using Visitor = std::function<Status(const index::BlockEntry& block, const DecodedBlock& decoded)>;
  Status Visit(std::span<const index::BlockEntry* const> blocks, const index::PartNeeds& needs, const Visitor& visit,
               std::vector<Status>& damaged) const;

 private:
  // Read the tensors of a block that are needed.
  [[nodiscard]] Result<std::vector<store::Tensor>> ReadTensors(int64_t block, const index::PartNeeds& needs,
                                                               std::vector<Status>& damaged) const;
  [[nodiscard]] Result<std::vector<DecodedBlock>> Read(std::span<const index::BlockEntry* const> blocks,
                                                       const index::PartNeeds& needs,
                                                       std::vector<Status>& damaged) const;

  const store::MemoryStore& store_;
  const kv::PayloadLayout& layout_;
  const Payloads& payloads_;
};

}  // namespace everlong::os
