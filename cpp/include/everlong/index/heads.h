// The part "heads": attention itself as the index (findings.md "The index: retrieval heads"). What chooses its heads
// and how their keys are kept.
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

// A query head that retrieves, and where its keys live.
struct RetrievalHead {
  int32_t layer = 0;  // among the archived layers
  int32_t query_head = 0;
  int32_t kv_head = 0;
  bool operator==(const RetrievalHead&) const = default;
};

// From so many pages on a search goes by two levels: 8.4M tokens in pages of 64.
inline constexpr int32_t kCoarseFrom = 131'072;

struct HeadsOptions {
  int32_t coarse_from = kCoarseFrom;
  KeyStorage keys = KeyStorage::kBf16;
  // Where there is one, the keys are copied to it as they come, into `device_bytes` of its memory at most, and searches
  // scan there. The host scans once the keys do not fit, and whenever the device fails.
  std::shared_ptr<IndexDevice> device = nullptr;
  int64_t device_bytes = 0;
};

// At least one head. Its input is Query::Input("head_queries"): [tokens, heads, D] fp32, in the order of `heads`.
std::unique_ptr<Part> MakeHeadsPart(const PartContext& context, std::vector<RetrievalHead> heads, HeadsOptions options);

}  // namespace everlong::index
