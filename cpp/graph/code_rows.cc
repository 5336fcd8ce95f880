#include "code_rows.h"

#include "code_kernel.h"

namespace everlong::graph {
namespace {

constexpr int64_t kStep = 2 * kGroupRows;  // from two numbers of a row to its next two

}  // namespace

const int8_t* CodeRows::At(int64_t row) const {
  return groups_.data() + row / kGroupRows * kGroupRows * width_ + row % kGroupRows * 2;
}

void CodeRows::Add(int64_t id, const Codes& codes) {
  const int64_t row = size();
  ids_.push_back(id);
  if (row % kGroupRows == 0) {
    squares_.resize(squares_.size() + kGroupRows);
    groups_.resize(groups_.size() + static_cast<size_t>(kGroupRows * width_));
  }
  Set(row, codes);
}

void CodeRows::Set(int64_t row, const Codes& codes) {
  auto* const to = const_cast<int8_t*>(At(row));
  for (int64_t i = 0; i < width_; i += 2) {
    to[i / 2 * kStep] = static_cast<int8_t>(codes.values[static_cast<size_t>(i)]);
    to[i / 2 * kStep + 1] = static_cast<int8_t>(codes.values[static_cast<size_t>(i) + 1]);
  }
  squares_[static_cast<size_t>(row)] = codes.square;
}

void CodeRows::Remove(int64_t row) {
  const int64_t last = size() - 1;
  if (row != last) {
    const int8_t* const from = At(last);
    auto* const to = const_cast<int8_t*>(At(row));
    for (int64_t i = 0; i < width_ / 2 * kStep; i += kStep) {
      to[i] = from[i];
      to[i + 1] = from[i + 1];
    }
    squares_[static_cast<size_t>(row)] = squares_[static_cast<size_t>(last)];
    ids_[static_cast<size_t>(row)] = ids_.back();
  }
  ids_.pop_back();
  if (last % kGroupRows == 0) {
    squares_.resize(squares_.size() - kGroupRows);
    groups_.resize(groups_.size() - static_cast<size_t>(kGroupRows * width_));
  }
}

bool CodeRows::Is(int64_t row, const Codes& codes) const {
  if (squares_[static_cast<size_t>(row)] != codes.square) return false;
  const int8_t* const at = At(row);
  for (int64_t i = 0; i < width_; i += 2) {
    if (at[i / 2 * kStep] != codes.values[static_cast<size_t>(i)] ||
        at[i / 2 * kStep + 1] != codes.values[static_cast<size_t>(i) + 1]) {
      return false;
    }
  }
  return true;
}

void CodeRows::AddTo(int64_t row, std::span<int64_t> sums) const {
  const int8_t* const at = At(row);
  for (int64_t i = 0; i < width_; ++i) sums[static_cast<size_t>(i)] += int64_t{at[i / 2 * kStep + i % 2]};
}

void CodeRows::Read(int64_t row, Codes& codes) const {
  const int8_t* const at = At(row);
  codes.values.resize(static_cast<size_t>(width_));
  for (int64_t i = 0; i < width_; ++i) {
    codes.values[static_cast<size_t>(i)] = static_cast<int16_t>(int32_t{at[i / 2 * kStep + i % 2]});
  }
  codes.square = squares_[static_cast<size_t>(row)];
}

void CodeRows::Distances(const Codes& from, Apart& apart, int32_t limit) const {
  const size_t groups = squares_.size() / kGroupRows;
  if (apart.near.size() < groups) {
    apart.near.resize(groups);
    apart.distances.resize(groups * kGroupRows);
  }
  if (groups == 0) return;
  BestCodeKernel().distances(groups_.data(), squares_.data(), static_cast<int64_t>(groups), width_,
                             {from.values.data(), from.square, limit}, apart.distances.data(), apart.near.data());
  const int64_t in_last = size() - static_cast<int64_t>(groups - 1) * kGroupRows;
  apart.near[groups - 1] &= static_cast<uint16_t>((1U << static_cast<uint32_t>(in_last)) - 1);
}

int64_t CodeRows::bytes() const {
  return static_cast<int64_t>(groups_.capacity() + squares_.capacity() * sizeof(int32_t) +
                              ids_.capacity() * sizeof(int64_t) + sizeof(CodeRows));
}

}  // namespace everlong::graph
