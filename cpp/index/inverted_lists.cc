#include "inverted_lists.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "everlong/base/element.h"
#include "everlong/base/parallel_for.h"
#include "int8.h"

namespace everlong::index {
namespace {

constexpr int32_t kGivenUpBelow = 8;

// Return the list nearest to each of vectors [n, width].
std::vector<int32_t> Nearest(const ListCentres& centres, std::span<const float> vectors, int64_t width) {
  const int64_t count = std::ssize(vectors) / width;
  std::vector<int32_t> nearest(At(count));
  ParallelFor(0, count, 4, [&](int64_t first, int64_t last) {
    std::vector<float> scores;
    for (int64_t at = first; at < last; ++at) {
      centres.Nearness(vectors.data() + at * width, scores);
      nearest[At(at)] = static_cast<int32_t>(std::ranges::max_element(scores) - scores.begin());
    }
  });
  return nearest;
}

}  // namespace

InvertedLists::InvertedLists(const NeuralInvertedOptions& options)
    : list_vectors_(options.list_vectors),
      metric_(options.metric),
      width_(PaddedWidth(options.dimension)),
      centres_(width_, options.metric) {}

void InvertedLists::Add(std::span<const int64_t> ids, std::span<const float> vectors) {
  const size_t width = At(width_);
  if (lists_.empty()) NewList(vectors.first(width), {std::vector<float>(width), 0});
  const std::vector<int32_t> nearest = Nearest(centres_, vectors, width_);
  for (size_t i = 0; i < ids.size(); ++i) {
    VectorRow row = kNoRow;
    if (free_rows_.empty()) {
      row = static_cast<VectorRow>(row_ids_.size());
      rows_.resize(rows_.size() + width);
      row_ids_.push_back(kNoId);
      places_.emplace_back();
    } else {
      row = free_rows_.back();
      free_rows_.pop_back();
    }
    std::memcpy(rows_.data() + row * width_, vectors.data() + i * width, width * sizeof(float));
    row_ids_[At(row)] = ids[i];
    row_of_[ids[i]] = row;
    PutIn(row, nearest[i]);
  }
  SplitFullOnes(nearest);
}

void InvertedLists::Remove(VectorRow row) {
  row_of_.erase(id(row));
  const int32_t list = places_[At(row)].list;
  TakeOut(row);
  row_ids_[At(row)] = kNoId;
  free_rows_.push_back(row);
  if (std::ssize(lists_[At(list)].rows) < list_vectors_ / kGivenUpBelow && lists_.size() > 1) GiveUp(list);
}

ScannedRows InvertedLists::Scanned() const {
  ScannedRows rows;
  rows.stored = {reinterpret_cast<const std::byte*>(rows_.data()), width_ * int64_t{sizeof(float)},
                 std::ssize(row_ids_), width_, nullptr};
  rows.ids = row_ids_.data();
  rows.row_of = [this](int64_t id) { return Find(id); };
  rows.metric = metric_;
  return rows;
}

int32_t InvertedLists::NewList(std::span<const float> centroid, const ListCentres::Learned& learned) {
  const auto list = static_cast<int32_t>(lists_.size());
  lists_.emplace_back();
  lists_.back().id = next_list_++;
  centres_.Add(centroid, learned);
  return list;
}

void InvertedLists::DropList(int32_t list) {
  if (At(list) + 1 != lists_.size()) {
    lists_[At(list)] = std::move(lists_.back());
    for (const VectorRow row : lists_[At(list)].rows) places_[At(row)].list = list;
  }
  lists_.pop_back();
  centres_.Drop(list);
}

void InvertedLists::PutIn(VectorRow row, int32_t number) {
  List& list = lists_[At(number)];
  places_[At(row)] = {number, static_cast<int32_t>(list.rows.size())};
  list.rows.push_back(row);
  const size_t width = At(width_);
  const float* const values = vector(row);
  const float* const centroid = centres_.centroid(At(number));
  float largest = 0;
  for (size_t i = 0; i < width; ++i) largest = std::max(largest, std::abs(values[i] - centroid[i]));
  const float scale = GroupScale(largest, kInt8Max);
  const float inverse = 1 / scale;
  list.scales.push_back(scale);
  const size_t first = list.codes.size();
  list.codes.resize(first + width);
  for (size_t i = 0; i < width; ++i) {
    list.codes[first + i] = static_cast<std::byte>(FloatToInt8((values[i] - centroid[i]) * inverse));
  }
}

void InvertedLists::TakeOut(VectorRow row) {
  const Place place = places_[At(row)];
  List& list = lists_[At(place.list)];
  const size_t width = At(width_);
  const size_t last = list.rows.size() - 1;
  const size_t slot = At(place.slot);
  if (slot != last) {
    list.rows[slot] = list.rows[last];
    list.scales[slot] = list.scales[last];
    std::memcpy(list.codes.data() + slot * width, list.codes.data() + last * width, width);
    places_[At(list.rows[slot])].slot = place.slot;
  }
  list.rows.pop_back();
  list.scales.pop_back();
  list.codes.resize(last * width);
}

size_t InvertedLists::bytes() const {
  constexpr size_t kMapEntry = 4 * sizeof(int64_t);  // about, in the usual libraries
  size_t bytes = rows_.capacity() * sizeof(float) + centres_.bytes() + row_ids_.capacity() * sizeof(int64_t) +
                 places_.capacity() * sizeof(Place) + row_of_.size() * kMapEntry;
  for (const List& list : lists_) {
    bytes += sizeof(List) + list.codes.capacity() + list.rows.capacity() * sizeof(VectorRow) +
             list.scales.capacity() * sizeof(float);
  }
  return bytes;
}

void InvertedLists::Write(IndexFileWriter& writer) const {
  for (const List& list : lists_) writer.WriteValue(list.id);
  centres_.Write(writer);
  for (const List& list : lists_) {
    writer.WriteValue(std::ssize(list.rows));
    for (const VectorRow row : list.rows) writer.WriteValue(id(row));
    for (const VectorRow row : list.rows) writer.WriteAll(std::span(vector(row), At(width_)));
  }
}

Status InvertedLists::Read(IndexFileReader& reader, size_t lists, int64_t vectors, int64_t next_list) {
  const size_t row_bytes = At(width_) * sizeof(float);
  if (lists > 0 && reader.left() / lists < 2 * row_bytes) return reader.Truncated();
  const Status wrong = reader.Corrupt("its lists are invalid");
  std::vector<int64_t> ids(lists);
  EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(ids)));
  EVERLONG_RETURN_IF_ERROR(centres_.Read(reader, lists));
  next_list_ = next_list;
  lists_.resize(lists);
  for (size_t list = 0; list < lists; ++list) {
    lists_[list].id = ids[list];
    if (ids[list] < 0 || ids[list] >= next_list_) return wrong;
  }
  std::ranges::sort(ids);
  if (std::ranges::adjacent_find(ids) != ids.end()) return wrong;
  if (reader.left() / row_bytes < At(vectors)) return reader.Truncated();
  rows_.reserve(At(vectors * width_));
  for (size_t list = 0; list < lists; ++list) {
    int64_t members = 0;
    EVERLONG_RETURN_IF_ERROR(reader.ReadValue(members));
    if (members < 0 || members > vectors - std::ssize(row_of_)) return wrong;
    const size_t first = row_ids_.size();
    row_ids_.resize(first + At(members));
    rows_.resize(row_ids_.size() * At(width_));
    places_.resize(row_ids_.size());
    EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(row_ids_).subspan(first)));
    const std::span<float> values = std::span<float>(rows_).subspan(first * At(width_));
    EVERLONG_RETURN_IF_ERROR(reader.ReadAll(values));
    if (!std::ranges::all_of(values, [](float value) { return std::abs(value) <= kLargestElement; })) return wrong;
    for (size_t row = first; row < row_ids_.size(); ++row) {
      if (row_ids_[row] < 0 || !row_of_.try_emplace(row_ids_[row], static_cast<VectorRow>(row)).second) return wrong;
      PutIn(static_cast<VectorRow>(row), static_cast<int32_t>(list));
    }
  }
  return std::ssize(row_of_) == vectors ? OkStatus() : wrong;
}

}  // namespace everlong::index
