#include "block_reader.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "everlong/base/parallel_for.h"
#include "everlong/kv/archive.h"

namespace everlong::os {
namespace {

// The payload that one read of many blocks takes at a time, about.
constexpr size_t kReadBytes = size_t{16} << 20;

// Add the keys of all heads of one part to sum [Hkv * D].
void AddKeys(std::span<const std::byte> part, int32_t tokens, const kv::PayloadLayout& layout, std::span<float> sum) {
  const auto dim = static_cast<size_t>(layout.head_dim);
  std::vector<float> keys(static_cast<size_t>(tokens) * dim);
  for (int32_t head = 0; head < layout.kv_heads; ++head) {
    kv::DecodeKeys(part, tokens, head, layout, keys);
    float* out = sum.data() + static_cast<size_t>(head) * dim;
    for (size_t i = 0; i < keys.size(); ++i) out[i % dim] += keys[i];
  }
}

// Return the keys of some key heads of one page: [heads, tokens, D]. part(layer) returns the bytes of a layer.
template <class Part>
std::vector<float> DecodeHeadKeys(std::span<const index::KeyHead> heads, int32_t tokens,
                                  const kv::PayloadLayout& layout, const Part& part) {
  const size_t size = static_cast<size_t>(tokens) * static_cast<size_t>(layout.head_dim);
  std::vector<float> keys(heads.size() * size);
  for (size_t i = 0; i < heads.size(); ++i) {
    kv::DecodeKeys(part(heads[i].layer), tokens, heads[i].kv_head, layout, std::span(keys).subspan(i * size, size));
  }
  return keys;
}

// Decodes a block's keys page by page.
class Decoder {
 public:
  Decoder(const kv::PayloadLayout& layout, const index::PartNeeds& needs) : layout_(layout), needs_(needs) {
    decoded_.keys = index::BlockKeys(needs.keys);
    if (needs.key_sum) decoded_.key_sum.assign(static_cast<size_t>(layout.kv_heads * layout.head_dim), 0.0F);
  }

  template <class Part>
  void AddPage(int32_t tokens, const Part& part) {
    if (!needs_.keys.empty()) decoded_.keys.AddPage(DecodeHeadKeys(needs_.keys, tokens, layout_, part));
    if (needs_.key_sum) AddKeys(part(layout_.layers - 1), tokens, layout_, decoded_.key_sum);
  }
  DecodedBlock Finish() && { return std::move(decoded_); }

 private:
  const kv::PayloadLayout& layout_;
  const index::PartNeeds& needs_;
  DecodedBlock decoded_;
};

std::set<int32_t> LayersOf(const index::PartNeeds& needs, const kv::PayloadLayout& layout) {
  std::set<int32_t> layers;
  if (needs.key_sum) layers.insert(layout.layers - 1);
  for (const index::KeyHead& head : needs.keys) layers.insert(head.layer);
  return layers;
}

}  // namespace

index::BlockInput InputOf(const index::BlockEntry& block, int32_t page_tokens, const DecodedBlock& decoded) {
  index::BlockInput input;
  input.id = block.id;
  input.first_page = block.first_page;
  input.page_tokens = page_tokens;
  input.tokens = block.span.size();
  input.sink_tokens = block.sink_tokens;
  input.token_ids = decoded.token_ids;
  input.keys = &decoded.keys;
  input.key_sum = decoded.key_sum;
  input.tensors = decoded.tensor_views;
  return input;
}

DecodedBlock DecodePayload(const kv::PayloadLayout& layout, std::span<const std::byte> payload, int64_t tokens,
                           const index::PartNeeds& needs) {
  Decoder decoder(layout, needs);
  for (int64_t page = 0; page < layout.PageCount(tokens); ++page) {
    const int32_t page_tokens = layout.PageTokens(tokens, page);
    const auto part_bytes = static_cast<size_t>(layout.PartBytes(page_tokens));
    const auto page_bytes = payload.subspan(static_cast<size_t>(page * layout.PageBytes(layout.page_tokens)));
    decoder.AddPage(page_tokens, [page_bytes, part_bytes](int32_t layer) {
      return page_bytes.subspan(static_cast<size_t>(layer) * part_bytes, part_bytes);
    });
  }
  return std::move(decoder).Finish();
}

bool ForgottenByWriter(const store::MemoryStore& store, const Status& status) {
  return store.read_only() && status.code() == StatusCode::kNotFound;
}

Status BlockReader::Visit(std::span<const index::BlockEntry* const> blocks, const index::PartNeeds& needs,
                          const Visitor& visit, std::vector<Status>& damaged) const {
  const size_t layers = LayersOf(needs, layout_).size();
  const auto bytes_of = [&](const index::BlockEntry& block) {
    // Tensors may be large, and are read one by one anyway.
    if (needs.tensors) return kReadBytes;
    const int64_t payload = block.page_count * layout_.PartBytes(layout_.page_tokens);
    return layers == 0 ? static_cast<size_t>(block.span.size()) * sizeof(int32_t)
                       : layers * static_cast<size_t>(payload);
  };
  while (!blocks.empty()) {
    size_t count = 0;
    for (size_t bytes = 0; count < blocks.size() && bytes < kReadBytes; ++count) bytes += bytes_of(*blocks[count]);
    Result<std::vector<DecodedBlock>> decoded = Read(blocks.first(count), needs, damaged);
    if (ForgottenByWriter(store_, decoded.status())) {
      // The writer has forgotten one of these blocks. Which one shows when they are read one by one.
      count = 1;
      decoded = Read(blocks.first(count), needs, damaged);
      if (ForgottenByWriter(store_, decoded.status())) decoded = std::vector<DecodedBlock>();
    }
    EVERLONG_RETURN_IF_ERROR(decoded.status());
    for (size_t i = 0; i < decoded->size(); ++i) EVERLONG_RETURN_IF_ERROR(visit(*blocks[i], (*decoded)[i]));
    blocks = blocks.subspan(count);
  }
  return OkStatus();
}

Result<std::vector<store::Tensor>> BlockReader::ReadTensors(int64_t block, const index::PartNeeds& needs,
                                                            std::vector<Status>& damaged) const {
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<store::TensorInfo> infos, store_.Tensors(block));
  const std::vector<std::string>& names = needs.tensor_names;
  std::vector<store::Tensor> tensors;
  for (const store::TensorInfo& info : infos) {
    if (!names.empty() && std::ranges::find(names, info.name) == names.end()) continue;
    Result<store::Tensor> tensor = store_.ReadTensor(block, info.name);
    if (tensor.status().code() == StatusCode::kCorrupt) {
      damaged.push_back(tensor.status());
      continue;
    }
    EVERLONG_RETURN_IF_ERROR(tensor.status());
    tensors.push_back(*std::move(tensor));
  }
  return tensors;
}

Result<std::vector<DecodedBlock>> BlockReader::Read(std::span<const index::BlockEntry* const> blocks,
                                                    const index::PartNeeds& needs, std::vector<Status>& damaged) const {
  const std::set<int32_t> layers = LayersOf(needs, layout_);
  struct Page {
    int32_t tokens = 0;
    std::map<int32_t, std::vector<std::byte>> parts;  // by layer
  };
  std::vector<std::vector<Page>> pages(blocks.size());
  std::vector<store::PageRead> reads;
  for (size_t i = 0; needs.payload() && i < blocks.size(); ++i) {
    for (int32_t page = 0; page < blocks[i]->page_count; ++page) {
      Page& read = pages[i].emplace_back();
      read.tokens = layout_.PageTokens(blocks[i]->span.size(), page);
      for (const int32_t layer : layers) {
        std::vector<std::byte>& part = read.parts[layer];
        part.resize(static_cast<size_t>(layout_.PartBytes(read.tokens)));
        reads.push_back({blocks[i]->id, page, layer, 1, part});
      }
    }
  }
  if (!reads.empty()) EVERLONG_RETURN_IF_ERROR(store_.ReadPages(reads));

  std::vector<DecodedBlock> decoded(blocks.size());
  ParallelFor(0, std::ssize(blocks), 1, [&](int64_t first, int64_t last) {
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i) {
      Decoder decoder(layout_, needs);
      for (const Page& page : pages[i]) {
        decoder.AddPage(page.tokens,
                        [&page](int32_t layer) { return std::span<const std::byte>(page.parts.at(layer)); });
      }
      decoded[i] = std::move(decoder).Finish();
    }
  });
  for (size_t i = 0; needs.token_ids && i < blocks.size(); ++i) {
    EVERLONG_ASSIGN_OR_RETURN(decoded[i].token_ids, store_.TokenIds(blocks[i]->id));
  }
  for (size_t i = 0; needs.tensors && i < blocks.size(); ++i) {
    DecodedBlock& block = decoded[i];
    EVERLONG_ASSIGN_OR_RETURN(block.tensors, ReadTensors(blocks[i]->id, needs, damaged));
    for (const store::Tensor& tensor : block.tensors) block.tensor_views.push_back(ViewOf(tensor));
  }
  return decoded;
}

}  // namespace everlong::os
