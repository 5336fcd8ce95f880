// The part "heads", with the attention of retrieval heads as the index: which heads, and how their keys are kept.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "everlong/index/index_device.h"
#include "everlong/index/key_layout.h"
#include "everlong/index/part.h"

namespace everlong::index {

inline constexpr KeyStorage kKeyStorages[] = {KeyStorage::kBf16, KeyStorage::kInt8, KeyStorage::kE4M3};
std::string_view NameOf(KeyStorage storage);  // "bf16", "int8", "e4m3"

// A query head that retrieves, and the place of its keys.
struct RetrievalHead {
  int32_t layer = 0;  // number among the archived layers
  int32_t query_head = 0;
  int32_t kv_head = 0;
  bool operator==(const RetrievalHead&) const = default;
};

// From so many pages a search has two levels. It is half a million tokens in pages of 64. There, a search by all parts
// takes 0.6 of the time, and finds the same (docs/lab/measured/indexes.md).
inline constexpr int32_t kCoarseFrom = 8'192;

struct HeadsOptions {
  int32_t coarse_from = kCoarseFrom;
  KeyStorage keys = KeyStorage::kBf16;
  // If set, keys are copied to the device as they come, into at most `device_bytes` of its memory, and searches scan
  // there. The host scans once the keys do not fit, and whenever the device fails.
  std::shared_ptr<IndexDevice> device = nullptr;
  int64_t device_bytes = 0;
};

// Make the part of at least one head. Its input Query::Input("head_queries") is [tokens, heads, D] fp32, as in `heads`.
std::unique_ptr<Part> MakeHeadsPart(const PartContext& context, std::vector<RetrievalHead> heads, HeadsOptions options);

}  // namespace everlong::index
