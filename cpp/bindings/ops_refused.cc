#include "ops_refused.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "../../hip/archive_units.h"
#include "everlong/kv/archive.h"
#include "ops_arguments.h"
#include "ops_kernels.h"
#include "ops_payload.h"

namespace everlong::ops {
namespace {

constexpr int64_t kRefusedBytes = sizeof(hip::RejectedNumber);

}  // namespace

void RequireRefused(std::string_view op, const Tensor& k, const Tensor& refused) {
  RequireDeviceOf(op, k, "refused", refused);
  if (refused.scalar_type() != ScalarType::Byte || refused.dim() != 1 || !refused.is_contiguous() ||
      refused.numel() != kRefusedBytes) {
    Reject(op, "refused", Describe(refused), "contiguous uint8 [" + std::to_string(kRefusedBytes) + "]");
  }
}

void ThrowIfRejected(std::string_view op, const hip::ArchiveJob& job, const hip::RejectedNumber& found) {
  if (found.index == hip::RejectedNumber::kNone) return;
  const hip::RejectedPlace at = hip::PlaceOfRejected(job, found.index);
  ThrowIfError(
      op, kv::RejectedNumberError({at.is_key, at.layer, at.head, at.token, found.value}, job.first_slot, job.codec));
}

void RequireArchived(const Tensor& refused, int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t first_slot,
                     int64_t page_tokens, const std::string& codec) {
  constexpr std::string_view kOp = "archive_kv";
  RequireRefused(kOp, refused, refused);
  hip::ArchiveJob job;
  job.frame.layers = RequireInt32(kOp, "layers", layers, 1);
  job.frame.kv_heads = RequireInt32(kOp, "kv_heads", kv_heads, 1);
  job.frame.head_dim = RequireInt32(kOp, "head_dim", head_dim, 1);
  const kv::PayloadLayout layout = LayoutOf(kOp, job.frame, page_tokens, codec);
  job.first_slot = first_slot;
  job.page_tokens = layout.page_tokens;
  job.codec = layout.codec;
  hip::RejectedNumber found;
  std::memcpy(&found, refused.const_data_ptr(), kRefusedBytes);
  ThrowIfRejected(kOp, job, found);
}

}  // namespace everlong::ops
