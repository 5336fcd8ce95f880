#include "ops_refused.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "everlong/kv/archive.h"
#include "ops_arguments.h"
#include "ops_kernels.h"
#include "ops_payload.h"

namespace everlong::ops {
namespace {

constexpr int64_t kRefusedBytes = sizeof(kv::RefusedNumber);

}  // namespace

void RequireRefused(std::string_view op, const Tensor& k, const Tensor& refused) {
  RequireDeviceOf(op, k, "refused", refused);
  if (refused.scalar_type() != ScalarType::Byte || refused.dim() != 1 || !refused.is_contiguous() ||
      refused.numel() != kRefusedBytes) {
    Reject(op, "refused", Describe(refused), "contiguous uint8 [" + std::to_string(kRefusedBytes) + "]");
  }
}

void ThrowIfRefused(std::string_view op, const kv::PayloadLayout& layout, int64_t first_slot,
                    const kv::RefusedNumber& found) {
  if (found.index == kv::RefusedNumber::kNone) return;
  const kv::PayloadSizes sizes{layout.layers, layout.kv_heads, layout.head_dim, layout.page_tokens};
  const kv::NumberPlace at = kv::PlaceOfNumber(sizes, found.index);
  ThrowIfError(
      op, kv::RejectedNumberError({at.is_key, at.layer, at.head, at.token, found.value}, first_slot, layout.codec));
}

void RequireArchived(const Tensor& refused, int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t first_slot,
                     int64_t page_tokens, const std::string& codec) {
  constexpr std::string_view kOp = "archive_kv";
  RequireRefused(kOp, refused, refused);
  kv::FrameKv frame;
  frame.layers = RequireInt32(kOp, "layers", layers, 1);
  frame.kv_heads = RequireInt32(kOp, "kv_heads", kv_heads, 1);
  frame.head_dim = RequireInt32(kOp, "head_dim", head_dim, 1);
  kv::RefusedNumber found;
  std::memcpy(&found, refused.const_data_ptr(), kRefusedBytes);
  ThrowIfRefused(kOp, LayoutOf(kOp, frame, page_tokens, codec), first_slot, found);
}

}  // namespace everlong::ops
