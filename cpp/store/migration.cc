// Migration from an older format to this one (docs/format.md, "Versions").
#include <algorithm>
#include <utility>

#include "writer.h"

namespace everlong::store {

Status Writer::MigrateCatalog() {
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, catalog().Schema());
  if (schema == kCatalogSchema) return OkStatus();
  // Damage must not keep anybody from opening the memory, because a repair has to open it.
  std::vector<Damage> damage;
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<RecordRow> records, catalog().Records(&damage));
  std::vector<OldTensors> tensors;
  for (const RecordRow& record : records) {
    if (std::ranges::find(kTensorKinds, record.kind) == kTensorKinds.end()) continue;
    OldTensors old{record.block, record.kind, std::nullopt};
    const Result<std::vector<std::byte>> payload =
        state_.ReadRecordPayload(record.row, "block " + std::to_string(old.block));
    if (payload.ok()) {
      Result<std::vector<TensorRow>> rows = TensorRowsOf(record.kind, *payload);
      if (rows.ok()) old.tensors = std::move(rows).value();
    } else if (payload.status().code() != StatusCode::kCorrupt) {
      return payload.status();  // they may be whole: the next opener finds out
    }
    tensors.push_back(std::move(old));
  }
  return catalog().Migrate(tensors);
}

Status Writer::Migrate() {
  EVERLONG_RETURN_IF_ERROR(MigrateCatalog());
  if (state_.rooms_.manifest.format_version == kFormatVersion) return OkStatus();
  // The manifest comes last. An older manifest over a newer catalog is an interrupted migration; it is finished here.
  state_.rooms_.manifest.format_version = kFormatVersion;
  return state_.WriteManifestNow();
}

}  // namespace everlong::store
