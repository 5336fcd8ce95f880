// Registration for torch's CUDA key. The schemas are in ops_library.cc.
#include <torch/csrc/stable/library.h>

#include "ops_gpu_memory.h"
#include "ops_kernels.h"

STABLE_TORCH_LIBRARY_IMPL(everlong, CUDA, m) {
  everlong::ops::gpu::UseTorchsMemory();
  m.impl("derotate_kv", TORCH_BOX(&everlong::ops::gpu::DerotateKv));
  m.impl("rerotate_kv", TORCH_BOX(&everlong::ops::gpu::RerotateKv));
  m.impl("shift_kv_", TORCH_BOX(&everlong::ops::gpu::ShiftKv));
  m.impl("gather_kv_", TORCH_BOX(&everlong::ops::gpu::GatherKv));
  m.impl("archive_kv", TORCH_BOX(&everlong::ops::gpu::ArchiveKv));
  m.impl("archive_kv.out", TORCH_BOX(&everlong::ops::gpu::ArchiveKvOut));
  m.impl("restore_kv", TORCH_BOX(&everlong::ops::gpu::RestoreKv));
  m.impl("encode_kv", TORCH_BOX(&everlong::ops::gpu::EncodeKv));
  m.impl("decode_kv", TORCH_BOX(&everlong::ops::gpu::DecodeKv));
}
