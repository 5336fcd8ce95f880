#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "everlong/base/cache_lines.h"
#include "everlong/base/element.h"
#include "everlong/base/fair_shared_mutex.h"
#include "everlong/index/index_file.h"
#include "everlong/index/vector_index.h"
#include "int8.h"
#include "vector_scan.h"

namespace everlong::index {
namespace {

constexpr std::string_view kMagic = "everlong flat 1\n";

constexpr int64_t ElementBytes(VectorStorage storage) {
  if (storage == VectorStorage::kFp32) return 4;
  return storage == VectorStorage::kBf16 ? 2 : 1;
}

bool HasScale(VectorStorage storage) { return storage == VectorStorage::kInt8 || storage == VectorStorage::kE4M3; }

float LargestMagnitude(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

// Encode one padded row and return its scale.
float EncodeRow(std::span<const float> values, VectorStorage storage, std::byte* out) {
  switch (storage) {
    case VectorStorage::kFp32:
      std::memcpy(out, values.data(), values.size_bytes());
      return 1;
    case VectorStorage::kBf16:
      for (size_t i = 0; i < values.size(); ++i) {
        const uint16_t bits = FloatToBFloat16(values[i]);
        std::memcpy(out + 2 * i, &bits, sizeof(bits));
      }
      return 1;
    case VectorStorage::kInt8: {
      const float scale = GroupScale(LargestMagnitude(values), kInt8Max);
      const float inverse = 1 / scale;
      for (size_t i = 0; i < values.size(); ++i) out[i] = static_cast<std::byte>(FloatToInt8(values[i] * inverse));
      return scale;
    }
    case VectorStorage::kE4M3: {
      const float scale = GroupScale(LargestMagnitude(values), kE4M3Max);
      const float inverse = 1 / scale;
      for (size_t i = 0; i < values.size(); ++i) out[i] = static_cast<std::byte>(FloatToE4M3(values[i] * inverse));
      return scale;
    }
  }
  return 1;
}

struct Header {
  int32_t dimension = 0;
  uint32_t metric = 0;
  uint32_t storage = 0;
  uint32_t unused = 0;
  int64_t count = 0;
};

class FlatIndex final : public VectorIndex {
 public:
  explicit FlatIndex(const FlatOptions& options)
      : options_(options),
        width_(PaddedWidth(options.dimension)),
        row_bytes_(static_cast<size_t>(width_ * ElementBytes(options.storage))) {
    EVERLONG_CHECK(options.dimension >= 1);
  }

  Status Add(std::span<const int64_t> ids, std::span<const float> vectors) override {
    EVERLONG_RETURN_IF_ERROR(CheckVectors(vectors, std::ssize(ids), options_.dimension, "vectors"));
    const std::unique_lock writing(guard_);
    const size_t before = ids_.size();
    size_t named = 0;  // of `ids`, in rows_of_
    try {
      EVERLONG_RETURN_IF_ERROR(CheckNewIds(ids, [this](int64_t id) { return rows_of_.contains(id); }));
      const std::vector<float> padded = PadVectors(vectors, options_.dimension, options_.metric);
      SetRows(before + ids.size());
      std::ranges::copy(ids, ids_.begin() + static_cast<std::ptrdiff_t>(before));
      for (; named < ids.size(); ++named) rows_of_.emplace(ids[named], static_cast<int32_t>(before + named));
      Encode(padded, before);
      return OkStatus();
    } catch (const std::exception& error) {  // out of memory
      for (const int64_t id : ids.first(named)) rows_of_.erase(id);
      SetRows(before);
      return CapacityError(std::string("the index cannot grow: ") + error.what());
    }
  }

  int64_t Remove(std::span<const int64_t> ids) override {
    const std::unique_lock writing(guard_);
    int64_t removed = 0;
    for (const int64_t id : ids) {
      const auto found = rows_of_.find(id);
      if (found == rows_of_.end()) continue;
      const auto hole = static_cast<size_t>(found->second);
      const size_t last = ids_.size() - 1;
      rows_of_[ids_[last]] = static_cast<int32_t>(hole);
      rows_of_.erase(id);
      ids_[hole] = ids_[last];
      ids_.pop_back();
      std::memmove(rows_.data() + hole * row_bytes_, rows_.data() + last * row_bytes_, row_bytes_);
      rows_.resize(last * row_bytes_);
      if (HasScale(options_.storage)) {
        scales_[hole] = scales_[last];
        scales_.pop_back();
      }
      ++removed;
    }
    return removed;
  }

  Result<std::vector<VectorHits>> Search(std::span<const float> queries, int32_t k,
                                         const IdFilter& filter) const override {
    EVERLONG_RETURN_IF_ERROR(CheckSearch(queries, k, options_.dimension));
    const std::vector<float> padded = PadVectors(queries, options_.dimension, options_.metric);
    const std::shared_lock reading(guard_);
    const ScannedRows rows = Rows();
    return ScanRows(rows, AllowedRuns(rows, filter), padded, k);
  }

  std::vector<float> Vector(int64_t id) const override {
    const std::shared_lock reading(guard_);
    const auto found = rows_of_.find(id);
    if (found == rows_of_.end()) return {};
    const ScannedRows rows = Rows();
    const int32_t row = found->second;
    const float scale = rows.stored.scales == nullptr ? 1.0F : rows.stored.scales[row];
    std::vector<float> vector(static_cast<size_t>(options_.dimension));
    for (size_t i = 0; i < vector.size(); ++i) {
      vector[i] = scale * StoredNumber(rows, row, static_cast<int64_t>(i));
    }
    return vector;
  }

  Status Save(const IndexFile& file) const override {
    const std::shared_lock reading(guard_);
    EVERLONG_ASSIGN_OR_RETURN(IndexFileWriter writer, IndexFileWriter::Create(file, kMagic));
    writer.WriteValue(Header{options_.dimension, static_cast<uint32_t>(options_.metric),
                             static_cast<uint32_t>(options_.storage), 0, std::ssize(ids_)});
    writer.WriteAll(std::span(ids_));
    writer.WriteAll(std::span(scales_));
    writer.Write(rows_);
    return writer.Commit();
  }

  static Result<std::unique_ptr<VectorIndex>> Load(const FilePath& file) {
    EVERLONG_ASSIGN_OR_RETURN(IndexFileReader reader, IndexFileReader::Open(file, kMagic));
    Header header;
    EVERLONG_RETURN_IF_ERROR(reader.ReadValue(header));
    if (header.dimension < 1 || header.metric > static_cast<uint32_t>(Metric::kL2) ||
        header.storage > static_cast<uint32_t>(VectorStorage::kE4M3) || header.count < 0 ||
        std::cmp_greater(header.count, reader.left() / sizeof(int64_t))) {
      return reader.Corrupt("header out of range");
    }
    auto index = std::make_unique<FlatIndex>(
        FlatOptions{header.dimension, static_cast<Metric>(header.metric), static_cast<VectorStorage>(header.storage)});
    const auto count = static_cast<size_t>(header.count);
    index->ids_.resize(count);
    if (HasScale(index->options_.storage)) index->scales_.resize(count);
    EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(index->ids_)));
    EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(index->scales_)));
    if (reader.left() % index->row_bytes_ != 0 || reader.left() / index->row_bytes_ != count) return reader.Truncated();
    index->rows_.resize(count * index->row_bytes_);
    EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(index->rows_)));
    for (size_t row = 0; row < count; ++row) {
      const int64_t id = index->ids_[row];
      if (id < 0 || !index->rows_of_.emplace(id, static_cast<int32_t>(row)).second) {
        return reader.Corrupt("its ids are invalid");
      }
    }
    return std::unique_ptr<VectorIndex>(std::move(index));
  }

  int32_t dimension() const override { return options_.dimension; }
  Metric metric() const override { return options_.metric; }
  int64_t size() const override {
    const std::shared_lock reading(guard_);
    return std::ssize(ids_);
  }
  std::vector<int64_t> ids() const override {
    const std::shared_lock reading(guard_);
    return ids_;
  }
  int64_t bytes() const override {
    const std::shared_lock reading(guard_);
    constexpr size_t kMapEntry = 4 * sizeof(int64_t);  // about, in the usual libraries
    return static_cast<int64_t>(rows_.capacity() + scales_.capacity() * sizeof(float) +
                                ids_.capacity() * sizeof(int64_t) + rows_of_.size() * kMapEntry);
  }

 private:
  [[nodiscard]] ScannedRows Rows() const {
    ScannedRows rows;
    rows.stored = {rows_.data(), static_cast<int64_t>(row_bytes_), std::ssize(ids_), width_,
                   HasScale(options_.storage) ? scales_.data() : nullptr};
    rows.ids = ids_.data();
    rows.row_of = [this](int64_t id) {
      const auto found = rows_of_.find(id);
      return found == rows_of_.end() ? -1 : found->second;
    };
    rows.storage = options_.storage;
    rows.metric = options_.metric;
    return rows;
  }

  // Make room for so many rows. Fewer never fails.
  void SetRows(size_t count) {
    rows_.resize(count * row_bytes_);
    if (HasScale(options_.storage)) scales_.resize(count);
    ids_.resize(count);
  }

  // Fill the rows from `first`.
  void Encode(std::span<const float> padded, size_t first) {
    const auto width = static_cast<size_t>(width_);
    for (size_t row = first; row < ids_.size(); ++row) {
      const float scale =
          EncodeRow(padded.subspan((row - first) * width, width), options_.storage, rows_.data() + row * row_bytes_);
      if (HasScale(options_.storage)) scales_[row] = scale;
    }
  }

  FlatOptions options_;
  int64_t width_;
  size_t row_bytes_;
  mutable FairSharedMutex guard_;
  std::vector<int64_t> ids_;         // [rows]
  std::vector<float> scales_;        // [rows]; empty for storages without
  CacheLineVector<std::byte> rows_;  // [rows][row_bytes_]
  std::unordered_map<int64_t, int32_t> rows_of_;
};

}  // namespace

std::unique_ptr<VectorIndex> MakeFlatIndex(const FlatOptions& options) { return std::make_unique<FlatIndex>(options); }

Result<std::unique_ptr<VectorIndex>> LoadFlatIndex(const FilePath& file) { return FlatIndex::Load(file); }

}  // namespace everlong::index
